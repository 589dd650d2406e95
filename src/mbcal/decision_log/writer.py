"""Writing a decision log: append-only segments, and one thread that makes all waiting records durable with one fdatasync.

A record is acknowledged when it is on disk. Records that arrive during an fdatasync share the next one (group commit), so
the cost of one falls with the load. After a crash the log holds every acknowledged record: opening it again removes the
incomplete record that the last write may have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

from mbcal.decision_log.records import Record, encode
from mbcal.decision_log.segments import (
    FRAME_BYTES,
    HEADER,
    MAX_RECORD_BYTES,
    frame_record,
    parquet_numbers,
    scan_segment,
    segment_header,
    segment_numbers,
    segment_path,
)
from mbcal.errors import LogError, LogFullError, MbcalError, OptionError, OutputError
from mbcal.storage.atomic import fsync, to_output_error


class _Waiting(NamedTuple):
    """An encoded record, and the future that is set when it is on disk."""

    payload: bytes
    done: Future[None] | asyncio.Future[None]


class DecisionLog:
    """A decision log opened for writing, by one process at a time.

    Threads call `append` and wait on the future it returns; coroutines await `append_async`. Neither does any I/O: both
    encode the record and queue it for the log's own thread, which writes all queued records to the current segment, calls
    fdatasync once, and then completes their futures. Records reach the disk in the order in which they were queued. Only
    opening, `close` and waiting on a future block on the disk.

    A failed write (disk full, I/O error) fails every queued record with one OutputError, and its partial bytes are removed
    before the next write; the log stays open and later records are tried again.

    Args:
        folder: The log's folder. Created if absent, locked until `close` or the end of the process.
        segment_bytes: Largest segment; a record that is larger gets a segment of its own.
        max_waiting: Largest number of unacknowledged records; more are refused with LogFullError.
        linger: Seconds for which the first record of a coroutine waits for others before they are handed to the thread
            together, in [0, 1]. Under load this saves fdatasyncs and thread wake-ups, and it adds as much latency.

    Raises:
        OptionError: If an option is out of range.
        LogError: If another process writes this log.
        OutputError: If the folder cannot be written.
    """

    def __init__(
        self, folder: str | Path, *, segment_bytes: int = 64 << 20, max_waiting: int = 10_000, linger: float = 0.0
    ) -> None:
        if segment_bytes < 1 or max_waiting < 1 or not 0 <= linger <= 1:
            rule = f"must be at least 1 and linger in [0, 1], got {segment_bytes}, {max_waiting} and {linger}"
            raise OptionError(f"decision log: segment_bytes and max_waiting {rule}")
        self.folder, self.segment_bytes, self.max_waiting, self.linger = Path(folder), segment_bytes, max_waiting, linger
        self.notes: tuple[str, ...] = ()
        """What was repaired when the log was opened, in sentences."""
        self.waiting = 0
        """Records that are not acknowledged yet."""
        self._gathered: list[_Waiting] = []  # from coroutines, not handed to the thread yet
        self._queue: SimpleQueue[list[_Waiting]] = SimpleQueue()  # an empty list ends the thread
        self._mutex = threading.Lock()  # of waiting, _gathered and _closed
        self._closed = False
        self._dirty = False  # the file may hold bytes beyond `_size`: truncate before the next write
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fsync(self.folder.parent)
            self._lock = _lock_folder(self.folder)
            try:
                self._number, self._size, self._file = self._open()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise to_output_error(str(self.folder), error) from error
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    def append(self, record: Record) -> Future[None]:
        """Queue a record, from any thread. Does not block.

        Returns:
            A future that is done when the record is on disk, or holds the OutputError that prevented it. It cannot be
            cancelled.

        Raises:
            LogError: If the log is closed or the record is too large.
            LogFullError: If too many records are waiting.
            InputError: If the record cannot be encoded.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # a queued record will be written: too late to cancel
        payload = _encode_checked(record)
        with self._mutex:
            self._reserve()
            self._queue.put([_Waiting(payload, done)])
        return done

    async def append_async(self, record: Record) -> None:
        """Queue a record and return when it is on disk. Does not block the event loop.

        If the caller is cancelled, the record is written all the same.

        Raises:
            LogError: If the log is closed or the record is too large.
            LogFullError: If too many records are waiting.
            InputError: If the record cannot be encoded.
            OutputError: If it could not be written.
        """
        loop = asyncio.get_running_loop()
        done, payload = loop.create_future(), _encode_checked(record)
        with self._mutex:
            self._reserve()
            if not self._gathered or self._gathered[-1].done.get_loop() is not loop:  # type: ignore[union-attr]
                loop.call_later(self.linger, self._hand_over)
            self._gathered.append(_Waiting(payload, done))
        await done

    def close(self) -> None:
        """Write what waits, then release the folder. Blocks until all of it is on disk. Idempotent."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._hand_over()
        self._queue.put([])
        self._thread.join()
        if self._dirty:
            with contextlib.suppress(OSError):  # the next process to open the log truncates it too
                os.ftruncate(self._file, self._size)
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _reserve(self) -> None:
        """Count one more waiting record, or raise; the caller holds the mutex."""
        if self._closed:
            raise LogError(f"{self.folder}: the decision log is closed; open it again to append")
        if self.waiting >= self.max_waiting:
            raise LogFullError(f"{self.folder}: {self.waiting:,} records wait to be written; try again in a moment")
        self.waiting += 1

    def _hand_over(self) -> None:
        """Give the thread what coroutines have gathered."""
        with self._mutex:
            if self._gathered:
                self._queue.put(self._gathered)
                self._gathered = []

    # ---- in the log's thread

    def _run(self) -> None:
        is_last = False
        while not is_last:
            batch, is_last = self._take_all()
            while batch:
                group: list[_Waiting] = []
                try:
                    self._write(batch, group)
                    failure = None
                except Exception as error:
                    group.extend(batch)  # all that wait fail at once, not one failed write after another
                    batch.clear()
                    failure = _to_failure(self.folder, error, len(group))
                with self._mutex:
                    self.waiting -= len(group)
                _complete(group, failure)

    def _take_all(self) -> tuple[deque[_Waiting], bool]:
        """Wait for records and return all that are queued, and whether the log is closing."""
        queued = self._queue.get()
        batch = deque(queued)
        with contextlib.suppress(Empty):
            while queued:
                queued = self._queue.get_nowait()
                batch.extend(queued)
        return batch, not queued

    def _write(self, batch: deque[_Waiting], group: list[_Waiting]) -> None:
        """Move what fits into one segment from the batch to the group, and make it durable."""
        if self._dirty:
            os.ftruncate(self._file, self._size)
            self._dirty = False
        if self._size > HEADER.size and self._size + FRAME_BYTES + len(batch[0].payload) > self.segment_bytes:
            self._rotate()
        frames: list[bytes] = []
        end = self._size
        while batch and (not frames or end + FRAME_BYTES + len(batch[0].payload) <= self.segment_bytes):
            frames.append(frame_record(batch[0].payload, self._number, end))
            end += len(frames[-1])
            group.append(batch.popleft())
        self._dirty = True
        _write_all(self._file, b"".join(frames))
        _fdatasync(self._file)
        self._size, self._dirty = end, False

    def _rotate(self) -> None:
        """Begin the next segment."""
        file = _create_segment(self.folder, self._number + 1)
        os.close(self._file)
        self._file, self._number, self._size = file, self._number + 1, HEADER.size

    # ---- opening

    def _open(self) -> tuple[int, int, int]:
        """Open the segment to continue with, repaired: its number, its size and its file descriptor."""
        segments, compacted = segment_numbers(self.folder), parquet_numbers(self.folder)
        last, newest = max(segments, default=0), max(segments + compacted, default=0)
        if not last or last in compacted or last < newest:
            return newest + 1, HEADER.size, _create_segment(self.folder, newest + 1)
        path = segment_path(self.folder, last)
        data = path.read_bytes()
        spans = list(scan_segment(data, last))
        records = sum(span.payload is not None for span in spans)
        if not records and data[: HEADER.size] != segment_header(last):  # the process ended while it created the segment
            os.unlink(path)
            return last, HEADER.size, _create_segment(self.folder, last)
        if any(span.payload is None for span in spans[:-1]):  # records follow the damage, so it is no torn tail: keep all
            self.notes = (f"{path}: damaged in the middle; it is left as it is and segment {last + 1} is begun",)
            return last + 1, HEADER.size, _create_segment(self.folder, last + 1)
        size, file = len(data), os.open(path, os.O_WRONLY | os.O_APPEND)
        if spans and spans[-1].payload is None:
            size = spans[-1].start
            self.notes = (f"{path}: {len(data) - size} bytes of an incomplete record removed after {records} records",)
            os.ftruncate(file, size)
        _fdatasync(file)  # a killed process may have written without fdatasync; what was read must not be lost later
        fsync(self.folder)
        return last, size, file


def _encode_checked(record: Record) -> bytes:
    payload = encode(record)
    if len(payload) > MAX_RECORD_BYTES:
        rule = f"has {len(payload):,} bytes, at most {MAX_RECORD_BYTES:,} are allowed"
        raise LogError(f"record {record.id!r}: {rule}; give fewer candidates")
    return payload


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


def _to_failure(folder: Path, error: Exception, count: int) -> OutputError:
    lost = f"{count:,} {'record was' if count == 1 else 'records were'} not logged"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(f"{folder}: the disk is full; {lost}, free some space and new records will be")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    return OutputError(f"{folder}: cannot be written ({reason}); {lost}, check the disk and its permissions")


def _complete(group: Sequence[_Waiting], failure: MbcalError | None) -> None:
    """Complete the futures of a group; an event loop is woken once for all of its futures."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}
    for _, done in group:
        if isinstance(done, asyncio.Future):
            loops.setdefault(done.get_loop(), []).append(done)
        elif failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits any more
            loop.call_soon_threadsafe(_complete_in_loop, futures, failure)


def _complete_in_loop(futures: Sequence[asyncio.Future[None]], failure: MbcalError | None) -> None:
    for future in futures:
        if not future.done():  # cancelled, if its client has disconnected
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
