"""Run the cells of an experiment side by side: on this machine, or on the workers of an engine.

::

    execute_all    one worker    one after another, in this process
                   several       processes with one thread each; they die with this process
    execute_on     an engine     one task per cell; tasks find everything in the run's folder, which all workers share

On a GPU, kernels of small networks leave most of the device idle; under NVIDIA's MPS those of several processes run at the
same time, without it they take turns. Threads of one process would share more, but cuDNN fails in them (decision 9).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources, emit
from mbcal.errors import MbcalError, TrainingError
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.progress import SILENT, Progress

Event = tuple[Any, ...]
"""The name of an observer's method and its arguments; or ("failed", exception type, message, traceback or None)."""
Send = Callable[[Event], None]

MESSAGE_INTERVAL = 0.5
"""Seconds between two messages about the steps of a task."""
CHECK_INTERVAL = 1.0
"""Seconds after which a worker process that died is noticed."""


class RunObserver(Protocol):
    """Receives the progress of cells. All methods are called from the thread that runs the experiment."""

    def begin(self, cells: Sequence[Cell]) -> None:
        """The run is prepared, and these cells will run. Called by `run_experiment` alone."""

    def phase(self, cell: Cell, title: str, total: int | None) -> None:
        """A cell begins a phase; `total` is its size if it is known."""

    def advance(self, cell: Cell, amount: int) -> None:
        """That much more of the cell's phase is done."""

    def done(self, cell: Cell) -> None:
        """The cell's result is on disk."""


class SilentObserver:
    """An observer that does nothing."""

    def begin(self, cells: Sequence[Cell]) -> None: ...
    def phase(self, cell: Cell, title: str, total: int | None) -> None: ...
    def advance(self, cell: Cell, amount: int) -> None: ...
    def done(self, cell: Cell) -> None: ...


# ---- on an engine


def prepare_on(engine: Engine, run: Run, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT) -> None:
    """Prepare a run as a task of an engine.

    Args:
        engine: Whose workers compute. All of them must see the run's folder and its data under the same paths.
        run: The run.
        resources: What the worker takes of a machine.
        progress: Notified of epochs and sessions.

    Raises:
        OptionError: If a worker does not see the run's folder or its data.
    """
    engine.require_shared_file(run.folder / "settings.json")
    if not run.settings.is_generated:
        engine.require_shared_file(Path(run.settings.data) / "manifest.json")

    def on_message(_: int, event: Event) -> None:
        getattr(progress, event[0])(*event[1:])

    list(engine.map_unordered(_prepare_task, [_location(run, resources)], resources, on_message))


def execute_on(
    engine: Engine, run: Run, cells: list[Cell], observer: RunObserver, resources: WorkerResources = ONE_CORE
) -> None:
    """Run cells as tasks of an engine. The cell of a worker that is lost is resumed from its checkpoint.

    Args:
        engine: Whose workers compute.
        run: A prepared run.
        cells: The cells to run.
        observer: Notified of their progress.
        resources: What each worker takes of a machine; with a share of a GPU it computes there.
    """

    def on_message(number: int, event: Event) -> None:
        getattr(observer, event[0])(cells[number], *event[1:])

    tasks = [(_location(run, resources), cell) for cell in cells]
    for number, _ in engine.map_unordered(_execute_task, tasks, resources, on_message):
        observer.done(cells[number])
    run.sweep()


def _location(run: Run, resources: WorkerResources) -> tuple[str, str]:
    """The run's folder, and the device on which a worker with these resources computes."""
    return str(run.folder.resolve()), "cuda" if resources.gpus else "cpu"


def _prepare_task(location: tuple[str, str]) -> None:
    Run.open(*location).prepare(_TaskProgress())


def _execute_task(task: tuple[tuple[str, str], Cell]) -> None:
    (folder, device), cell = task
    created_at = (Path(folder) / "settings.json").stat().st_mtime_ns
    _open_run(folder, device, created_at).execute(cell, _TaskProgress())


@lru_cache(maxsize=1)
def _open_run(folder: str, device: str, _: int) -> Run:
    """Open a run once per worker, so that its cells share sessions and simulators; a new run of that name is opened anew."""
    return Run.open(folder, device)


class _TaskProgress:
    """Progress of a task, sent to the engine's listener; steps are accumulated between messages."""

    def __init__(self) -> None:
        self._steps, self._last = 0, 0.0

    def phase(self, title: str, total: int | None = None) -> None:
        self._steps = 0
        emit(("phase", title, total))

    def advance(self, amount: int) -> None:
        self._steps += amount
        if time.monotonic() - self._last > MESSAGE_INTERVAL:
            emit(("advance", self._steps))
            self._steps, self._last = 0, time.monotonic()


# ---- on this machine


def execute_all(run: Run, cells: list[Cell], workers: int, observer: RunObserver) -> None:
    """Run cells on this machine.

    Args:
        run: A prepared run.
        cells: The cells to run.
        workers: Cells at a time, each in a process of its own; with 1 they run in this process. Processes share a GPU well
            only under NVIDIA's MPS (docs/experiments.md).
        observer: Notified of their progress.

    Raises:
        TrainingError: If a worker process dies. What is done stays; resume the run.
    """

    def notify(event: Event) -> None:
        getattr(observer, event[0])(*event[1:])

    if workers <= 1:
        for cell in cells:
            run.execute(cell, _CellProgress(cell, notify))
            observer.done(cell)
    else:
        _run_processes(run, cells, workers, notify)


class _CellProgress:
    """Progress of one cell, sent as events."""

    def __init__(self, cell: Cell, send: Send) -> None:
        self._cell, self._send = cell, send

    def phase(self, title: str, total: int | None = None) -> None:
        self._send(("phase", self._cell, title, total))

    def advance(self, amount: int) -> None:
        self._send(("advance", self._cell, amount))


def _failure(error: Exception) -> Event:
    """A user's mistake by its message, a bug by its traceback."""
    if isinstance(error, MbcalError):
        return "failed", type(error), str(error), None
    return "failed", RuntimeError, "", traceback.format_exc()


def _run_processes(run: Run, cells: list[Cell], workers: int, notify: Send) -> None:
    context = multiprocessing.get_context("spawn")
    waiting, events = context.SimpleQueue(), context.Queue()
    for cell_or_end in [*cells, *[None] * workers]:
        waiting.put(cell_or_end)
    arguments = (str(run.folder), run.device, waiting, events, os.getpid())
    processes = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(min(workers, len(cells)))]
    _start_single_threaded(processes)
    try:
        _forward_events(events, len(cells), notify, processes)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _start_single_threaded(processes: Sequence[BaseProcess]) -> None:
    """Start processes with one thread each: cells are many small operations, which more threads only slow down."""
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


def _forward_events(events: Any, cells: int, notify: Send, processes: Sequence[BaseProcess] = ()) -> None:
    """Pass events on until all cells are done; raise what a worker raised, or if a worker process died."""
    done, checked_at = 0, time.monotonic()
    while done < cells:
        try:
            event = events.get(timeout=CHECK_INTERVAL)
        except queue.Empty:
            event = None
        if event is None or time.monotonic() - checked_at > CHECK_INTERVAL:  # other workers may send events all the time
            _require_alive(processes)
            checked_at = time.monotonic()
        if event is None:
            continue
        if event[0] == "failed":
            kind, message, trace = event[1:]
            raise kind(message if trace is None else f"a worker failed:\n{trace}")
        done += event[0] == "done"
        notify(event)


def _require_alive(processes: Sequence[BaseProcess]) -> None:
    """Raise if a worker process died."""
    for process in processes:
        if process.exitcode not in (None, 0):
            problem = f"a worker died (exit code {process.exitcode}; out of memory, perhaps)"
            raise TrainingError(f"{problem}; resume the run, with fewer workers if it happens again")


def _work(folder: str, device: str, waiting: Any, events: Any, parent: int) -> None:
    """One worker process: run cells until there are none left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.SIG_IGN)
    _die_with(parent)
    try:
        run = Run.open(Path(folder), device)
        while (cell := waiting.get()) is not None:
            cell = Cell(*cell)
            run.execute(cell, _CellProgress(cell, events.put))
            events.put(("done", cell))
    except Exception as error:
        events.put(_failure(error))


def _die_with(parent: int) -> None:
    """On Linux the kernel ends this process with its parent, even by kill -9; elsewhere daemon processes end with it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it was already gone
            os._exit(1)
