"""One fit on 1, 2, … workers of a Ray cluster beside the same fit in one process: start-up, rates, memory, equal losses.

    python benchmarks/fit_ray.py [--sessions 20000] [--workers 1 2] [--items 2000] [--embedding 32]

CPU seconds measure the work of a worker, also on a machine that is busy with something else; wall seconds measure the wait.
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

from mbcal import MBCALConfig, NetConfig, NewsfeedConfig, TrainingConfig, prepare_newsfeed
from mbcal.agents.fit_job import FitJob
from mbcal.config import to_dict
from mbcal.distributed.engines.local import LocalEngine
from mbcal.distributed.engines.ray import RayEngine
from mbcal.distributed.group import Group
from mbcal.distributed.worker_slice import all_gather_ints


@dataclass(frozen=True)
class TimedFit:
    """A fit job that also returns when it began, and the milliseconds, CPU milliseconds and peak KiB of every worker."""

    fit: FitJob

    def __call__(self, group: Group) -> dict[str, Any]:
        TrainingConfig().create_optimiser([nn.Parameter(torch.zeros(1))])  # imports parts of torch before the clock starts
        began, wall, cpu = time.time(), time.perf_counter(), time.process_time()
        curves = self.fit(group)
        spent = [1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        workers = all_gather_ints(group, *map(int, spent), peak).tolist()
        return {"began": began, "curves": curves, "workers": workers}


def describe(name: str, result: dict[str, Any], sessions: int, submitted: float | None = None) -> float:
    """Print one line about a fit of so many sessions; return sessions per CPU second of the slowest worker."""
    wall, cpu = (max(worker[column] for worker in result["workers"]) / 1000 for column in (0, 1))
    peak = max(worker[2] for worker in result["workers"]) / 1024
    start = "" if submitted is None else f"began after {result['began'] - submitted:.1f} s, "
    print(
        f"{name}: {start}{wall:.1f} s, {sessions / wall:,.0f} sessions/s; "
        f"at most {cpu:.1f} CPU s and {peak:,.0f} MiB per worker",
        flush=True,
    )
    return sessions / cpu


def largest_gap(curves: dict[str, Any], others: dict[str, Any]) -> float:
    """Return the largest difference between the losses of two fits."""
    return max(
        abs(epoch[key] - other[key])
        for name, curve in curves.items()
        for epoch, other in zip(curve, others[name], strict=True)
        for key in epoch
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--embedding", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    training = TrainingConfig(epochs=options.epochs, batch=options.batch, patience=options.epochs)
    config = to_dict(MBCALConfig(net=NetConfig(embedding=options.embedding), training=training))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = prepare_newsfeed(folder / "feed", NewsfeedConfig(sessions=options.sessions, items=options.items))
        sessions = 2 * options.epochs * store.n_sessions("train")  # two networks

        def job(out: str) -> TimedFit:
            return TimedFit(FitJob(folder / "feed", folder / out, folder / f".{out}", "mbcal", config, device="cpu"))

        local = LocalEngine().run_spmd(job("local"))
        local_rate = describe("one process", local, sessions)
        for workers in options.workers:
            began = time.time()
            with RayEngine(workers) as engine:
                print(f"{workers} workers: the cluster started in {time.time() - began:.1f} s", flush=True)
                submitted = time.time()
                result = engine.run_spmd(job(f"ray{workers}"))
                rate = describe(f"{workers} workers", result, sessions, submitted)
            gap = largest_gap(local["curves"], result["curves"])
            print(
                f"  {rate / local_rate:.2f} times the work of one process per CPU second; losses differ by at most {gap:.1e}"
            )


if __name__ == "__main__":
    main()
