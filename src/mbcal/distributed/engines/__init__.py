"""Where jobs run: on this machine, or on a Ray cluster.

An engine has two verbs. `map_unordered` does many independent tasks, on whatever worker is free: cells of an experiment, parts of a
log, blocks of sessions. `run_spmd` does one job on several workers at a time that add up their tensors as they go: a fit.
A job is a function of a module and its tasks are plain data, so that they can travel; what is large lies in folders every
worker can read, and only the folder's name travels. The library knows these verbs and no engine; engines know no job.
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
"""The engines there are."""

Task = TypeVar("Task")
Result = TypeVar("Result")
OnMessage = Callable[[int, Any], None]
"""Told what tasks `emit` as they go: a task's number, and what it said."""


@dataclass(frozen=True)
class WorkerResources:
    """What of a machine one worker takes."""

    cpus: float = 1.0
    gpus: float = 0.0


ONE_CORE = WorkerResources()


class Engine(Protocol):
    """The two verbs."""

    workers: int
    """Tasks at a time, at most."""

    def map_unordered(
        self,
        job: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: WorkerResources = ONE_CORE,
        on_message: OnMessage | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Every task once: its number and what was made of it, as soon as it is done. Where a worker is lost, its task is
        done again; what a job raises is raised here, and nothing is left running."""

    def run_spmd(
        self,
        job: Callable[[Group], Result],
        resources: WorkerResources = ONE_CORE,
        on_message: Callable[[Any], None] | None = None,
    ) -> Result:
        """The same job on all workers at a time, each told its place in the group; returns what the first one made, and
        passes on what that one says. Where a worker is lost all begin again, so the job keeps checkpoints where every
        worker can read them."""

    def require_shared_file(self, file: Path) -> None:
        """Refuse a file that some worker does not see as we do: the manifest of a store, say, for the store."""


def create_engine(
    name: str, workers: int | None = None, address: str | None = None
) -> contextlib.AbstractContextManager[Engine]:
    """`with create_engine("ray", 4) as engine:` and nothing of it is left afterwards. `workers` is as many as there are cores
    unless told, `address` a cluster that is there already."""
    if name not in get_args(EngineName):
        raise OptionError(
            f"engine: {name!r} is unknown; known are {', '.join(get_args(EngineName))}.{nearest(name, get_args(EngineName))}"
        )
    if name == "ray":
        from mbcal.distributed.engines.ray import RayEngine

        return RayEngine(workers, address)
    if address is not None:
        raise OptionError("address: names a Ray cluster; add --engine ray, or leave it out")
    from mbcal.distributed.engines.local import LocalEngine

    return contextlib.nullcontext(LocalEngine())


_listener: ContextVar[Callable[[Any], None] | None] = ContextVar("listener", default=None)


def emit(what: Any) -> None:
    """From within a job, to whoever listens to it: how it gets on, in plain data. Nobody may, and some of it may be lost."""
    listener = _listener.get()
    if listener is not None:
        listener(what)


@contextlib.contextmanager
def messages_to(listener: Callable[[Any], None] | None) -> Iterator[None]:
    """Within, jobs speak to this listener."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)
