"""A dictionary bounded in bytes: what the service remembers cannot outgrow its share of the memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from itertools import islice
from sys import getsizeof
from typing import Generic, TypeVar

from mbcal.serving.clients import current_client

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 300
"""Estimated size of an entry without its key and value."""
COMPARED = 16
"""Clients of which the one that holds most is found exactly."""
PAIR_BYTES = 72
"""Estimated size of a pair without its two texts."""


class BoundedDict(Generic[K, V]):
    """Values by key; the least recently stored are dropped when all together are too large.

    A value that is larger than the bound is not kept at all.
    """

    entry_bytes = ENTRY_BYTES

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
        size += self.entry_bytes + getsizeof(key) + (sum(map(getsizeof, key)) if isinstance(key, tuple) else 0)
        before = entries[key][1] if key in entries else 0
        entries[key] = (value, size)
        entries.move_to_end(key)
        self._resize(key, before, size)
        while self.used_bytes > self.max_bytes:
            self._make_room()

    def pop(self, key: K) -> None:
        """Drop a value, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._resize(key, entry[1], 0)

    def oldest(self) -> V | None:
        """Return the value that was stored first; None if there is none."""
        return next(iter(self._entries.values()))[0] if self._entries else None

    def drop_oldest(self) -> None:
        """Drop the value that was stored first."""
        self.pop(next(iter(self._entries)))

    def _make_room(self) -> None:
        self.drop_oldest()

    def _resize(self, _: K, before: int, after: int, /) -> None:
        """Count a value that is stored, replaced or dropped; 0 bytes stand for none."""
        self.used_bytes += after - before


class FairDict(BoundedDict[K, V]):
    """Values by key; when all together are too large, the client that holds most of them loses its oldest.

    So a client that stores much drops what it stored itself, not what others did. A value belongs to the client that stored
    it first. Of many clients that hold about as much, the one that has done so longest loses.
    """

    entry_bytes = ENTRY_BYTES + 250

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._holder: dict[K, str] = {}
        self._keys: dict[str, OrderedDict[K, None]] = {}  # of every client, the oldest first
        self._held: Counter[str] = Counter()  # bytes of every client
        self._levels: dict[int, OrderedDict[str, None]] = {}  # clients by the power of two of their bytes

    def next_to_go(self) -> K:
        """Return the key that is dropped next: the oldest of the client that holds most."""
        clients = self._levels[max(self._levels)]
        largest = max(islice(clients, COMPARED), key=self._held.__getitem__)
        return next(iter(self._keys[largest]))

    def _make_room(self) -> None:
        self.pop(self.next_to_go())

    def _resize(self, key: K, before: int, after: int, /) -> None:
        super()._resize(key, before, after)
        client = self._holder.setdefault(key, current_client.get())
        keys = self._keys.setdefault(client, OrderedDict())
        if after:
            keys[key] = None
            keys.move_to_end(key)
        else:
            del keys[key], self._holder[key]
        level = self._held[client].bit_length()
        self._held[client] += after - before
        if level != (new_level := self._held[client].bit_length()):
            self._move(client, level, new_level)

    def _move(self, client: str, level: int, new_level: int) -> None:
        """Note on which level a client is; 0 stands for one that holds nothing."""
        if level:
            del self._levels[level][client]
            if not self._levels[level]:
                del self._levels[level]
        if new_level:
            self._levels.setdefault(new_level, OrderedDict())[client] = None
        else:
            del self._held[client], self._keys[client]


def pairs_bytes(pairs: Iterable[tuple[str, str]]) -> int:
    """Return the size of (item, behaviour) pairs in memory."""
    return sum([PAIR_BYTES + getsizeof(item) + getsizeof(behaviour) for item, behaviour in pairs])
