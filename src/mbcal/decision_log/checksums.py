"""CRC32 of many overlapping ranges of bytes at once, each byte read a few times only.

CRC32 is linear: the checksum of a range follows from those of all bytes up to its start and up to its end, once the former
is shifted by the length of the range. A shift by a power of two bytes is a table.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Unsigned = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]


def range_checksums(view: memoryview, starts: Offsets, lengths: Offsets, before: Unsigned) -> Unsigned:
    """Return `zlib.crc32(view[start : start + length], before)` of every range.

    Args:
        view: The bytes.
        starts: Where ranges begin.
        lengths: Their lengths.
        before: The checksum of what comes before each range, which it continues.
    """
    ends = starts + lengths
    places, which = np.unique(np.concatenate([starts, ends]), return_inverse=True)
    upto, position, found = 0, int(places[0]) if len(places) else 0, np.empty(len(places), np.uint32)
    for index, place in enumerate(places.tolist()):
        upto = zlib.crc32(view[position:place], upto)
        position, found[index] = place, upto
    upto_start, upto_end = found[which[: len(starts)]], found[which[len(starts) :]]
    return _shifted(before ^ upto_start, lengths) ^ upto_end


def _shifted(checksums: Unsigned, lengths: Offsets) -> Unsigned:
    """What checksums become when so many zero bytes follow, without what the zeros add themselves."""
    for power in range(int(lengths.max(initial=0)).bit_length()):
        tables, is_set = _shift_tables(power), (lengths >> power) & 1 == 1
        part = checksums[is_set]
        checksums = checksums.copy()
        checksums[is_set] = (
            tables[0][part & 255] ^ tables[1][part >> 8 & 255] ^ tables[2][part >> 16 & 255] ^ tables[3][part >> 24]
        )
    return checksums


@cache
def _shift_tables(power: int) -> Any:
    """For every byte of a checksum and its 256 values, what it becomes when 2 ** power zero bytes follow."""
    values = np.arange(256, dtype=np.uint32)
    bytes_of = np.stack([values << shift for shift in (0, 8, 16, 24)]).astype(np.uint32)
    if power == 0:
        zero = zlib.crc32(b"\0")
        shifted = [[zlib.crc32(b"\0", value) ^ zero for value in row] for row in bytes_of.tolist()]
        return np.array(shifted, np.uint32)
    half = np.full(bytes_of.size, 1 << (power - 1), np.int64)
    return _shifted(_shifted(bytes_of.ravel(), half), half).reshape(bytes_of.shape)
