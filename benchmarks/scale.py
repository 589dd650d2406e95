"""What Ray costs and brings on one machine: start-up, a task, a cell of an experiment, memory, and more workers.

python benchmarks/scale.py [--cells 8] [--workers 1 2 4] [--repeats 2]

The same cells run here, in processes and on Ray clusters of 1, 2, … workers, in turns, the best of `--repeats` counted.
*Cold* is the first time on fresh workers, which import torch and read the run; *warm* the second. Beyond the machine's cores
workers only share them.
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


class Silent:
    def phase(self, cell: Cell, title: str, total: int | None) -> None: ...
    def advance(self, cell: Cell, amount: int) -> None: ...
    def done(self, cell: Cell) -> None: ...


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def megabytes() -> dict[str, float]:
    """Private memory of this process's Ray, in MiB: the cluster's own processes, and a worker at its largest."""
    system, workers = 0.0, [0.0]
    for process in psutil.Process().children(recursive=True):
        private = process.memory_full_info().uss / 2**20
        if process.name().startswith("ray::_do") or process.name() == "ray::IDLE":
            workers.append(private)
        else:
            system += private
    return {"system": system, "worker": max(workers)}


def again(run: Run, folder: Path) -> Run:
    """The same run with no cell done."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run.folder, folder)
    return Run.open(folder, "cpu")


def on_ray(run: Run, folder: Path, workers: int) -> dict[str, float]:
    engine = RayEngine(workers)
    found = {"start": timed(engine.__enter__)}
    try:
        found["first"] = timed(lambda: list(engine.map_unordered(abs, range(1))))
        found["task"] = timed(lambda: list(engine.map_unordered(abs, range(TASKS)))) / TASKS
        for heat in ("cold", "warm"):
            mine = again(run, folder)
            found[heat] = timed(lambda mine=mine: execute_on(engine, mine, mine.missing, Silent()))
        found |= megabytes()
    finally:
        found["stop"] = timed(engine.__exit__)
    return found


def best(ways: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(way[name] for way in ways) for name in ways[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    told: dict[str, Any] = {"agents": ["gru4rec"], "seeds": options.cells, "protocols": ["batch"], "judges": ["lstm"]}
    told |= {"epochs": 4, "simulator": {"training": {"epochs": 1}}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Run.create(folder / "run", experiment_config(told, "quick"), "cpu")
        run.prepare()
        cells = len(run.missing)
        here: dict[int, list[float]] = {1: [], 2: []}
        ray: dict[int, list[dict[str, float]]] = {workers: [] for workers in options.workers}
        execute_all(again(run, folder / "here"), run.missing[-1:], 1, Silent())  # imports and first times
        for _ in range(options.repeats):
            for workers, found in here.items():
                mine = again(run, folder / "here")
                mine.context  # noqa: B018 - one process reads it once; several read it themselves
                found.append(timed(lambda mine=mine, workers=workers: execute_all(mine, mine.missing, workers, Silent())))
            for workers, measured in ray.items():
                measured.append(on_ray(run, folder / "ray", workers))
    whole = {workers: best(measured) for workers, measured in ray.items()}
    print(f"{cells} cells; {os.cpu_count()} cores; Ray {sys.modules['ray'].__version__}\n")
    print("| way | cold s | warm s | a cell s | speed-up | efficiency |\n|---|---|---|---|---|---|")
    for workers, seconds in here.items():
        kind = "this process" if workers == 1 else f"{workers} processes"
        print(f"| {kind} | | {min(seconds):.1f} | {min(seconds) / cells:.2f} | {min(here[1]) / min(seconds):.2f} | |")
    base = whole[options.workers[0]]["warm"] * options.workers[0]
    for workers, found in whole.items():
        gain = base / found["warm"]
        row = f"| Ray, {workers} workers | {found['cold']:.1f} | {found['warm']:.1f} | {found['warm'] / cells:.2f}"
        print(f"{row} | {gain:.2f} | {gain / workers:.0%} |")
    print("\n| workers | start s | first task s | a task ms | stop s | cluster MiB | a worker MiB |")
    print("|---|---|---|---|---|---|---|")
    for workers, found in whole.items():
        row = f"| {workers} | {found['start']:.1f} | {found['first']:.1f} | {1000 * found['task']:.1f} | {found['stop']:.1f}"
        print(f"{row} | {found['system']:.0f} | {found['worker']:.0f} |")
    if 1 in whole:
        more = 1000 * (whole[1]["warm"] - min(here[1])) / cells
        print(f"\nA cell on one worker costs {more:.0f} ms more than in this process.")


if __name__ == "__main__":
    main()
