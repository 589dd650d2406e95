"""Names in a request's JSON to rows of the catalogue, in C: the fast twin of decoding texts and of `Catalog.row`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.kernels import native

FIRST_ITEM_ROW = 2
"""Rows of a catalogue before its first item, as in types/catalog.py."""
LONGEST = 1 << 20
"""Bytes of JSON; more are the twin's."""


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
        *((name, ctypes.c_int64) for name in ("most", "packed_length")),
    )


class NameFinder:
    """The names of a catalogue, ready to be found; not by two threads at once. Made by `name_finder`."""

    def __init__(self, names: Sequence[str], rows: NDArray[np.int32]) -> None:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self._text = b"".join(encoded)
        self._ends = np.zeros(len(names) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(names)), out=self._ends[1:])
        self._slots = np.full(2 << len(names).bit_length(), -1, np.int32)  # at most half of them are taken
        text = ctypes.cast(ctypes.c_char_p(self._text), ctypes.c_void_p)
        self._names = _Names(text, native.address(self._ends), native.address(self._slots), len(names), len(self._slots))
        _build()(ctypes.byref(self._names))
        self._spans, self._packed = np.empty((len(rows), 2), np.int32), np.empty(LONGEST + 3, np.uint8)
        self._work = (rows, self._spans, self._packed, np.zeros(len(names) + FIRST_ITEM_ROW, np.int32))
        self._found = _Found(*map(native.address, self._work), len(rows))
        self._arguments = (ctypes.byref(self._names), ctypes.byref(self._found))

    def find(self, json: bytes) -> int:
        """How many names a JSON list holds, their rows being in the array given at first; 0 where the twin has to look."""
        if len(json) > LONGEST:
            return 0
        names, found = self._arguments
        return max(int(_find()(names, json, len(json), found)), 0)

    def spans(self, places: Iterable[int]) -> list[tuple[int, int]]:
        """Where in the JSON the names of these places begin and end."""
        ends = self._spans.data
        return [(ends[place, 0], ends[place, 1]) for place in places]

    def packed(self) -> bytes:
        """The list found last, as MessagePack."""
        return self._packed[: self._found.packed_length].tobytes()


def name_finder(names: Sequence[str], rows: NDArray[np.int32]) -> NameFinder | None:
    """For the names of a catalogue; finds at most as many as `rows` has room for. None where nothing was compiled."""
    if not native.available() or _find() is None:
        return None
    return NameFinder(names, rows)


@cache
def _build() -> Any:
    return native.function("mbcal_names_1", None, (ctypes.c_void_p,), short=True)


@cache
def _find() -> Any:
    arguments = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p)
    return native.function("mbcal_find_1", ctypes.c_int64, arguments, short=True)
