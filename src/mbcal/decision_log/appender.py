"""The file side of a decision log: the folder's lock, the current segment, the numbers of records, and repairs.

Before every write the segment is looked for under its name: one that was unlinked, moved with its folder, cut or written to
by another program would lose records without an error. So is the mark, without which a loss would not be noticed later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from mbcal.decision_log.archive import compacted_numbers, last_number
from mbcal.decision_log.numbering import Mark, MarkFile, read_mark
from mbcal.decision_log.segments import (
    FRAME_BYTES,
    HEADER,
    MARK_NAME,
    frame_record,
    parquet_numbers,
    scan_segment,
    segment_header,
    segment_numbers,
    segment_path,
)
from mbcal.errors import LogError
from mbcal.storage.atomic import fsync
from mbcal.storage.plain_file import read_plain

PROBE_BYTES = 256 << 10
"""Room that there must be before a log that could not be written is written again."""


class SegmentLostError(OSError):
    """The current segment is not where it was, or another program has changed it."""


class Appender:
    """Appends records to a folder's segments; not thread-safe.

    Args:
        folder: The log's folder, locked until `close` or the end of the process.
        segment_bytes: Largest segment; a record that is larger gets a segment of its own.
        create: Whether the folder is created if it is absent.

    Raises:
        LogError: If another process writes this log, or a segment has another format.
        OSError: If the folder cannot be written.
    """

    def __init__(self, folder: Path, segment_bytes: int, create: bool = True) -> None:
        self.folder, self.segment_bytes = folder, segment_bytes
        self.notes: tuple[str, ...] = ()
        """What was repaired or found missing when the log was opened, in sentences."""
        self.lost = 0
        """Acknowledged records that are known to be missing."""
        self._is_dirty = False  # the file may hold bytes beyond `_size`: truncate before the next write
        self._records = 0  # of the current segment, acknowledged
        self._first = b""  # the frame of the first of them, without its payload
        self._next = 1  # number of the next record
        self._earlier = 0  # number of the last record of the segments before the current one
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        fsync(folder.parent)
        self._lock = _lock_folder(folder)
        try:
            self._segment, self._size, self._file = self._open()
            self._mark = MarkFile(folder)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def last_record(self) -> int:
        """Number of the last acknowledged record."""
        return self._next - 1

    def write(self, payloads: Sequence[bytes]) -> int:
        """Write what fits into one segment, and make it durable.

        Args:
            payloads: Encoded records, at least one.

        Returns:
            How many of them were written.

        Raises:
            SegmentLostError: If the current segment is not as it was left.
            OSError: If it cannot be written. None of the records counts as written.
        """
        self.check()
        if self._size > HEADER.size and self._size + FRAME_BYTES + len(payloads[0]) > self.segment_bytes:
            self._begin_segment(self._segment + 1)
        frames: list[bytes] = []
        end = self._size
        for payload in payloads:
            if frames and end + FRAME_BYTES + len(payload) > self.segment_bytes:
                break
            frames.append(frame_record(payload, self._segment, end, self._next + len(frames)))
            end += len(frames[-1])
        if not self._records:
            self._first = frames[0][:FRAME_BYTES]
        self._is_dirty = True
        _write_all(self._file, b"".join(frames))
        _fdatasync(self._file)
        self._size, self._is_dirty = end, False
        self._next += len(frames)
        self._records += len(frames)
        self._mark.write(Mark(self._segment, self._next - 1))
        return len(frames)

    def check(self) -> None:
        """Compare the current segment with what was written to it; remove what a failed write left; restore a lost mark.

        Raises:
            SegmentLostError: If it is not under its name, or has another size.
            OSError: If it cannot be examined or truncated.
        """
        try:
            named = os.stat(segment_path(self.folder, self._segment))
        except FileNotFoundError:
            raise SegmentLostError(errno.ENOENT, "the current segment has vanished") from None
        if not os.path.samestat(named, os.fstat(self._file)):
            raise SegmentLostError(errno.ENOENT, "the current segment was replaced")
        if named.st_size < self._size:
            raise SegmentLostError(errno.EIO, "the current segment was cut off")
        if named.st_size > self._size:
            if not self._is_dirty:
                raise SegmentLostError(errno.EIO, "another program has written to the current segment")
            os.ftruncate(self._file, self._size)
        self._is_dirty = False
        with contextlib.suppress(OSError):  # without a mark the log is as good, but a later loss at its end is not noticed
            if self._follow_mark():
                self._mark.write(Mark(self._segment, self.last_record))

    def recover(self) -> None:
        """Make the log writable again after a failure: with the same segment if it is intact, else with a new one.

        Raises:
            LogError: If the folder is back, but another process writes to it.
            OSError: If the folder is missing, or the disk has no room.
        """
        os.stat(self.folder)
        if not _is_same(self.folder / "lock", self._lock):
            lock = _lock_folder(self.folder)
            os.close(self._lock)
            self._lock = lock
        mark = read_mark(self.folder)
        self._follow_mark()
        try:
            self.check()
        except SegmentLostError:
            existing = segment_numbers(self.folder) + parquet_numbers(self.folder)
            left, earlier = self._records_left(), self._last_record(without=self._segment)
            lost = self._records - left + max(self._earlier - earlier, 0)
            last = self._earlier + left if left else earlier
            self._begin_segment(max([self._segment, mark.segment, *existing]) + 1)
            self.lost, self._earlier = min(self.lost + lost, self.last_record - left), last
            self._next = max(self._next, mark.record + 1)
        self._is_dirty = True
        _write_all(self._file, bytes(PROBE_BYTES))
        _fdatasync(self._file)
        os.ftruncate(self._file, self._size)
        self._is_dirty = False
        self._mark.write(Mark(self._segment, self._next - 1))

    def close(self) -> None:
        """Remove what a failed write left, and release the folder."""
        if self._is_dirty:
            with contextlib.suppress(OSError):  # the next process to open the log truncates it too
                self.check()
        self._mark.close()
        os.close(self._file)
        os.close(self._lock)

    def _follow_mark(self) -> bool:
        """Open the mark again if it is not the file under its name any more; return whether that was so."""
        if _is_same(self.folder / MARK_NAME, self._mark.file):
            return False
        mark_file = MarkFile(self.folder)
        self._mark.close()
        self._mark = mark_file
        return True

    def _records_left(self) -> int:
        """Number of records that are still in the current segment, under its name; 0 if that is a segment of another log."""
        path = segment_path(self.folder, self._segment)
        try:
            data = read_plain(path)[0]
        except OSError:
            return 0
        if not _is_same(path, self._file) and not data.startswith(self._first, HEADER.size):
            return 0
        return min(sum(span.payload is not None for span in scan_segment(data, self._segment)), self._records)

    def _begin_segment(self, number: int) -> None:
        """Continue with a new segment."""
        file = _create_segment(self.folder, number)
        os.close(self._file)
        self._file, self._segment, self._size = file, number, HEADER.size
        self._is_dirty, self._records, self._earlier = False, 0, self.last_record

    # ---- opening

    def _open(self) -> tuple[int, int, int]:
        """Open the segment to continue with, repaired: its number, its size and its file descriptor."""
        mark = read_mark(self.folder)
        segments, compacted = segment_numbers(self.folder), parquet_numbers(self.folder)
        last, newest = max(segments, default=0), max([*segments, *compacted, mark.segment])
        last_record = self._last_record()
        self._next, self.lost = 1 + max(mark.record, last_record), max(mark.record - last_record, 0)
        if self.lost:  # all files are left as they are: they show what happened
            path = segment_path(self.folder, mark.segment)
            problem = f"{self.lost:,} acknowledged records are missing at the end of the log"
            self.notes = (f"{path}: {problem}; segment {newest + 1} is begun",)
        self._earlier = last_record
        if self.lost or not last or last in compacted or last < newest:
            return newest + 1, HEADER.size, _create_segment(self.folder, newest + 1)
        return self._open_segment(last)

    def _open_segment(self, segment: int) -> tuple[int, int, int]:
        """Open the last segment and remove an incomplete record at its end; begin the next if it is damaged before that."""
        path = segment_path(self.folder, segment)
        data = read_plain(path)[0]
        spans = list(scan_segment(data, segment))
        records = sum(span.payload is not None for span in spans)
        if not records and data[: HEADER.size] != segment_header(segment):  # the process ended while it created the segment
            os.unlink(path)
            return segment, HEADER.size, _create_segment(self.folder, segment)
        if any(span.payload is None for span in spans[:-1]):  # records follow the damage, so it is no torn tail: keep all
            self.notes = (f"{path}: damaged in the middle; it is left as it is and segment {segment + 1} is begun",)
            return segment + 1, HEADER.size, _create_segment(self.folder, segment + 1)
        size, file = len(data), os.open(path, os.O_WRONLY | os.O_APPEND)
        if spans and spans[-1].payload is None:
            size = spans[-1].start
            self.notes = (f"{path}: {len(data) - size} bytes of an incomplete record removed after {records} records",)
            os.ftruncate(file, size)
        _fdatasync(file)  # a killed process may have written without fdatasync; what was read must not be lost later
        fsync(self.folder)
        self._records, self._earlier = records, self.last_record - records
        self._first = data[HEADER.size : HEADER.size + FRAME_BYTES]
        return segment, size, file

    def _last_record(self, without: int = 0) -> int:
        """Number of the last record in the files, those of one segment left out; 0 if there is none."""
        compacted = compacted_numbers(self.folder)
        for segment in sorted({*segment_numbers(self.folder), *compacted} - {without}, reverse=True):
            if segment in compacted:
                number = last_number(self.folder, segment)
            else:
                spans = scan_segment(read_plain(segment_path(self.folder, segment))[0], segment)
                number = max((span.number for span in spans), default=0)
            if number:
                return number
        return 0


def _is_same(path: Path, file: int) -> bool:
    """Whether an open file is still the one under this path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _lock_folder(folder: Path) -> int:
    """Lock a folder for writing; the lock is held until the descriptor is closed or the process ends."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise LogError(f"{folder}: another process writes this decision log; stop it or choose another folder") from None
    return lock


def _create_segment(folder: Path, number: int) -> int:
    """Create a segment whose name and header are on disk; nothing is left of it on failure."""
    path = segment_path(folder, number)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        _write_all(file, segment_header(number))
        _fdatasync(file)
        fsync(folder)
    except BaseException:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return file


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _fdatasync(file: int) -> None:
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file)
