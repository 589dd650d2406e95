"""Engines run jobs: in this process (`local`), or on a Ray cluster (`ray`).

An engine has two methods. `map_unordered` runs many independent tasks on whichever worker is free: cells of an experiment,
parts of a log, blocks of sessions. `run_spmd` runs one job on several workers at a time, which sum their tensors as they go:
a fit. A job is a function or class of a module and its tasks are plain data, so that both can be sent to workers. Large data
lies in folders that every worker can read, and only its path is sent.

The library uses these methods and no engine directly; engines know nothing about jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

from mbcal.distributed.group import Group
from mbcal.errors import OptionError, nearest

EngineName = Literal["local", "ray"]

Task = TypeVar("Task")
Result = TypeVar("Result")
OnMessage = Callable[[int, Any], None]
"""Called with a task's number and each message it emits."""


@dataclass(frozen=True)
class WorkerResources:
    """What one worker takes of a machine."""

    cpus: float = 1.0
    gpus: float = 0.0
    """May be a fraction, for workers that share a GPU."""


ONE_CORE = WorkerResources()


class Engine(Protocol):
    """Runs jobs on workers."""

    workers: int
    """Tasks that run at a time, at most; workers of `run_spmd`."""

    def map_unordered(
        self,
        job: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: WorkerResources = ONE_CORE,
        on_message: OnMessage | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Run a job on every task.

        A task whose worker is lost is run again. When the iterator ends, raises or is closed, nothing is left running.

        Args:
            job: A function of a module.
            tasks: Its arguments, plain data.
            resources: What each task needs.
            on_message: Called with what tasks `emit`, on the caller's thread.

        Yields:
            Each task's number and result, in the order in which they finish.

        Raises:
            EngineError: If no worker becomes free in time, or a task loses its worker again and again.
            Exception: What a job raises is raised here, as itself.
        """

    def run_spmd(
        self,
        job: Callable[[Group], Result],
        resources: WorkerResources = ONE_CORE,
        on_message: Callable[[Any], None] | None = None,
    ) -> Result:
        """Run one job on all workers at a time.

        When a worker is lost, all workers start the job again: it must keep checkpoints where every worker can read them.

        Args:
            job: A function of the worker's group.
            resources: What each worker needs.
            on_message: Called with what the first worker emits.

        Returns:
            The result of the first worker.

        Raises:
            EngineError: If the workers cannot be started in time, or are lost again and again.
            MbcalError: What the job raises on any worker is raised here, as itself.
        """

    def require_shared_file(self, file: Path) -> None:
        """Raise EngineError if some worker does not see the same file, such as the manifest of a store."""


def create_engine(
    name: str, workers: int | None = None, address: str | None = None
) -> contextlib.AbstractContextManager[Engine]:
    """Create an engine for a `with` block, after which nothing is left running.

    Args:
        name: `local` or `ray`.
        workers: Number of workers on Ray; by default one per core of the cluster.
        address: An existing Ray cluster; by default one is started on this machine.

    Raises:
        OptionError: If the name is unknown, or an address is given to the local engine.
    """
    known = get_args(EngineName)
    if name not in known:
        raise OptionError(f"engine: {name!r} is unknown; known are {', '.join(known)}.{nearest(name, known)}")
    if name == "ray":
        from mbcal.distributed.engines.ray import RayEngine

        return RayEngine(workers, address)
    if address is not None:
        raise OptionError("address: names a Ray cluster; add --engine ray, or leave it out")
    from mbcal.distributed.engines.local import LocalEngine

    return contextlib.nullcontext(LocalEngine())


_listener: ContextVar[Callable[[Any], None] | None] = ContextVar("listener", default=None)


def emit(message: Any) -> None:
    """Send a message from within a job to the caller's `on_message`.

    For progress only: there may be no listener, and the last messages of a task may be lost.

    Args:
        message: Plain data.
    """
    listener = _listener.get()
    if listener is not None:
        listener(message)


@contextlib.contextmanager
def messages_to(listener: Callable[[Any], None] | None) -> Iterator[None]:
    """Within, `emit` calls this listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
