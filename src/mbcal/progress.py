"""The interface through which long computations report progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress reports. The command line draws a bar; the library reports nothing unless given a listener."""

    def phase(self, title: str, total: int | None = None) -> None:
        """Begin a new phase.

        Args:
            title: What is being done.
            total: Units of work in the phase, if known.
        """

    def advance(self, amount: int) -> None:
        """Report that `amount` more units of the current phase are done."""


class Silent:
    """A listener that ignores all reports."""

    def phase(self, title: str, total: int | None = None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


SILENT: Progress = Silent()
"""The default listener."""
