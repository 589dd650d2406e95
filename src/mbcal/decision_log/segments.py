"""The bytes of a decision log: files of records, each with its length and a checksum.

::

    segment-000001.log   "mbcallog" | format u32 | number u32 |  record  |  record  | …
    record               length u32 | crc32 u32 | payload              all little-endian

The checksum also covers the segment's number, the record's offset and its length: bytes that belong elsewhere (an old disk
block, a record quoted within a record, a stretch of zeros) are never taken for a record here.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mbcal.errors import LogError

MAGIC, FORMAT = b"mbcallog", 1
HEADER = struct.Struct("<8sII")
LONGEST = 8 << 20
"""Bytes a record may have; also keeps a damaged length from being believed."""
_FRAME = struct.Struct("<II")
FRAME = _FRAME.size
_PLACE = struct.Struct("<IQI")


def segment_path(folder: Path, number: int) -> Path:
    """Where the segment of this number is."""
    return folder / f"segment-{number:06d}.log"


def numbers(folder: Path, pattern: str = r"segment-(\d{6,})\.log") -> list[int]:
    """Of the files in a folder whose names have this form, in order."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise LogError(f"{folder}: cannot be read ({error.strerror}); give the folder of a decision log") from error
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(pattern, name)))


def header(number: int) -> bytes:
    """What a segment of this number begins with."""
    return HEADER.pack(MAGIC, FORMAT, number)


def frame(payload: bytes, number: int, offset: int) -> bytes:
    """A record as it stands in this segment at this offset."""
    return _FRAME.pack(len(payload), _checksum(payload, number, offset)) + payload


def _checksum(payload: bytes | memoryview, number: int, offset: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_PLACE.pack(number, offset, len(payload))))


class Span(NamedTuple):
    """A stretch of a segment: a record, or bytes that are none."""

    start: int
    end: int
    payload: bytes | None


def pieces(data: bytes, number: int) -> Iterator[Span]:
    """Every record of a segment, and every stretch between them that is none; a bad header is such a stretch too."""
    if data[:8] == MAGIC and len(data) >= HEADER.size and (said := HEADER.unpack_from(data)[1]) > FORMAT:
        raise LogError(f"segment {number}: format {said}, this mbcal reads up to {FORMAT}; read it with a newer mbcal")
    at, view = HEADER.size, memoryview(data)
    if data[:at] != header(number):
        at = _next_record(view, number, min(at, len(data)))
        yield Span(0, at, None)
    while at < len(data):
        end = _record_end(view, number, at)
        if end:
            yield Span(at, end, data[at + FRAME : end])
        else:
            end = _next_record(view, number, at + 1)
            yield Span(at, end, None)
        at = end


def _record_end(view: memoryview, number: int, at: int) -> int:
    """Where the record at this offset ends; 0 where there is none."""
    if at + FRAME > len(view):
        return 0
    length, checksum = _FRAME.unpack_from(view, at)
    end = at + FRAME + length
    if length > LONGEST or end > len(view):
        return 0
    return end if _checksum(view[at + FRAME : end], number, at) == checksum else 0


def _next_record(view: memoryview, number: int, start: int) -> int:
    """The offset of the first record from here on, at whatever byte it begins; the end where there is none."""
    found = []
    for shift in range(4):  # four readings of the bytes as whole numbers show the length at every offset
        count = max(len(view) - start - shift, 0) // 4
        lengths = np.frombuffer(view, "<u4", count, start + shift) if count else np.empty(0, "<u4")
        at = start + shift + 4 * np.arange(count, dtype=np.int64)
        found.append(at[(lengths > 0) & (lengths <= LONGEST) & (at + FRAME + lengths <= len(view))])
    for offset in np.sort(np.concatenate(found)).tolist():
        if _record_end(view, number, offset):
            return int(offset)
    return len(view)
