"""Where jobs run: on this machine, or on a Ray cluster.

An engine has two verbs. `each` does many independent tasks, on whatever worker is free: cells of an experiment, parts of a
log, blocks of sessions. `together` does one job on several workers at a time that add up their tensors as they go: a fit.
A job is a function of a module and its tasks are plain data, so that they can travel; what is large lies in folders every
worker can read, and only the folder's name travels. The library knows these verbs and no engine; engines know no job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from mbcal.group import Group

Name = Literal["local", "ray"]
"""The engines there are."""

Task = TypeVar("Task")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Share:
    """What of a machine one worker takes."""

    cpus: float = 1.0
    gpus: float = 0.0


ONE_CORE = Share()


class Engine(Protocol):
    """The two verbs."""

    workers: int
    """Tasks at a time, at most."""

    def each(
        self, job: Callable[[Task], Made], tasks: Sequence[Task], share: Share = ONE_CORE
    ) -> Iterator[tuple[int, Made]]:
        """Every task once: its number and what was made of it, as soon as it is done. Where a worker is lost, its task is
        done again; what a job raises is raised here, and nothing is left running."""

    def together(self, job: Callable[[Group], Made], share: Share = ONE_CORE) -> Made:
        """The same job on all workers at a time, each told its place in the group; returns what the first one made. Where
        a worker is lost all begin again, so the job keeps checkpoints where every worker can read them."""
