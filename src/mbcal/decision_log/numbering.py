"""Numbers of records: the file that says how far a log was acknowledged, and the search for records that are gone.

::

    LOG/acknowledged     segment u32 | record u64 | crc32 u32         the last acknowledged record and its segment

The writer overwrites these 16 bytes after every fdatasync of a segment and does not fsync them itself. So after a power
failure they may lag behind the log, but they are never ahead of it: a log that ends before the record they name was cut.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mbcal.decision_log.segments import MARK_NAME, MAX_SEGMENT, segment_path
from mbcal.storage.plain_file import read_plain

_MARK = struct.Struct("<IQI")


class Mark(NamedTuple):
    """How far a log was acknowledged."""

    segment: int
    """The segment that the record is in."""
    record: int
    """Number of the last acknowledged record; 0 if there is none."""


class MarkFile:
    """The file of a log's mark, opened for writing.

    Args:
        folder: The log.

    Raises:
        OSError: If the file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.file = os.open(folder / MARK_NAME, os.O_RDWR | os.O_CREAT, 0o644)

    def write(self, mark: Mark) -> None:
        """Replace the mark. A failure is ignored: an old mark is still true."""
        with contextlib.suppress(OSError):
            os.pwrite(self.file, _MARK.pack(*mark, zlib.crc32(_MARK.pack(*mark, 0))), 0)

    def close(self) -> None:
        """Make the mark durable and close the file."""
        with contextlib.suppress(OSError):
            os.fsync(self.file)
        os.close(self.file)


def read_mark(folder: Path) -> Mark:
    """Read how far a log was acknowledged; (0, 0) if the file is absent or damaged."""
    for _ in range(3):  # a reader may meet a half-written mark
        try:
            segment, record, checksum = _MARK.unpack(read_plain(folder / MARK_NAME)[0][: _MARK.size])
        except (OSError, struct.error):
            break
        if zlib.crc32(_MARK.pack(segment, record, 0)) == checksum and segment <= MAX_SEGMENT:
            return Mark(segment, record)
    return Mark(0, 0)


@dataclass(frozen=True)
class Missing:
    """Records that were acknowledged and are not in the log any more."""

    path: Path
    """The segment that held them, or the first of several."""
    first: int
    """Number of the first record."""
    last: int
    """Number of the last record."""
    reason: str

    @property
    def records(self) -> int:
        """How many records are missing."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        numbers = f"record {self.first:,} is" if self.records == 1 else f"records {self.first:,} to {self.last:,} are"
        return f"{self.path}: {self.reason}; {numbers} lost"


class GapFinder:
    """Follows the numbers of records in the order read and reports those that are missing.

    Args:
        folder: The log.
        report: Receives what is missing.
    """

    def __init__(self, folder: Path, report: Callable[[Missing], None]) -> None:
        self._folder, self._report = folder, report
        self._segment = self._before = 0
        self.next = self._next_at_start = 1
        """Number of the record that should come next; the reader counts it up while records come in order."""

    def enter(self, segment: int) -> None:
        """Begin to read a segment."""
        self._before, self._segment = self._segment, segment
        self._next_at_start = self.next

    def skip_to(self, number: int, is_explained: bool) -> None:
        """Take note of a record that is not the expected one, and report those between the two.

        Args:
            number: The record's number.
            is_explained: Whether damage was reported just before it, so that the records it held need no second report.
        """
        if number > self.next:
            is_start = self.next == self._next_at_start
            if is_start and self._segment > self._before + 1:
                self._missing_segments(self._before + 1, self._segment - 1, number - 1)
            elif is_start and self._before and not is_explained:
                self._missing(self._before, number - 1, "cut off")
            elif not is_explained:
                self._missing(self._segment, number - 1, "bytes were removed")
        self.next = max(self.next, number + 1)

    def end(self, mark: Mark) -> None:
        """Report the records between the last one and the mark, which was read before the log."""
        if mark.record < self.next:
            return
        if mark.segment > self._segment:
            self._missing_segments(self._segment + 1, mark.segment, mark.record)
        else:
            self._missing(mark.segment, mark.record, "cut off")

    def _missing_segments(self, first: int, last: int, record: int) -> None:
        reason = "missing" if first == last else f"missing, and all segments up to {segment_path(self._folder, last).name}"
        self._missing(first, record, reason)

    def _missing(self, segment: int, last: int, reason: str) -> None:
        self._report(Missing(segment_path(self._folder, segment), self.next, last, reason))
