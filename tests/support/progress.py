"""Progress that interferes with a fit."""

from __future__ import annotations


class Interrupt:
    """Interrupts a fit, as Ctrl-C does, when a phase begins.

    Args:
        title: How the title of that phase begins.
    """

    def __init__(self, title: str) -> None:
        self.title = title

    def phase(self, title: str, total: int | None = None) -> None:
        if title.startswith(self.title):
            raise KeyboardInterrupt

    def advance(self, amount: int) -> None: ...
