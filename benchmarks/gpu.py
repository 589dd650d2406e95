"""Rounds of Growing Batch-RL at the size of the paper on one GPU: seconds by phase, and memory.

    python benchmarks/gpu.py                               MBCAL and DQN, 256,000 sessions collected and tested per round
    python benchmarks/gpu.py --agents mbcal --rounds 40    the forty rounds of the paper
    MBCAL_FUSED=0 python benchmarks/gpu.py                 without the Triton kernels; --eager: without CUDA graphs

The data is random and of Netflix's shape (17,770 items, 6 behaviours, histories and sessions of 20 steps, 40 candidates).
The simulator is an untrained LSTM, since the speed does not depend on the weights.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from mbcal import Behaviours, Catalog, NetConfig, Sessions
from mbcal.environments.model import ModelEnvironment
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.context import ExperimentContext
from mbcal.evaluation.experiment.growing_batch import growing_batch
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.cuda_graph import GraphedStep
from mbcal.types import FIRST_ITEM_ROW

ITEMS, HORIZON, BEHAVIOURS, USERS = 17_770, 20, 6, 40_000
WARM_UP_ROUNDS = 2
FLOOR = 0.020
"""Least seconds that an H200 needs for the special functions (exp, tanh) of a roll-out of 256,000 sessions."""


class PhaseTimer:
    """A `Progress` that measures the seconds from the beginning of each phase to that of the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.round_began: list[float] = []
        self._title, self._began = "", 0.0

    def phase(self, title: str, total: int | None = None) -> None:
        del total
        torch.cuda.synchronize()
        now = time.perf_counter()
        if self._title:
            self.seconds[self._title].append(now - self._began)
        if title.startswith(f"round {len(self.round_began) + 1}:"):
            self.round_began.append(now)
        self._title, self._began = title.split(": ")[-1] if title.startswith("round") else title.split(":")[0], now

    def advance(self, amount: int) -> None:
        """Ignored."""


def random_sessions(count: int, catalog: Catalog, seed: int) -> Sessions:
    """Sessions and histories of random items, some far more frequent than others."""
    generator = np.random.default_rng(seed)
    numbers = ITEMS * generator.random(2 * count * HORIZON) ** 3
    items = (numbers + FIRST_ITEM_ROW).astype(np.int32).reshape(2, count, HORIZON)
    behaviours = generator.integers(0, BEHAVIOURS, (2, count, HORIZON)).astype(np.uint8)
    length = np.full(count, HORIZON, np.int32)
    user = generator.integers(0, USERS, count).astype(np.int32)
    behaviour_set = Behaviours(tuple(map(str, range(BEHAVIOURS))), tuple(map(float, range(BEHAVIOURS))))
    return Sessions(catalog, behaviour_set, items[0], behaviours[0], length, user, items[1], behaviours[1], length)


def create_context(sessions: int, rounds: int) -> ExperimentContext:
    catalog = Catalog(tuple(map(str, range(ITEMS))))
    train, test = random_sessions(sessions, catalog, 0), random_sessions(sessions, catalog, 1)
    net = RecurrentNet(catalog, train.behaviour_set, NetConfig("lstm"), BEHAVIOURS).cuda()
    environment = ModelEnvironment(net, catalog, train.behaviour_set)
    settings = experiment_config({"rounds": rounds, "round_sessions": sessions, "test_sessions": sessions}, "paper")
    return ExperimentContext(settings, train, test, {"lstm": environment}, (), "cuda")


def measure_agent(context: ExperimentContext, name: str) -> dict[str, object]:
    """All rounds of one seed. After the warm-up: medians of phases that occur once a round, and a round's mean."""
    torch.cuda.reset_peak_memory_stats()
    timer = PhaseTimer()
    began = time.perf_counter()
    growing_batch(context, name, 0, progress=timer)
    timer.phase("end")
    total = time.perf_counter() - began
    rounds = context.settings.rounds
    by_phase = {title: seconds[WARM_UP_ROUNDS:] for title, seconds in timer.seconds.items() if len(seconds) == rounds}
    medians = {title: float(np.median(seconds)) for title, seconds in by_phase.items()}
    per_round = float(np.mean(np.diff(timer.round_began)[WARM_UP_ROUNDS:]))  # but the last, which a final test follows
    return {
        "agent": name,
        "rounds": rounds,
        "seconds": round(total, 2),
        "seconds per round": round(per_round, 3),
        "phases": {title: round(seconds, 4) for title, seconds in medians.items()},
        "floor / roll-out": round(FLOOR * context.settings.round_sessions / 256_000 / medians["collect"], 2),
        "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["mbcal", "dqn"])
    parser.add_argument("--sessions", type=int, default=256_000, help="Sessions collected, and tested, per round.")
    parser.add_argument("--rounds", type=int, default=5, help="At least four: two are the warm-up, the last is not timed.")
    parser.add_argument("--eager", action="store_true", help="Run updates without CUDA graphs.")
    parser.add_argument("--out", type=Path, help="Append the lines to this file, too.")
    options = parser.parse_args()
    if options.eager:
        GraphedStep.__call__ = lambda self: self._step()  # type: ignore[method-assign]  # what --eager is for
    context = create_context(options.sessions, options.rounds)
    lines: list[dict[str, object]] = [
        {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "sessions": options.sessions}
    ]
    print(json.dumps(lines[0]), flush=True)
    for name in options.agents:
        lines.append(measure_agent(context, name))
        print(json.dumps(lines[-1]), flush=True)
    if options.out:
        with options.out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
