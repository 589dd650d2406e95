"""A round of Growing Batch-RL at the size of the paper on one GPU: seconds by phase, memory, and cells side by side.

    python benchmarks/gpu.py                               MBCAL and DQN, 256,000 sessions collected and tested a round
    python benchmarks/gpu.py --agents mbcal --rounds 40    the forty rounds of the paper
    python benchmarks/gpu.py --side-by-side 1 2 4 8        seeds trained at the same time, each on a stream of its own
    MBCAL_FUSED=0 python benchmarks/gpu.py                 without the Triton kernels; --eager: without CUDA graphs

The data is random and of Netflix's shape (17,770 items, 6 behaviours, histories and sessions of 20 steps, 40 candidates),
the simulator an LSTM that has learned nothing: speed does not depend on what weights say.
"""

from __future__ import annotations

import argparse
import json
import threading
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

ITEMS, HORIZON, KINDS, USERS = 17_770, 20, 6, 40_000
FLOOR = 0.020
"""Seconds that the special functions of a roll-out of 256,000 sessions take an H200 at the least."""


class Clock:
    """Progress that measures: the seconds between the beginnings of phases."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(list)
        self._title, self._began = "", 0.0

    def phase(self, title: str, total: int | None = None) -> None:
        del total
        torch.cuda.synchronize()
        now = time.perf_counter()
        if self._title:
            self.spent[self._title].append(now - self._began)
        self._title, self._began = title.split(": ")[-1] if title.startswith("round") else title.split(":")[0], now

    def advance(self, amount: int) -> None:
        """Nothing to show."""


def random_sessions(count: int, catalog: Catalog, seed: int) -> Sessions:
    draw = np.random.default_rng(seed)
    popular = ITEMS * draw.random(2 * count * HORIZON) ** 3  # some items come up far more often than others
    items = (popular + 2).astype(np.int32).reshape(2, count, HORIZON)
    said = draw.integers(0, KINDS, (2, count, HORIZON)).astype(np.uint8)
    full = np.full(count, HORIZON, np.int32)
    user = draw.integers(0, USERS, count).astype(np.int32)
    labels = Behaviours(tuple(map(str, range(KINDS))), tuple(map(float, range(KINDS))))
    return Sessions(catalog, labels, items[0], said[0], full, user, items[1], said[1], full)


def context_of(sessions: int, rounds: int) -> ExperimentContext:
    catalog = Catalog(tuple(map(str, range(ITEMS))))
    train, test = random_sessions(sessions, catalog, 0), random_sessions(sessions, catalog, 1)
    net = RecurrentNet(catalog, train.behaviour_set, NetConfig("lstm"), KINDS).cuda()
    environment = ModelEnvironment(net, catalog, train.behaviour_set)
    settings = experiment_config({"rounds": rounds, "round_sessions": sessions, "test_sessions": sessions}, "paper")
    return ExperimentContext(settings, train, test, {"lstm": environment}, (), "cuda")


def one_agent(context: ExperimentContext, name: str) -> dict[str, object]:
    torch.cuda.reset_peak_memory_stats()
    clock = Clock()
    began = time.perf_counter()
    growing_batch(context, name, 0, progress=clock)
    clock.phase("end")
    whole = time.perf_counter() - began
    rounds = context.settings.rounds
    spent = {title: seconds[2:] for title, seconds in clock.spent.items() if len(seconds) == rounds}  # after warm-up
    usual = {title: float(np.median(seconds)) for title, seconds in spent.items()}
    return {
        "agent": name,
        "rounds": rounds,
        "seconds": round(whole, 2),
        "seconds a round": round(sum(map(sum, spent.values())) / (rounds - 2), 3),
        "phases": {title: round(seconds, 4) for title, seconds in usual.items()},
        "roll-out of the floor": round(FLOOR * context.settings.round_sessions / 256_000 / usual["collect"], 2),
        "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def side_by_side(context: ExperimentContext, name: str, count: int) -> dict[str, object]:
    """As many seeds at once, each in a thread with a stream of its own."""
    torch.cuda.reset_peak_memory_stats()

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            growing_batch(context, name, seed)

    context.train_tensors, context.test_tensors  # noqa: B018 - made once, before threads share them
    torch.cuda.synchronize()
    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / (count * context.settings.rounds)
    memory = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return {"agent": name, "at once": count, "seconds a round and seed": round(seconds, 3), "GiB": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["mbcal", "dqn"])
    parser.add_argument("--sessions", type=int, default=256_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side-by-side", type=int, nargs="*", default=[])
    parser.add_argument("--eager", action="store_true", help="Run every update as it is, without CUDA graphs.")
    parser.add_argument("--out", type=Path, help="Also append the lines to this file.")
    options = parser.parse_args()
    if options.eager:
        GraphedStep.__call__ = lambda self: self._step()  # type: ignore[method-assign]  # what --eager is for
    context = context_of(options.sessions, options.rounds)
    said = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "sessions": options.sessions}
    lines: list[dict[str, object]] = [said]
    print(json.dumps(said), flush=True)
    for name in options.agents:
        for count in options.side_by_side or [0]:
            lines.append(side_by_side(context, name, count) if count else one_agent(context, name))
            print(json.dumps(lines[-1]), flush=True)
    if options.out:
        with options.out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
