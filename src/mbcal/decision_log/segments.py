"""The files of a decision log: segments of framed records, and the names of all files in the folder.

::

    segment-000001.log   "mbcallog" | format u32 | number u32 |  record  |  record  | …
    record               length u32 | crc32 u32 | number u64 | payload              all little-endian

The checksum also covers the segment's number, the record's offset, its length and its number. So bytes from elsewhere (an
old disk block, a record quoted inside a record, a run of zeros) are never mistaken for a record at this offset. Records are
numbered from 1 in the order written, over all segments of a folder, so a reader notices those that are gone (`numbering`).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mbcal.decision_log.checksums import Offsets, range_checksums
from mbcal.errors import LogError

MAGIC, FORMAT = b"mbcallog", 2
HEADER = struct.Struct("<8sII")
MAX_RECORD_BYTES = 8 << 20
"""Largest payload. A damaged length above it is recognised as damage without reading that far."""
MARK_NAME = "acknowledged"
"""The file that holds the number of the last acknowledged record; see `numbering`."""
_FRAME = struct.Struct("<IIQ")
FRAME_BYTES = _FRAME.size
"""Bytes of a record before its payload."""
_POSITION = struct.Struct("<IQIQ")
MAX_SEGMENT = 999_999_999
"""Files and marks with higher numbers are not of a log: no writer gets so far, and headers have no room for it."""
_NUMBERS = 1 << 48
"""Damage is not searched for records with higher numbers: no writer gets so far."""
_FIRST_PART, _LARGEST_PART = 1 << 12, 1 << 20
"""Bytes that are searched at a time for the next record after damage: few at first, then four times as many each time."""
_SEGMENT_NAME = re.compile(r"segment-([0-9]{6,9})\.log")
_PARQUET_NAME = re.compile(r"(?:decisions|feedback)-([0-9]{6,9})\.parquet")
_WORKER_NAME = re.compile(r"worker-([0-9]+)")


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"segment-{number:06d}.log"


def parquet_paths(folder: Path, number: int) -> tuple[Path, Path]:
    """Return the paths of the decisions and of the feedback of a compacted segment."""
    return folder / f"decisions-{number:06d}.parquet", folder / f"feedback-{number:06d}.parquet"


def segment_numbers(folder: Path) -> list[int]:
    """List the numbers of the segments in a folder, ascending.

    Raises:
        LogError: If the folder cannot be read.
    """
    return _numbers(folder, _SEGMENT_NAME)


def parquet_numbers(folder: Path) -> list[int]:
    """List the numbers of the Parquet files in a folder, ascending; a number with both files is listed twice.

    Raises:
        LogError: If the folder cannot be read.
    """
    return _numbers(folder, _PARQUET_NAME)


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise LogError(f"{folder}: cannot be read ({error.strerror}); give the folder of a decision log") from error
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


def log_folders(folder: Path) -> list[Path]:
    """List the folders of a log, each written by one process: the folder itself and its `worker-N`, those that exist.

    A server with several workers gives each a folder of its own; a single one writes to the folder itself.

    Raises:
        LogError: If the folder cannot be read or holds no log.
    """
    own = [folder] if segment_numbers(folder) or parquet_numbers(folder) or (folder / MARK_NAME).exists() else []
    workers = [(int(match[1]), path) for path in folder.iterdir() if (match := _WORKER_NAME.fullmatch(path.name))]
    found = own + [path for _, path in sorted(workers) if path.is_dir()]
    if not found:
        raise LogError(f"{folder}: no decision log (no segments); give the folder a server logs to")
    return found


def segment_header(number: int) -> bytes:
    """Return the first bytes of a segment."""
    return HEADER.pack(MAGIC, FORMAT, number)


def frame_record(payload: bytes, segment: int, offset: int, number: int) -> bytes:
    """Return a record's bytes (length, checksum, number, payload) for this segment and offset."""
    return _FRAME.pack(len(payload), _checksum(payload, segment, offset, number), number) + payload


def _checksum(payload: bytes | memoryview, segment: int, offset: int, number: int) -> int:
    return zlib.crc32(payload, zlib.crc32(_POSITION.pack(segment, offset, len(payload), number)))


class Span(NamedTuple):
    """A range of bytes of a segment: one record, or damage."""

    start: int
    end: int
    number: int
    """The record's number; 0 for damage."""
    payload: bytes | None
    """None for damage."""


def scan_segment(data: bytes, segment: int) -> Iterator[Span]:
    """Split a segment into records and the damaged ranges between them; a damaged header is such a range.

    Args:
        data: All bytes of the segment.
        segment: The segment's number, from its file name.

    Raises:
        LogError: If the segment was written in another format.
    """
    offset, view = HEADER.size, memoryview(data)
    if data[:offset] != segment_header(segment):
        offset = _next_record(view, segment, min(offset, len(data)))
        if offset == len(data) > HEADER.size and data[:8] == MAGIC and (version := HEADER.unpack_from(data)[1]) != FORMAT:
            rule = f"format {version}, this mbcal reads format {FORMAT}"
            raise LogError(f"segment {segment}: {rule}; read it with the mbcal that wrote it")
        yield Span(0, offset, 0, None)
    while offset < len(data):
        end, number = _record_at(view, segment, offset)
        if end:
            yield Span(offset, end, number, data[offset + FRAME_BYTES : end])
        else:
            end = _next_record(view, segment, offset + 1)
            yield Span(offset, end, 0, None)
        offset = end


def _record_at(view: memoryview, segment: int, offset: int) -> tuple[int, int]:
    """End and number of the record at this offset; (0, 0) if there is none."""
    if offset + FRAME_BYTES > len(view):
        return 0, 0
    length, checksum, number = _FRAME.unpack_from(view, offset)
    end = offset + FRAME_BYTES + length
    if length > MAX_RECORD_BYTES or end > len(view):
        return 0, 0
    valid = _checksum(view[offset + FRAME_BYTES : end], segment, offset, number) == checksum
    return (end, number) if valid else (0, 0)


def _next_record(view: memoryview, segment: int, start: int) -> int:
    """Offset of the first valid record at or after `start`, at any byte; the end of the segment if there is none.

    Names that clients choose may look like the beginning of a record at many offsets, so all checksums of a part of the
    segment are computed together: the time is linear in its bytes.
    """
    size = _FIRST_PART
    while start < len(view):
        offsets = _plausible_offsets(view, start, start + size)
        frames = [_FRAME.unpack_from(view, offset) for offset in offsets.tolist()]
        places = zip(offsets.tolist(), frames, strict=True)
        before = [zlib.crc32(_POSITION.pack(segment, offset, frame[0], frame[2])) for offset, frame in places]
        lengths = np.array([length for length, _, _ in frames], np.int64)
        checksums = np.array([checksum for _, checksum, _ in frames], np.uint32)
        found = range_checksums(view, offsets + FRAME_BYTES, lengths, np.array(before, np.uint32))
        for offset in offsets[found == checksums].tolist():
            if _record_at(view, segment, offset)[0]:
                return int(offset)
        start, size = start + size, min(4 * size, _LARGEST_PART)
    return len(view)


def _plausible_offsets(view: memoryview, start: int, end: int) -> Offsets:
    """Offsets from start to before end at which length and number could be those of a record, ascending."""
    possible = [np.empty(0, np.int64)]
    for first in range(start, start + 4):  # read as u32 with four shifts, the bytes give every field of every offset
        last = min(end + FRAME_BYTES, len(view))
        words = np.frombuffer(view[first:last], "<u4", max(last - first, 0) // 4)
        lengths, high = words[:-3].astype(np.int64), words[3:]
        offsets = first + 4 * np.arange(len(lengths), dtype=np.int64)
        fits = (lengths > 0) & (lengths <= MAX_RECORD_BYTES) & (offsets + FRAME_BYTES + lengths <= len(view))
        possible.append(offsets[fits & (high < _NUMBERS >> 32) & (offsets < end)])
    return np.sort(np.concatenate(possible))
