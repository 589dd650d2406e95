"""This machine, this process: the default, and what other engines are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mbcal.engines import ONE_CORE, Made, Share, Task
from mbcal.group import ALONE, Group


class LocalEngine:
    """One task after another."""

    workers = 1

    def each(
        self,
        job: Callable[[Task], Made],
        tasks: Sequence[Task],
        share: Share = ONE_CORE,  # noqa: ARG002
    ) -> Iterator[tuple[int, Made]]:
        """See `Engine`."""
        for number, task in enumerate(tasks):
            yield number, job(task)

    def together(self, job: Callable[[Group], Made], share: Share = ONE_CORE) -> Made:  # noqa: ARG002
        """See `Engine`."""
        return job(ALONE)
