"""Results on standard output, and progress on standard error: bars on a terminal, plain lines elsewhere."""

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
PIPE_WIDTH = 160
"""Characters per line of tables where the output is not a terminal."""


def output() -> Console:
    """Return the console for tables and sentences. Names are printed as they are, also with square brackets."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


class _ProgressBars:
    """A bar per phase; the bars of finished phases stay."""

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


class _ProgressLines:
    """A line per phase, and one every few seconds within a long phase."""

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
    """Yield the kind of progress that suits standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ProgressLines()
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
        progress_bars = _ProgressBars(bars)
        yield progress_bars
        progress_bars.finish()
