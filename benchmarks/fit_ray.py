"""One fit on 1, 2, … workers of a Ray cluster beside the same fit in one process: start-up, rates, memory, equal losses.

python benchmarks/fit_ray.py [--sessions 20000] [--workers 1 2] [--items 2000] [--embedding 32]

A worker's CPU seconds tell what it had to do, wherever the machine was busy with something else; the wall clock tells what
one waits for.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mbcal import MBCALConfig, NetConfig, NewsfeedConfig, Store, TrainingConfig, prepare_newsfeed
from mbcal.agents.fit_job import FitJob
from mbcal.config import to_dict
from mbcal.distributed.engines.local import LocalEngine
from mbcal.distributed.engines.ray import RayEngine
from mbcal.distributed.group import Group
from mbcal.distributed.worker_slice import all_gather_ints


@dataclass(frozen=True)
class Timed:
    """A fit that tells when it began, and of each worker the seconds, CPU seconds and peak memory it took."""

    fit: FitJob

    def __call__(self, group: Group) -> dict[str, Any]:
        TrainingConfig().create_optimiser([nn.Parameter(torch.zeros(1))])  # what torch imports then is no part of a fit
        began, wall, cpu = time.time(), time.perf_counter(), time.process_time()
        curves = self.fit(group)
        spent = [1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        told = all_gather_ints(group, *map(int, spent), peak).tolist()
        return {"began": began, "curves": curves, "workers": told}


def describe(name: str, made: dict[str, Any], sessions: int, asked: float) -> float:
    """One line; returns the sessions a second."""
    wall, cpu = (max(worker[column] for worker in made["workers"]) / 1000 for column in (0, 1))
    peak = max(worker[2] for worker in made["workers"]) / 1024
    begun = f"begun after {made['began'] - asked:.1f} s, " if asked else ""
    took = f"{begun}{wall:.1f} s, {sessions / wall:,.0f} sessions/s"
    print(f"{name}: {took}; at most {cpu:.1f} CPU s and {peak:,.0f} MB a worker", flush=True)
    return sessions / cpu


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sessions", type=int, default=20_000)
    options.add_argument("--items", type=int, default=2_000)
    options.add_argument("--embedding", type=int, default=32)
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = options.parse_args()
    how = TrainingConfig(epochs=given.epochs, batch=given.batch, patience=given.epochs)
    config = to_dict(MBCALConfig(net=NetConfig(embedding=given.embedding), training=how))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        prepare_newsfeed(root / "feed", NewsfeedConfig(sessions=given.sessions, items=given.items))
        taught = 2 * given.epochs * Store.open(root / "feed").n_sessions("train")  # two networks

        def job(name: str) -> Timed:
            return Timed(FitJob(root / "feed", root / name, root / f".{name}", "mbcal", config, device="cpu"))

        local = LocalEngine().run_spmd(job("local"))
        alone = describe("one process", local, taught, 0)
        for workers in given.workers:
            asked = time.time()
            with RayEngine(workers) as engine:
                print(f"{workers} workers: a cluster of this machine's own after {time.time() - asked:.1f} s", flush=True)
                asked = time.time()
                made = engine.run_spmd(job(f"ray{workers}"))
                rate = describe(f"{workers} workers", made, taught, asked)
            gaps = [
                abs(mine[key] - theirs[key])
                for name, curve in local["curves"].items()
                for mine, theirs in zip(curve, made["curves"][name], strict=True)
                for key in mine
            ]
            print(
                f"  {rate / alone:.2f} times the work of one process a CPU second; losses differ by at most {max(gaps):.1e}"
            )


if __name__ == "__main__":
    main()
