"""A dictionary bounded in bytes: what the service remembers cannot outgrow its share of the memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from sys import getsizeof
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 300
"""Estimated size of an entry without its key and value."""
PAIR_BYTES = 72
"""Estimated size of a pair without its two texts."""


class BoundedDict(Generic[K, V]):
    """Values by key; the least recently stored are dropped when all together are too large.

    A value that is larger than the bound is not kept at all.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start empty.

        Args:
            max_bytes: Bound on the sizes given to `put` and those of the keys.
        """
        self.max_bytes, self.used_bytes = max_bytes, 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return a value; None if it is unknown or was dropped."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Store a value as the latest.

        Args:
            key: Its key; a value of the same key is replaced.
            value: The value.
            size: Its bytes, without the key.
        """
        entries = self._entries
        size += ENTRY_BYTES + getsizeof(key) + (sum(map(getsizeof, key)) if isinstance(key, tuple) else 0)
        self.used_bytes += size
        if key in entries:
            self.used_bytes -= entries[key][1]
            entries.move_to_end(key)
        entries[key] = (value, size)
        while self.used_bytes > self.max_bytes:
            self.drop_oldest()

    def pop(self, key: K) -> None:
        """Drop a value, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry[1]

    def oldest(self) -> V | None:
        """Return the value that was stored first; None if there is none."""
        return next(iter(self._entries.values()))[0] if self._entries else None

    def drop_oldest(self) -> None:
        """Drop the value that was stored first."""
        _, (_, size) = self._entries.popitem(last=False)
        self.used_bytes -= size


def pairs_bytes(pairs: Iterable[tuple[str, str]]) -> int:
    """Return the size of (item, behaviour) pairs in memory."""
    return sum([PAIR_BYTES + getsizeof(item) + getsizeof(behaviour) for item, behaviour in pairs])
