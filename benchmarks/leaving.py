"""What users who leave cost: labels and roll-outs of the same sessions, with and without a terminal behaviour.

    python benchmarks/leaving.py                      on this machine's CPU, one thread
    python benchmarks/leaving.py --device cuda        on a GPU

Times are the best of several turns, the two kinds in alternation. A ratio above 1 is the price of leaving.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from mbcal import NetConfig, Newsfeed, SessionConfig
from mbcal.agents.mbcal import counterfactual_labels
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.newsfeed.log import generate_sessions
from mbcal.environments.rollout import rollout
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.scorers import RandomScorer
from mbcal.types import SessionTensors

RARE = ("dwell-01",)
"""The terminal behaviour: the lowest level, which few steps of the newsfeed have."""


def best_of(turns: int, work: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Seconds of each piece of work, the best of several turns in alternation."""
    best = dict.fromkeys(work, float("inf"))
    for turn in range(turns + 1):
        for name, run in work.items():
            began = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first warms up
                best[name] = min(best[name], time.perf_counter() - began)
    return best


def ending(batch: SessionTensors) -> SessionTensors:
    """The same sessions with a terminal behaviour; where it occurs before the last step, it becomes the next level."""
    last = torch.arange(batch.horizon, device=batch.device) == batch.length.unsqueeze(1) - 1
    behaviours = torch.where(last, batch.behaviours, batch.behaviours.clamp(min=1)) * batch.mask
    return replace(batch, behaviours=behaviours.to(torch.uint8), behaviour_set=replace(batch.behaviour_set, terminal=RARE))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sessions", type=int, default=0, help="0: 1,024 on a CPU, 65,536 on a GPU")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    count = options.sessions or (1024 if options.device == "cpu" else 65_536)
    if options.device == "cpu":
        torch.set_num_threads(1)
    world = Newsfeed(users=-(-count // 4), items=2_000)
    batches = {"all stay": generate_sessions(world, SessionConfig(), 0).tensors(options.device)[:count]}
    batches["some leave"] = ending(batches["all stay"])
    net = (
        RecurrentNet(world.catalog, world.behaviours, NetConfig(hidden=64), len(world.behaviours)).to(options.device).eval()
    )
    rewards = world.behaviours.reward_table(options.device)
    print(f"{count:,} sessions of 20 steps, hidden 64, {options.device}")
    for title, make in (("labels", label_work), ("roll-outs", rollout_work)):
        seconds = best_of(
            options.turns, {name: make(net, rewards, batch) for name, batch in batches.items()}, options.device
        )
        stay, leave = seconds.values()
        print(f"{title:10} {stay * 1e3:9.1f} ms, with leaving {leave * 1e3:9.1f} ms, ratio {leave / stay:.2f}")


def label_work(net: RecurrentNet, rewards: torch.Tensor, batch: SessionTensors) -> Callable[[], object]:
    """Compute the labels of MBCAL, sessions completed first."""
    return lambda: counterfactual_labels(net, rewards, batch, 1.0)


def rollout_work(net: RecurrentNet, rewards: torch.Tensor, batch: SessionTensors) -> Callable[[], object]:  # noqa: ARG001 - called like `label_work`
    """Serve the users by a random policy, in the network as an environment."""
    environment = ModelEnvironment(net, batch.catalog, batch.behaviour_set)
    return lambda: rollout(RandomScorer(0), environment, batch, seed=1)


if __name__ == "__main__":
    main()
