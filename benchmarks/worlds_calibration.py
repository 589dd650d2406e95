"""Why policies imagine more clicks than they earn in SARDINE: what GRU4Rec predicts for the items that it chooses itself.

    python benchmarks/worlds_calibration.py FOLDER --output docs/results/sardine-calibration.csv

GRU4Rec learns from 7,200 sessions of a random policy (the log of worlds.py in FOLDER, which is played if it is not there).
Its predicted click rate is compared with the true one, in random sessions and in its own, by how often in a row an item's
topic was shown before without a click. In a random log a topic returns once in ten steps; a policy shows one repeatedly.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import worlds
from measurements import Measurements
from numpy.typing import NDArray

import mbcal
from mbcal.evaluation.worlds import RANDOM_POLICY
from mbcal.nn.base import expected_reward
from mbcal.types import FIRST_ITEM_ROW

SESSIONS = worlds.SIZES[0]
BOUNDS = (0, 1, 2, 4, 8, 16)
"""Where bins of misses begin."""


def misses_of_topic(sessions: mbcal.Sessions, topic_of_row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for every step (N, T), how often its topic was shown since the topic was last clicked, or from the start."""
    topics = topic_of_row[sessions.items]
    clicked = np.asarray(sessions.rewards) > 0
    misses = np.zeros(topics.shape, np.int64)
    rows, since = np.arange(len(topics)), np.zeros((len(topics), topic_of_row.max() + 1), np.int64)
    for step in range(topics.shape[1]):
        topic = topics[:, step]
        misses[:, step] = since[rows, topic]
        since[rows, topic] = np.where(clicked[:, step], 0, since[rows, topic] + 1)
    return misses


@torch.no_grad()
def predicted_clicks(agent: mbcal.GRU4Rec, sessions: mbcal.Sessions) -> NDArray[np.float32]:
    """Return the click rate (N, T) that an agent expects of every item that was shown."""
    (net,) = agent.nets.values()
    rewards = sessions.behaviour_set.reward_table("cpu")
    return np.asarray(expected_reward(net.forward_batch(sessions.tensors("cpu")), rewards))


def bin_name(begin: int, end: int | None) -> str:
    """Return how a bin of misses is called; without an end, all from its beginning on."""
    if end is None:
        return f"{begin} or more"
    return str(begin) if end == begin + 1 else f"{begin} to {end - 1}"


def measure(world: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield predicted and true click rates in a world, by kind of session and misses of the topic."""
    cell = worlds.Cell("batch", world, "gru4rec", SESSIONS, 0)
    for part in worlds.log_parts(cell):
        if not worlds.log_path(folder, world, "random", part).exists():
            worlds.play_log(folder, world, "random", part)
    played = worlds.open_world(world)
    agent = mbcal.GRU4Rec(seed=0, features=("topic",), device="cpu").fit(worlds.open_log(folder, cell))
    sessions = {
        "random": played.play(RANDOM_POLICY, worlds.TEST_EPISODES, epsilon=1.0, seed=worlds.TEST_SEED),
        "own": played.play(agent, worlds.TEST_EPISODES, seed=worlds.TEST_SEED),
    }
    topic_of_row = np.zeros(played.catalog.n_rows, np.int64)
    topic_of_row[FIRST_ITEM_ROW:] = played.environments[0].unwrapped.item_comp
    for kind, found in sessions.items():
        misses, predicted, clicked = misses_of_topic(found, topic_of_row), predicted_clicks(agent, found), found.rewards
        for begin, end in zip(BOUNDS, (*BOUNDS[1:], None), strict=True):
            chosen = (misses >= begin) & (misses < (found.horizon if end is None else end))
            if chosen.any():
                yield {
                    "world": world,
                    "sessions": kind,
                    "misses": bin_name(begin, end),
                    "share of steps": float(chosen.mean()),
                    "predicted": float(predicted[chosen].mean()),
                    "clicked": float(np.asarray(clicked)[chosen].mean()),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the logs of worlds.py are, or will be")
    parser.add_argument("--output", type=Path, help="CSV file to write; a JSON file beside it says how it was made")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    columns = ("world", "sessions", "misses"), ("share of steps", "predicted", "clicked")
    written = Measurements(options.output, *columns)
    for world in ("Static", "BoredInf"):
        for row in measure(world, options.folder):
            written.add(**row)
    settings = {"sessions": SESSIONS, "test_episodes": worlds.TEST_EPISODES}
    written.record("sardine", "cpu", worlds.WORLDS["BoredInf"][0], settings)


if __name__ == "__main__":
    main()
