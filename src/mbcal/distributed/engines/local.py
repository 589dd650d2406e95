"""The engine of this process: the default, and what other engines are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mbcal.distributed.engines import ONE_CORE, OnMessage, Result, Task, WorkerResources, messages_to
from mbcal.distributed.group import SINGLE_WORKER, Group


class LocalEngine:
    """Runs tasks in this process, one after another."""

    workers = 1

    def map_unordered(
        self,
        job: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: WorkerResources = ONE_CORE,  # noqa: ARG002
        on_message: OnMessage | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """See `Engine`."""
        for number, task in enumerate(tasks):
            with messages_to(on_message and partial(on_message, number)):
                result = job(task)
            yield number, result

    def run_spmd(
        self,
        job: Callable[[Group], Result],
        resources: WorkerResources = ONE_CORE,  # noqa: ARG002
        on_message: Callable[[Any], None] | None = None,
    ) -> Result:
        """See `Engine`."""
        with messages_to(on_message):
            return job(SINGLE_WORKER)

    def require_shared_file(self, file: Path) -> None:
        """See `Engine`: the only worker is this process."""
