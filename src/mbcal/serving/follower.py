"""Following the registry: look at it again and again, whatever happens, and remember which versions were refused.

A look that fails (permissions, a damaged pointer, no memory) is counted and repeated, and logged once per kind of error
until a look succeeds again. A version that cannot be opened is tried again when its files change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

POLL_SECONDS = 0.4
"""Seconds between two looks at the registry."""
LONGEST_WAIT = 5.0
"""Seconds between two looks after many failures in a row; the wait doubles after each."""
LOOK_SECONDS = 60.0
"""A look that takes longer (a network drive that hangs) counts as failed."""

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, size, time of the last change and inode of every file of a folder."""


class Follower:
    """Repeats a look at the registry and knows how old the last good one is."""

    def __init__(
        self,
        look: Callable[[], Awaitable[None]],
        on_event: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is looked at yet.

        Args:
            look: Reads the registry and switches to its live version.
            on_event: Called with `registry unreadable` and the error once per kind of error, and with `registry readable`.
            clock: Seconds, from any start.
        """
        self._look, self._on_event, self._clock = look, on_event, clock
        self._last_good = clock()  # until the first look, the age is that of the server
        self._logged: set[tuple[str, str]] = set()
        self.failures = 0
        """Looks that failed, in all."""
        self.failures_in_a_row = 0

    @property
    def age(self) -> float:
        """Seconds since the last good look; since the start, if there was none."""
        return self._clock() - self._last_good

    async def look(self) -> None:
        """Look once. Never raises, except when cancelled."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._look()
        except Exception as error:
            self._failed(error)
        else:
            if self._logged:
                self._on_event("registry readable", failures=self.failures_in_a_row)
            self._logged.clear()
            self.failures_in_a_row, self._last_good = 0, self._clock()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.failures_in_a_row += 1
        kind = (type(error).__name__, str(error))
        if kind not in self._logged and len(self._logged) < 100:
            self._logged.add(kind)
            self._on_event("registry unreadable", error=f"{kind[0]}: {kind[1]}")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(min(POLL_SECONDS * 2 ** min(self.failures_in_a_row, 10), LONGEST_WAIT))


class RefusedVersions(dict[str, str]):
    """Reasons why versions were refused, by name; each holds as long as the files of the version do not change."""

    def __init__(self) -> None:
        super().__init__()
        self._fingerprints: dict[str, Fingerprint] = {}
        self.wanted: str | None = None
        """The version that is live by the registry, refused or not."""

    def refuse(self, name: str, reason: str, files: Fingerprint) -> None:
        """Record why a version was refused.

        Args:
            name: The version.
            reason: One sentence.
            files: `fingerprint` of its folder, taken before it was opened.
        """
        self[name], self._fingerprints[name] = reason, files

    @property
    def sentence(self) -> str:
        """Why the live version was refused, or else the one that was refused last; empty if nothing was."""
        if not self:
            return ""
        name = self.wanted if self.wanted is not None and self.wanted in self else next(reversed(self))
        return f"version {name} cannot be used ({self[name]}); publish or activate another one with 'mbcal registry'"

    def still_holds(self, name: str, files: Fingerprint) -> bool:
        """Whether a version was refused and its files are still these; forgets the refusal if they are not."""
        if name not in self:
            return False
        if files == self._fingerprints.get(name):
            return True
        self.pop(name, None)
        return False


def fingerprint(folder: Path) -> Fingerprint:
    """Return what changes when a file of this folder is replaced, changed, added or removed; empty if there is none."""
    entries = []
    try:
        for path in sorted(folder.iterdir()):
            status = path.stat()
            entries.append((path.name, status.st_size, status.st_mtime_ns, status.st_ino))
    except OSError:
        return ()
    return tuple(entries)
