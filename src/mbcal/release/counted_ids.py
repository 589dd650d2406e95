"""Which ids were met, in little memory."""

from __future__ import annotations

import numpy as np


class CountedIds:
    """A growing set of ids in about 8 bytes each."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted = np.empty(0, np.int64)

    def add(self, name: str) -> None:
        """Add an id."""
        self._recent.add(hash(name))
        if len(self._recent) > max(1 << 16, len(self._sorted) // 8):
            self._sorted = np.union1d(self._sorted, np.fromiter(self._recent, np.int64, len(self._recent)))
            self._recent = set()

    def __contains__(self, name: str) -> bool:
        value = hash(name)
        if value in self._recent:
            return True
        place = int(np.searchsorted(self._sorted, value))
        return place < len(self._sorted) and int(self._sorted[place]) == value
