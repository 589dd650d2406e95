"""The decision log, written: append-only segments, one thread that writes what waits and syncs once for all of it.

A record is acknowledged when it is on the disk. Records that arrive during a sync share the next one, so the more there are,
the fewer syncs each costs. Whatever ends the process, the log holds every acknowledged record: opening it again cuts off
what the last write left half done.
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
from mbcal.decision_log.segments import FRAME, HEADER, LONGEST, frame, header, numbers, pieces, segment_path
from mbcal.errors import LogError, LogFullError, MbcalError, OptionError, OutputError
from mbcal.storage.atomic import fsync, to_output_error

PARQUET = r"(?:decisions|feedback)-(\d{6,})\.parquet"
"""Names of what compaction makes of a segment."""


class _Waiting(NamedTuple):
    payload: bytes
    done: Future[None] | asyncio.Future[None]


class DecisionLog:
    """A log opened for writing, by one process at a time: `append` and wait, or `await append_async`.

    `notes` says what was mended when it was opened. `waiting` counts the records not acknowledged yet; beyond `most_waiting`
    new ones are refused with `LogFullError`. A coroutine's record waits `linger` seconds for others to share its sync: a
    sync costs more than all else, and where records come one by one there would be one each. They gather in the event loop
    and reach the thread together, since waking it for each would cost as much again.
    """

    def __init__(
        self, folder: str | Path, *, segment_bytes: int = 64 << 20, most_waiting: int = 10_000, linger: float = 0.0
    ) -> None:
        if segment_bytes < 1 or most_waiting < 1 or not 0 <= linger <= 1:
            rule = f"must be at least 1 and linger in [0, 1], got {segment_bytes}, {most_waiting} and {linger}"
            raise OptionError(f"decision log: segment_bytes and most_waiting {rule}")
        self.folder, self.segment_bytes, self.most_waiting, self.linger = Path(folder), segment_bytes, most_waiting, linger
        self.notes: tuple[str, ...] = ()
        self.waiting = 0
        self._gathered: list[_Waiting] = []  # in the event loop, not yet handed over
        self._queue: SimpleQueue[list[_Waiting]] = SimpleQueue()  # an empty list is the last
        self._changing = threading.Lock()
        self._closed = False
        self._dirty = False  # bytes beyond `_size` may be in the file: cut before the next write
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            fsync(self.folder.parent)
            self._lock = _locked(self.folder)
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
        """Queue a record; the future is done when it is on the disk, or carries why it is not."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # what is queued is written: too late to cancel
        payload = _payload(record)
        with self._changing:
            self._count_one()
            self._queue.put([_Waiting(payload, done)])
        return done

    async def append_async(self, record: Record) -> None:
        """Queue a record and wait until it is on the disk."""
        loop = asyncio.get_running_loop()
        done, payload = loop.create_future(), _payload(record)
        with self._changing:
            self._count_one()
            if not self._gathered or self._gathered[-1].done.get_loop() is not loop:  # type: ignore[union-attr]
                loop.call_later(self.linger, self._hand_over)
            self._gathered.append(_Waiting(payload, done))
        await done

    def close(self) -> None:
        """Write what waits, then let go of the folder. Closing twice does nothing."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
        self._hand_over()
        self._queue.put([])
        self._thread.join()
        if self._dirty:
            with contextlib.suppress(OSError):  # opening it again cuts it too
                os.ftruncate(self._file, self._size)
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _count_one(self) -> None:
        """One more that waits, or the reason why it may not."""
        if self._closed:
            raise LogError(f"{self.folder}: the decision log is closed; open it again to append")
        if self.waiting >= self.most_waiting:
            raise LogFullError(f"{self.folder}: {self.waiting:,} records wait to be written; try again in a moment")
        self.waiting += 1

    def _hand_over(self) -> None:
        with self._changing:
            if self._gathered:
                self._queue.put(self._gathered)
                self._gathered = []

    def _run(self) -> None:
        last = False
        while not last:
            batch, last = self._taken()
            while batch:
                group: list[_Waiting] = []
                try:
                    self._write(batch, group)
                    failure = None
                except Exception as error:
                    group.extend(batch)  # whoever waits hears it now, rather than one disk error at a time
                    batch.clear()
                    failure = _failure(self.folder, error, len(group))
                with self._changing:
                    self.waiting -= len(group)
                _settle(group, failure)

    def _taken(self) -> tuple[deque[_Waiting], bool]:
        """All that was handed over, waiting for the first of it; and whether it is the last."""
        given = self._queue.get()
        batch = deque(given)
        with contextlib.suppress(Empty):
            while given:
                given = self._queue.get_nowait()
                batch.extend(given)
        return batch, not given

    def _write(self, batch: deque[_Waiting], group: list[_Waiting]) -> None:
        """Move from the batch to the group what fits into a segment, and put it on the disk."""
        if self._dirty:
            os.ftruncate(self._file, self._size)
            self._dirty = False
        if self._size > HEADER.size and self._size + FRAME + len(batch[0].payload) > self.segment_bytes:
            self._rotate()
        frames: list[bytes] = []
        end = self._size
        while batch and (not frames or end + FRAME + len(batch[0].payload) <= self.segment_bytes):
            frames.append(frame(batch[0].payload, self._number, end))
            end += len(frames[-1])
            group.append(batch.popleft())
        self._dirty = True
        _write_all(self._file, b"".join(frames))
        _sync(self._file)
        self._size, self._dirty = end, False

    def _rotate(self) -> None:
        following = _create(self.folder, self._number + 1)
        os.close(self._file)
        self._file, self._number, self._size = following, self._number + 1, HEADER.size

    def _open(self) -> tuple[int, int, int]:
        """The segment to go on with: its number, its size and its file."""
        listed, compacted = numbers(self.folder), numbers(self.folder, PARQUET)
        last, latest = max(listed, default=0), max(listed + compacted, default=0)
        if not last or last in compacted or last < latest:
            return latest + 1, HEADER.size, _create(self.folder, latest + 1)
        path = segment_path(self.folder, last)
        data = path.read_bytes()
        found = list(pieces(data, last))
        records = sum(piece.payload is not None for piece in found)
        if not records and data[: HEADER.size] != header(last):  # the process ended as it began the segment
            os.unlink(path)
            return last, HEADER.size, _create(self.folder, last)
        if any(piece.payload is None for piece in found[:-1]):  # no torn tail: records follow, so nothing may be cut
            self.notes = (f"{path}: damaged in the middle; it is left as it is and segment {last + 1} begun",)
            return last + 1, HEADER.size, _create(self.folder, last + 1)
        size, file = len(data), os.open(path, os.O_WRONLY | os.O_APPEND)
        if found and found[-1].payload is None:
            size = found[-1].start
            self.notes = (f"{path}: {len(data) - size} bytes of an unfinished record cut after {records} records",)
            os.ftruncate(file, size)
        _sync(file)  # what a dead process wrote but did not sync must not be lost once it has been read
        fsync(self.folder)
        return last, size, file


def _payload(record: Record) -> bytes:
    payload = encode(record)
    if len(payload) > LONGEST:
        rule = f"has {len(payload):,} bytes, at most {LONGEST:,} are kept"
        raise LogError(f"record {record.id!r}: {rule}; give fewer candidates")
    return payload


def _locked(folder: Path) -> int:
    """The folder's lock, which the process holds until it closes it or ends in any way."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise LogError(f"{folder}: another process writes this decision log; stop it or choose another folder") from None
    return lock


def _create(folder: Path, number: int) -> int:
    """A new segment, its name and header on the disk."""
    path = segment_path(folder, number)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        _write_all(file, header(number))
        _sync(file)
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


def _sync(file: int) -> None:
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file)


def _failure(folder: Path, error: Exception, count: int) -> OutputError:
    lost = f"{count:,} {'record was' if count == 1 else 'records were'} not logged"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(f"{folder}: the disk is full; {lost}, free some space and new ones will be")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    return OutputError(f"{folder}: cannot be written ({reason}); {lost}, check the disk and permissions")


def _settle(group: Sequence[_Waiting], failure: MbcalError | None) -> None:
    """Tell all_gather_ints who waits; an event loop is woken once for all of its own."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}
    for _, done in group:
        if isinstance(done, asyncio.Future):
            loops.setdefault(done.get_loop(), []).append(done)
        elif failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle_here, futures, failure)


def _settle_here(futures: Sequence[asyncio.Future[None]], failure: MbcalError | None) -> None:
    for future in futures:
        if not future.done():  # its client may have left
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
