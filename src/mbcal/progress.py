"""How long work tells where it stands, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener; the command line draws it, the library is silent unless given one."""

    def phase(self, title: str, total: int | None = None) -> None:
        """A new phase begins; `total` is its size where it is known."""

    def advance(self, amount: int) -> None:
        """That much more of the phase is done."""


class Silent:
    """The listener who does not listen."""

    def phase(self, title: str, total: int | None = None) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


SILENT: Progress = Silent()
