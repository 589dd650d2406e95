"""Cells side by side: on this machine, or wherever an engine takes them.

Here, on a CPU in several processes: each has its own interpreter, one thread, and dies with its parent. On a GPU in several
threads of one process, each with its own stream: the kernels of a small network leave most of a GPU idle, and those of
different streams run at the same time, while processes would take turns; sessions and simulators lie there once for all.

On an engine a cell is a task: it finds everything in the run's folder, which all workers resources, and leaves its result there.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources, emit
from mbcal.errors import MbcalError, TrainingError
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.progress import SILENT, Progress


class RunObserver(Protocol):
    """Who is told how cells get on."""

    def phase(self, cell: Cell, title: str, total: int | None) -> None:
        """A cell begins something."""

    def advance(self, cell: Cell, amount: int) -> None:
        """… and gets on with it."""

    def done(self, cell: Cell) -> None:
        """A result is on disk."""


class _Told:
    """Progress of one cell, passed on."""

    def __init__(self, cell: Cell, tell: Callable[[tuple[Any, ...]], None]) -> None:
        self._cell, self._tell = cell, tell

    def phase(self, title: str, total: int | None = None) -> None:
        self._tell(("phase", self._cell, title, total))

    def advance(self, amount: int) -> None:
        self._tell(("advance", self._cell, amount))


SAY_EVERY = 0.5
"""Seconds: how often a cell far away says how far it is."""


class _Said:
    """Progress of a task, said to whoever listens to its engine; steps are added up in between."""

    def __init__(self) -> None:
        self._steps, self._last = 0, 0.0

    def phase(self, title: str, total: int | None = None) -> None:
        self._steps = 0
        emit(("phase", title, total))

    def advance(self, amount: int) -> None:
        self._steps += amount
        if time.monotonic() - self._last > SAY_EVERY:
            emit(("advance", self._steps))
            self._steps, self._last = 0, time.monotonic()


def prepare_on(engine: Engine, run: Run, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT) -> None:
    """`run.prepare()` as a task of the engine's; every worker must see the run's folder and its data."""
    engine.require_shared_file(run.folder / "settings.json")
    if run.settings.data != "newsfeed":
        engine.require_shared_file(Path(run.settings.data) / "manifest.json")

    def on_message(_: int, event: tuple[Any, ...]) -> None:
        getattr(progress, event[0])(*event[1:])

    list(engine.map_unordered(_prepare, [_place(run, resources)], resources, on_message))


def execute_on(
    engine: Engine, run: Run, cells: list[Cell], watch: RunObserver, resources: WorkerResources = ONE_CORE
) -> None:
    """Every cell as a task of the engine's. Where a worker is lost, its cell goes on from its own checkpoint."""

    def on_message(number: int, event: tuple[Any, ...]) -> None:
        getattr(watch, event[0])(cells[number], *event[1:])

    for number, _ in engine.map_unordered(
        _execute, [(_place(run, resources), cell) for cell in cells], resources, on_message
    ):
        watch.done(cells[number])
    run.sweep()


def _place(run: Run, resources: WorkerResources) -> tuple[str, str]:
    """The run's folder, and the device on which a worker with this share computes."""
    return str(run.folder.resolve()), "cuda" if resources.gpus else "cpu"


def _prepare(place: tuple[str, str]) -> None:
    Run.open(*place).prepare(_Said())


def _execute(task: tuple[tuple[str, str], Cell]) -> None:
    (folder, device), cell = task
    _opened(folder, device, (Path(folder) / "settings.json").stat().st_mtime_ns).execute(cell, _Said())


@lru_cache(maxsize=1)
def _opened(folder: str, device: str, _: int) -> Run:
    """Sessions and simulators are read once by a worker, however many cells it runs of one run, told by when it was made."""
    return Run.open(folder, device)


def execute_all(run: Run, cells: list[Cell], workers: int, watch: RunObserver) -> None:
    """Every cell; in this process when one worker is asked for."""

    def tell(event: tuple[Any, ...]) -> None:
        getattr(watch, event[0])(*event[1:])

    if workers <= 1:
        for cell in cells:
            run.execute(cell, _Told(cell, tell))
            watch.done(cell)
        return
    if run.device.startswith("cuda"):
        _in_threads(run, cells, workers, tell)
    else:
        _in_processes(run, cells, workers, tell)


class _StoppedError(Exception):
    """Another cell failed: this one has no reason to go on."""


def _in_threads(run: Run, cells: list[Cell], workers: int, tell: Callable[[tuple[Any, ...]], None]) -> None:
    context = run.context
    context.train_tensors, context.test_tensors  # noqa: B018 - made once, before threads share them
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    events: queue.Queue[tuple[Any, ...]] = queue.Queue()
    stop = threading.Event()
    for cell in cells:
        waiting.put(cell)

    def say(event: tuple[Any, ...]) -> None:
        if stop.is_set():
            raise _StoppedError
        events.put(event)

    def work() -> None:
        try:
            own = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(own), contextlib.suppress(queue.Empty):
                while True:
                    cell = waiting.get_nowait()
                    run.execute(cell, _Told(cell, say))
                    emit(("done", cell))
        except _StoppedError:
            pass
        except MbcalError as error:
            events.put(("failed", type(error), str(error), None))
        except Exception:
            events.put(("failed", RuntimeError, "", traceback.format_exc()))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(cells)))]
    for thread in threads:
        thread.start()
    try:
        _listen([], events, len(cells), tell)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _in_processes(run: Run, cells: list[Cell], workers: int, tell: Callable[[tuple[Any, ...]], None]) -> None:
    context = multiprocessing.get_context("spawn")
    waiting, events = context.SimpleQueue(), context.Queue()
    for waits in [*cells, *[None] * workers]:
        waiting.put(waits)
    arguments = (str(run.folder), run.device, waiting, events, os.getpid())
    processes = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(min(workers, len(cells)))]
    _start(processes)
    try:
        _listen(processes, events, len(cells), tell)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _start(processes: Sequence[BaseProcess]) -> None:
    """With one thread each: cells are many small operations, which threads only hinder."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        for process in processes:
            process.start()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _listen(processes: Sequence[BaseProcess], events: Any, cells: int, tell: Callable[[tuple[Any, ...]], None]) -> None:
    done = 0
    while done < cells:
        try:
            event = events.get(timeout=1.0)
        except queue.Empty:
            for process in processes:
                if process.exitcode not in (None, 0):
                    raise TrainingError(
                        f"a worker died (exit code {process.exitcode}; out of memory, perhaps); resume the run, "
                        "with fewer workers if it happens again"
                    ) from None
            continue
        if event[0] == "failed":
            kind, message, trace = event[1:]
            if trace is not None:
                raise RuntimeError(f"a worker failed:\n{trace}")
            raise kind(message)
        done += event[0] == "done"
        tell(event)


def _work(folder: str, device: str, waiting: Any, events: Any, parent: int) -> None:
    """One worker: cells until there are none."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.SIG_IGN)
    _die_with(parent)
    try:
        run = Run.open(Path(folder), device)
        while (cell := waiting.get()) is not None:
            cell = Cell(*cell)
            run.execute(cell, _Told(cell, events.put))
            events.put(("done", cell))
    except MbcalError as error:
        events.put(("failed", type(error), str(error), None))
    except Exception:
        events.put(("failed", RuntimeError, "", traceback.format_exc()))


def _die_with(parent: int) -> None:
    """On Linux the kernel ends us with our parent, even by kill -9; elsewhere daemon processes end with a tidy parent."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it was already gone
            os._exit(1)
