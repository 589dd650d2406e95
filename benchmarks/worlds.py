"""Methods in a foreign world: SARDINE (`pip install 'mbcal[worlds]'`), whose users get bored of a topic.

    python benchmarks/worlds.py run OUT.jsonl --processes 8        everything; a run that is stopped resumes
    python benchmarks/worlds.py run OUT.jsonl --kinds batch        some of: yardstick, batch, privileged, peer;
                                                                   --policies, --sizes and --seeds likewise
    python benchmarks/worlds.py table OUT.jsonl                    clicks per session, as CSV; --output: also to a file

yardstick   chance, greedy with the truth known, and a rule that knows the truth and avoids boredom
batch       learn from a log of a random policy, 7,200 or 40,000 sessions of 100 steps
privileged  learn from a log of a policy that knew the hidden state of users, half of its choices random
peer        PPO of stable-baselines3 (`pip install stable-baselines3`), with as many steps in the world as a log has

Every policy ranks the whole catalogue and shows an item once per episode, but where "repeats" says otherwise. Test episodes
are the same for all. *imagined*: what a policy earns in its own environment model, if it has one. *bored*: the share of
steps at which the user is bored of a topic. *beyond*: the share of steps before which a session has more clicks than at any
step of the log that was learned from. Logs lie beside OUT.jsonl and are made once. docs/results/sardine-worlds.csv is
the output that docs/results/sardine.md shows. Growing Batch-RL in the same world is an experiment: `results.py run
sardine-growing`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measurements import Measurements
from numpy.typing import NDArray
from torch import Tensor

import mbcal
from mbcal.agents import Agent, agent_class
from mbcal.environments.gymnasium.world import Episodes
from mbcal.environments.rollout import Policy, rollout
from mbcal.evaluation.worlds import RANDOM_POLICY
from mbcal.metrics import mean_interval
from mbcal.training.random import derive_seed
from mbcal.types import FIRST_ITEM_ROW

WORLDS = {
    "BoredInf": ("sardine/SingleItem-BoredInf-v0", False),
    "BoredInf, repeats": ("sardine/SingleItem-BoredInf-v0", True),
    "Static": ("sardine/SingleItem-Static-v0", False),
}
"""ID of the environment, and whether an item may be shown again in an episode."""
TEST_SEED, TEST_EPISODES = derive_seed(0, "test"), 300
"""The test episodes of `mbcal evaluate --env`."""
LOG_PART = 2_500
"""Sessions of a log that one process plays."""
SIZES = (7_200, 40_000)
SEEDS = 3
METHODS = ("gru4rec", "gru4rec-regression", "mbcal-plan", "mbcal", "mbcal-no-vr", "mcpe", "dqn", "dyna-q")
YARDSTICKS = ("chance", "greedy with the truth", "rule with the truth")
USES = ("false", "true")
"""Whether logged propensities weight the steps of a fit."""
PEER_STEPS = 720_000
"""Steps of 7,200 sessions."""


class Cell(NamedTuple):
    """One result: what is measured, in which world, by which policy, from how much data, with which seed."""

    kind: str
    world: str
    policy: str
    sessions: int = 0
    seed: int = 0


def all_cells() -> Iterator[Cell]:
    for world in WORLDS:
        yield from (Cell("yardstick", world, policy) for policy in YARDSTICKS)
    for seed in range(SEEDS):
        yield Cell("peer", "BoredInf, repeats", "sb3-ppo", PEER_STEPS // 100, seed)
        for size in reversed(SIZES):
            yield from (Cell("batch", "BoredInf", method, size, seed) for method in METHODS)
            for method in ("gru4rec", "mbcal"):
                yield from (Cell("privileged", "BoredInf", f"{method}+propensity_weights={use}", size, seed) for use in USES)
        yield from (Cell("batch", "Static", method, SIZES[0], seed) for method in ("gru4rec", "mbcal"))


# ---- policies that know the truth


class TruthPolicy:
    """Ranks by the probability of a click, read from the environments' hidden states.

    Args:
        world: The world whose episodes it plays.
        avoids_boredom: Leave out topics that one more click would make boring.
    """

    device = torch.device("cpu")

    def __init__(self, world: mbcal.GymnasiumWorld, avoids_boredom: bool = False) -> None:
        self.world, self.avoids_boredom = world, avoids_boredom

    def begin(self, user: Tensor, *history: Tensor) -> int:  # noqa: ARG002 - as policies are called
        return len(user)

    def score(self, state: int, candidates: Tensor) -> Tensor:  # noqa: ARG002 - as policies are called
        return torch.from_numpy(np.stack([self._chances(row) for row in range(state)]))

    def observe(self, state: int, item: Tensor, behaviour: Tensor) -> int:  # noqa: ARG002 - as policies are called
        return state

    def _chances(self, row: int) -> NDArray[np.float64]:
        environment = self.world.environments[row].unwrapped
        score = environment.item_embedd @ environment.cur_user_embedd / environment.max_score
        chance = 1 / (1 + np.exp(-(score - environment.offset) * environment.slope))
        if self.avoids_boredom:
            recent = np.bincount(np.asarray(environment.clicked_item_topics, int), minlength=environment.num_topics)
            chance = np.where((recent >= environment.boredom_thresh - 1)[environment.item_comp], -1, chance)
        return np.asarray(chance)


class BoredomMeter:
    """Plays as another policy does, and counts at how many steps the user is bored of a topic.

    Args:
        policy: Who plays.
        world: The world whose episodes it plays.
    """

    def __init__(self, policy: Policy, world: mbcal.GymnasiumWorld) -> None:
        self.policy, self.world = policy, world
        self.begin, self.observe = policy.begin, policy.observe
        self.bored = self.steps = 0

    def score(self, state: Any, candidates: Tensor) -> Tensor:
        environments = self.world.environments[: len(candidates)]
        self.bored += sum(bool(environment.unwrapped.bored.any()) for environment in environments)
        self.steps += len(environments)
        return self.policy.score(state, candidates)


# ---- logs


@cache
def open_world(world: str) -> mbcal.GymnasiumWorld:
    name, repeats = WORLDS[world]
    return mbcal.GymnasiumWorld(name, repeats=repeats)


def log_path(folder: Path, world: str, policy: str, part: int) -> Path:
    return folder / f"sardine-{world}-{policy}-{part}.npz"


def play_log(folder: Path, world: str, policy: str, part: int) -> None:
    """Play a part of a log and keep items, behaviours and propensities."""
    played = open_world(world)
    player, epsilon = (RANDOM_POLICY, 1.0) if policy == "random" else (TruthPolicy(played), 0.5)
    sessions = played.play(player, LOG_PART, epsilon=epsilon, seed=0, first_index=part * LOG_PART)
    arrays = {name: getattr(sessions, name) for name in ("items", "behaviours", "propensities")}
    np.savez_compressed(log_path(folder, world, policy, part), **arrays)


def open_log(folder: Path, cell: Cell) -> mbcal.Sessions:
    """The sessions that a cell learns from."""
    played, parts = open_world(cell.world), []
    for part in log_parts(cell):
        with np.load(log_path(folder, cell.world, log_policy(cell), part)) as arrays:
            parts.append({name: arrays[name] for name in arrays.files})
    joined: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count, horizon = joined["items"].shape
    first = first_session(cell) - log_parts(cell)[0] * LOG_PART
    sessions = mbcal.Sessions(
        played.catalog,
        played.behaviours,
        length=np.full(count, horizon, np.int32),
        user=np.arange(count, dtype=np.int32),
        history_items=np.zeros((count, 0), np.int32),
        history_behaviours=np.zeros((count, 0), np.uint8),
        history_length=np.zeros(count, np.int32),
        **joined,
    )
    return sessions[first : first + cell.sessions]


def log_policy(cell: Cell) -> str:
    """Whose log a cell learns from."""
    return "random" if cell.kind == "batch" else "truth"


def first_session(cell: Cell) -> int:
    """Number of the first session that a cell learns from: seeds have sessions of their own where there are enough."""
    total = SIZES[1] if cell.world == "BoredInf" else SEEDS * SIZES[0]
    return cell.seed * cell.sessions if (cell.seed + 1) * cell.sessions <= total else 0


def log_parts(cell: Cell) -> range:
    """The parts of its log that a cell learns from."""
    first = first_session(cell)
    return range(first // LOG_PART, -(-(first + cell.sessions) // LOG_PART))


# ---- results


def run_cell(cell: Cell, folder: Path) -> dict[str, Any]:
    """Fit the policy of a cell, if it learns, and play the test episodes."""
    world, begin = open_world(cell.world), time.monotonic()
    record: dict[str, Any] = {}
    if cell.kind == "peer":
        returns = play_peer(cell)
    elif cell.kind == "yardstick":
        policy = RANDOM_POLICY if cell.policy == "chance" else TruthPolicy(world, cell.policy.startswith("rule"))
        episodes, record["bored"] = play_test(policy, world, epsilon=1.0 if cell.policy == "chance" else 0.0)
        returns = episodes.returns
    else:
        method, _, use = cell.policy.partition("+propensity_weights=")
        log = open_log(folder, cell)
        settings: dict[str, Any] = {"propensity_weights": use == "true"} if use else {}
        agent = agent_class(method)(seed=cell.seed, features=("topic",), **settings)
        agent.fit(log)
        record = {"device": str(agent.device), "warnings": agent.warnings, "gamma": getattr(agent.config, "gamma", None)}
        record |= {"training": {name: str(net) for name, net in agent.records.items()}}
        record |= {"imagined": imagined_clicks(agent, log[:TEST_EPISODES])}
        episodes, record["bored"] = play_test(agent, world)
        record["beyond"] = float((clicks_before(episodes.sessions) > clicks_before(log).max()).mean())
        returns = episodes.returns
    reward = mean_interval(returns, np.arange(len(returns)))
    seconds = round(time.monotonic() - begin, 1)
    return {**cell._asdict(), "clicks": reward.mean, "stderr": reward.stderr, "seconds": seconds, **record}


def play_test(policy: Policy, world: mbcal.GymnasiumWorld, epsilon: float = 0.0) -> tuple[Episodes, float]:
    """The test episodes, and the share of steps at which their users were bored."""
    meter = BoredomMeter(policy, world)
    episodes = world.play_episodes(meter, TEST_EPISODES, epsilon=epsilon, seed=TEST_SEED)
    return episodes, meter.bored / meter.steps


def clicks_before(sessions: mbcal.Sessions) -> NDArray[np.float32]:
    """Clicks of a session before each of its steps, (N, T)."""
    clicks = np.asarray(sessions.rewards)
    return np.asarray(clicks.cumsum(1) - clicks)


def imagined_clicks(agent: Agent, sessions: mbcal.Sessions) -> float | None:
    """Clicks per session of an agent in its own environment model; None if it has no such model."""
    model = getattr(agent, "environment", None)
    if model is None:
        return None
    catalogue = np.arange(FIRST_ITEM_ROW, sessions.catalog.n_rows, dtype=np.int32)
    candidates = np.broadcast_to(catalogue, (len(sessions), len(catalogue))).copy()
    return float(rollout(agent, model(), sessions, candidates=candidates, seed=TEST_SEED).rewards.sum(1).mean())


def play_peer(cell: Cell) -> NDArray[np.float32]:
    """PPO of stable-baselines3 on the environment's own observations."""
    import gymnasium
    from stable_baselines3 import PPO

    environment = gymnasium.make(WORLDS[cell.world][0])
    model = PPO("MultiInputPolicy", environment, gamma=1.0, seed=cell.seed, device="cpu")
    model.learn(cell.sessions * 100)
    returns = np.zeros(TEST_EPISODES, np.float32)
    for episode in range(TEST_EPISODES):
        observation, _ = environment.reset(seed=derive_seed(TEST_SEED, "episode", episode) & 0x7FFFFFFF)
        has_ended = False
        while not has_ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = environment.step(action)
            returns[episode] += float(reward)
            has_ended = terminated or truncated
    return returns


def run(options: argparse.Namespace) -> None:
    folder = options.out.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    done = {key(row) for row in read(options.out)} if options.out.exists() else set()
    cells = [cell for cell in all_cells() if is_wanted(cell, options) and cell not in done]
    learning = [cell for cell in cells if cell.kind in ("batch", "privileged")]
    needed = {(cell.world, log_policy(cell), part) for cell in learning for part in log_parts(cell)}
    parts = [part for part in sorted(needed) if not log_path(folder, *part).exists()]
    with ProcessPoolExecutor(options.processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for number, played in enumerate(as_completed([pool.submit(play_log, folder, *part) for part in parts]), 1):
            played.result()
            print(f"log: {number} of {len(parts)} parts", file=sys.stderr, flush=True)
        futures = [pool.submit(run_cell, cell, folder) for cell in cells]
        with options.out.open("a") as file:
            for number, future in enumerate(as_completed(futures), 1):
                file.write(json.dumps(future.result()) + "\n")
                file.flush()
                print(f"{number} of {len(cells)}", file=sys.stderr, flush=True)


def is_wanted(cell: Cell, options: argparse.Namespace) -> bool:
    """Whether a cell is in the part that is run; an empty list stands for all."""
    parts = (
        (cell.kind, options.kinds),
        (cell.policy, options.policies),
        (cell.sessions, options.sizes),
        (cell.seed, options.seeds),
    )
    return all(value in wanted for value, wanted in parts if wanted)


def key(row: dict[str, Any]) -> Cell:
    return Cell(*(row[name] for name in Cell._fields))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(options: argparse.Namespace) -> None:
    """Print and write clicks per session by policy and data: mean and spread over seeds."""
    names = ("kind", "world", "policy", "sessions")
    by_name: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in read(options.out):
        by_name[tuple(row[name] for name in names)].append(row)
    written = Measurements(
        options.output, names, ("clicks", "stderr", "spread over seeds", "seeds", "imagined", "bored", "beyond")
    )
    for name, rows in sorted(by_name.items()):
        values = [row["clicks"] for row in rows]
        written.add(
            **dict(zip(names, name, strict=True)),
            **{
                "clicks": statistics.mean(values),
                "stderr": statistics.mean(row["stderr"] for row in rows),
                "spread over seeds": statistics.stdev(values) if len(values) > 1 else None,
                "seeds": len(values),
                "imagined": mean_of(rows, "imagined"),
                "bored": mean_of(rows, "bored"),
                "beyond": mean_of(rows, "beyond"),
            },
        )
    devices = sorted({row.get("device", "cpu") for row in read(options.out)})
    written.record("sardine", " and ".join(devices), WORLDS["BoredInf"][0], {"test_episodes": TEST_EPISODES})


def mean_of(rows: list[dict[str, Any]], name: str) -> float | None:
    """The mean of a number that some results have; None if none has it."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.mean(values) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("out", type=Path)
    running.add_argument("--kinds", nargs="+", default=[], choices=["yardstick", "batch", "privileged", "peer"])
    running.add_argument("--policies", nargs="+", default=[], metavar="POLICY")
    running.add_argument("--sizes", nargs="+", type=int, default=[], choices=SIZES, help="sessions to learn from")
    running.add_argument("--seeds", nargs="+", type=int, default=[], choices=range(SEEDS))
    running.add_argument("--processes", type=int, default=2)
    running.set_defaults(function=run)
    tabling = commands.add_parser("table")
    tabling.add_argument("out", type=Path)
    tabling.add_argument("--output", type=Path, help="CSV file to write; a JSON file beside it says how it was made")
    tabling.set_defaults(function=table)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
