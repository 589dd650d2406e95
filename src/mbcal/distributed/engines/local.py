"""This machine, this process: the default, and what other engines are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mbcal.distributed.engines import ONE_CORE, Hear, Made, Share, Task, heard_by
from mbcal.distributed.group import ALONE, Group


class LocalEngine:
    """One task after another."""

    workers = 1

    def each(
        self,
        job: Callable[[Task], Made],
        tasks: Sequence[Task],
        share: Share = ONE_CORE,  # noqa: ARG002
        hear: Hear | None = None,
    ) -> Iterator[tuple[int, Made]]:
        """See `Engine`."""
        for number, task in enumerate(tasks):
            with heard_by(hear and partial(hear, number)):
                made = job(task)
            yield number, made

    def together(
        self,
        job: Callable[[Group], Made],
        share: Share = ONE_CORE,  # noqa: ARG002
        hear: Callable[[Any], None] | None = None,
    ) -> Made:
        """See `Engine`."""
        with heard_by(hear):
            return job(ALONE)

    def require_shared(self, file: Path) -> None:
        """See `Engine`: we see what we see."""
