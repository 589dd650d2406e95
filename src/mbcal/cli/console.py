"""How progress looks: a bar on a terminal, plain lines in a pipe; both on standard error, results go to standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from mbcal.progress import Progress

SECONDS_BETWEEN_LINES = 10.0


class _Drawn:
    """Bars on a terminal; a finished phase stays as a line."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def phase(self, title: str, total: int | None = None) -> None:
        self.finish()
        self._task = self._bars.add_task(title, total=total, counted="")

    def advance(self, amount: int) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._task]
            done = int(task.completed) + amount
            self._bars.update(self._task, completed=done, counted=f"{done:,} of {int(task.total or done):,}")

    def finish(self) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._task]
            self._bars.update(self._task, total=task.total or 1, completed=task.total or 1)


class _Lines:
    """A line a phase, and one every few seconds within a long one."""

    def __init__(self) -> None:
        self._title, self._total, self._done, self._last = "", 0, 0, 0.0

    def phase(self, title: str, total: int | None = None) -> None:
        self._title, self._total, self._done, self._last = title, total or 0, 0, time.monotonic()
        print(title, file=sys.stderr, flush=True)

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._total and time.monotonic() - self._last > SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            print(f"{self._title}: {self._done:,} of {self._total:,}", file=sys.stderr, flush=True)


@contextmanager
def progress() -> Iterator[Progress]:
    """The listener that fits where standard error goes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[counted]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console) as bars:
        drawn = _Drawn(bars)
        yield drawn
        drawn.finish()
