"""Costs and gains of Ray on one machine: start-up, a task, a cell of an experiment, memory, and more workers.

    python benchmarks/scale.py [--cells 8] [--workers 1 2 4] [--repeats 2]

The same cells run in this process, in two processes and on Ray clusters of 1, 2, … workers, alternating; the best of
`--repeats` counts. *Cold* is the first run on fresh workers, which import torch and read the run; *warm* is the second.
More workers than the machine has cores share the cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import psutil

from mbcal.distributed.engines.ray import RayEngine
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.evaluation.experiment.workers import execute_all, execute_on

TASKS = 300
"""Empty tasks that are timed together."""


class Silent:
    """Ignores all progress."""

    def phase(self, cell: Cell, title: str, total: int | None) -> None: ...
    def advance(self, cell: Cell, amount: int) -> None: ...
    def done(self, cell: Cell) -> None: ...


def seconds_of(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def ray_memory() -> dict[str, float]:
    """Return the private memory of Ray in MiB: the sum of the cluster's own processes, and the largest worker."""
    system, workers = 0.0, [0.0]
    for process in psutil.Process().children(recursive=True):
        private = process.memory_full_info().uss / 2**20
        if process.name().startswith("ray::_do") or process.name() == "ray::IDLE":
            workers.append(private)
        else:
            system += private
    return {"system": system, "worker": max(workers)}


def fresh_copy(run: Run, folder: Path) -> Run:
    """Return a copy of a run of which no cell is done."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run.folder, folder)
    return Run.open(folder, "cpu")


def measure_ray(run: Run, folder: Path, workers: int) -> dict[str, float]:
    """Return seconds and MiB of one Ray cluster, from its start to its end."""
    engine = RayEngine(workers)
    measured = {"start": seconds_of(engine.__enter__)}
    try:
        measured["first"] = seconds_of(lambda: list(engine.map_unordered(abs, range(1))))
        measured["task"] = seconds_of(lambda: list(engine.map_unordered(abs, range(TASKS)))) / TASKS
        for heat in ("cold", "warm"):
            copy = fresh_copy(run, folder)
            measured[heat] = seconds_of(lambda copy=copy: execute_on(engine, copy, copy.missing, Silent()))
        measured |= ray_memory()
    finally:
        measured["stop"] = seconds_of(engine.__exit__)
    return measured


def best(repeats: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(repeat[name] for repeat in repeats) for name in repeats[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    settings: dict[str, Any] = {"agents": ["gru4rec"], "seeds": options.cells, "protocols": ["batch"], "judges": ["lstm"]}
    settings |= {"training": {"epochs": 4, "validation": 0.0}, "simulator": {"training": {"epochs": 1}}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Run.create(folder / "run", experiment_config(settings, "quick"), "cpu")
        run.prepare()
        cells = len(run.missing)
        local: dict[int, list[float]] = {1: [], 2: []}
        ray: dict[int, list[dict[str, float]]] = {workers: [] for workers in options.workers}
        execute_all(fresh_copy(run, folder / "local"), run.missing[-1:], 1, Silent())  # imports, before anything is timed
        for _ in range(options.repeats):
            for workers, seconds in local.items():
                copy = fresh_copy(run, folder / "local")
                copy.context  # noqa: B018 - cached here; several processes read it themselves
                seconds.append(
                    seconds_of(lambda copy=copy, workers=workers: execute_all(copy, copy.missing, workers, Silent()))
                )
            for workers, repeats in ray.items():
                repeats.append(measure_ray(run, folder / "ray", workers))
    by_workers = {workers: best(repeats) for workers, repeats in ray.items()}
    print(f"{cells} cells; {os.cpu_count()} cores; Ray {sys.modules['ray'].__version__}\n")
    print("| variant | cold s | warm s | s per cell | speed-up | efficiency |\n|---|---|---|---|---|---|")
    for workers, seconds in local.items():
        kind = "this process" if workers == 1 else f"{workers} processes"
        print(f"| {kind} | | {min(seconds):.1f} | {min(seconds) / cells:.2f} | {min(local[1]) / min(seconds):.2f} | |")
    base = by_workers[options.workers[0]]["warm"] * options.workers[0]
    for workers, measured in by_workers.items():
        gain = base / measured["warm"]
        row = f"| Ray, {workers} workers | {measured['cold']:.1f} | {measured['warm']:.1f} | {measured['warm'] / cells:.2f}"
        print(f"{row} | {gain:.2f} | {gain / workers:.0%} |")
    print("\n| workers | start s | first task s | ms per task | stop s | cluster MiB | largest worker MiB |")
    print("|---|---|---|---|---|---|---|")
    for workers, measured in by_workers.items():
        row = f"| {workers} | {measured['start']:.1f} | {measured['first']:.1f} | {1000 * measured['task']:.1f}"
        print(f"{row} | {measured['stop']:.1f} | {measured['system']:.0f} | {measured['worker']:.0f} |")
    if 1 in by_workers:
        more = 1000 * (by_workers[1]["warm"] - min(local[1])) / cells
        print(f"\nA cell on one worker costs {more:.0f} ms more than in this process.")


if __name__ == "__main__":
    main()
