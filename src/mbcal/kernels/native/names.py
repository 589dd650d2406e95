"""Catalogue rows of the item names in a request's JSON, in C.

The reference implementation decodes the JSON and calls `Catalog.rows_of` (serving/candidates.py).
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.kernels import native

FIRST_ITEM_ROW = 2
"""Rows of a catalogue before its first item, as in types/catalog.py."""
MAX_JSON = 1 << 20
"""Bytes of JSON that are supported."""


class _Names(ctypes.Structure):
    """`struct names` of names.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("text", "ends", "slots")),
        *((name, ctypes.c_int64) for name in ("count", "size")),
    )


class _Found(ctypes.Structure):
    """`struct found` of names.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "spans", "packed", "last")),
        *((name, ctypes.c_int64) for name in ("capacity", "packed_length")),
    )


class NameFinder:
    """Finds the names of a catalogue in JSON lists. Created by `name_finder`. Not safe for two threads at once.

    Args:
        names: The catalogue's items, in order.
        rows: (capacity,) where `find` puts the rows; also the largest number of names it finds.

    Attributes:
        slots: int32 hash table with open addressing: the index of a name, -1 where free.
    """

    def __init__(self, names: Sequence[str], rows: NDArray[np.int32]) -> None:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self._text = b"".join(encoded)
        self._ends = np.zeros(len(names) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(names)), out=self._ends[1:])
        self.slots = np.full(2 << len(names).bit_length(), -1, np.int32)  # at most half of them are used
        text = ctypes.cast(ctypes.c_char_p(self._text), ctypes.c_void_p)
        self._names = _Names(text, native.address(self._ends), native.address(self.slots), len(names), len(self.slots))
        _build_function()(ctypes.byref(self._names))
        self._spans, self._packed = np.empty((len(rows), 2), np.int32), np.empty(MAX_JSON + 3, np.uint8)
        self._buffers = (rows, self._spans, self._packed, np.zeros(len(names) + FIRST_ITEM_ROW, np.int32))
        self._found = _Found(*map(native.address, self._buffers), len(rows))
        self._arguments = (ctypes.byref(self._names), ctypes.byref(self._found))

    def find(self, json: bytes) -> int:
        """Find the names of a JSON list, and put their catalogue rows into the array given to `name_finder`.

        Args:
            json: The list, and nothing else.

        Returns:
            The number of names; 0 if the list is empty, invalid or not supported.
        """
        if len(json) > MAX_JSON:
            return 0
        names, found = self._arguments
        return max(int(_find_function()(names, json, len(json), found)), 0)

    def spans(self, indices: Iterable[int]) -> list[tuple[int, int]]:
        """Where in the JSON found last the names at these indices begin and end, in bytes, without the quotes."""
        ends = self._spans.data
        return [(ends[index, 0], ends[index, 1]) for index in indices]

    def positions(self, begins: Sequence[int], count: int) -> list[int]:
        """Indices, among the `count` names found last, of those that begin at these bytes of the JSON, with the quotes."""
        # a span begins after the quote of a text, or at the first digit of a number
        ends = self._spans.data
        return [bisect_left(range(count), begin, key=lambda index: ends[index, 0]) for begin in begins]

    def packed(self) -> bytes:
        """The list found last, as MessagePack."""
        return self._packed[: self._found.packed_length].tobytes()


def name_finder(names: Sequence[str], rows: NDArray[np.int32]) -> NameFinder | None:
    """Create a `NameFinder`, or return None if the library was not compiled or is turned off."""
    if not native.available() or _find_function() is None:
        return None
    return NameFinder(names, rows)


@cache
def _build_function() -> Any:
    return native.load_function("mbcal_names_1", None, (ctypes.c_void_p,), keep_gil=True)


@cache
def _find_function() -> Any:
    arguments = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p)
    return native.load_function("mbcal_find_1", ctypes.c_int64, arguments, keep_gil=True)
