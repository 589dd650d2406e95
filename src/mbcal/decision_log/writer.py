"""Writing a decision log: append-only segments, and one thread that makes all waiting records durable with one fdatasync.

A record is acknowledged when it is on disk. Records that arrive during an fdatasync share the next one (group commit), so
the cost of one falls with the load. After a crash the log holds every acknowledged record: opening it again removes the
incomplete record that the last write may have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

from mbcal.decision_log.appender import Appender
from mbcal.decision_log.records import Record, encode
from mbcal.decision_log.segments import MAX_RECORD_BYTES
from mbcal.errors import InputError, LogError, LogFullError, LogUnavailableError, MbcalError, OptionError
from mbcal.storage.atomic import to_output_error

CHECK_SECONDS = 1.0
"""Seconds without records after which the current segment is checked."""
RETRY_SECONDS = 0.5
"""Seconds between attempts to write again during an outage."""
STALL_SECONDS = 5.0
"""Seconds after which a disk that does not answer is an outage for new records; those that wait go on waiting."""


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

    If the log cannot be written (disk full, read-only, its segment or folder gone), an outage begins: every waiting and
    every new record fails with LogUnavailableError. The thread tries again every half second, and the outage ends when the
    disk has room or the folder is back; the segment is continued if it is intact, and otherwise a new one is begun.

    Args:
        folder: The log's folder, locked until `close` or the end of the process.
        segment_bytes: Largest segment; a record that is larger gets a segment of its own.
        max_waiting: Largest number of unacknowledged records; more are refused with LogFullError.
        linger: Seconds for which the first record of a coroutine waits for others before they are handed to the thread
            together, in [0, 1]. Under load this saves fdatasyncs and thread wake-ups, and it adds as much latency.
        on_event: Called, also from the log's thread, with `log_note`, `log_outage` or `log_recovered` and values.
        create: Whether the folder is created if it is absent.

    Raises:
        OptionError: If an option is out of range.
        LogError: If another process writes this log.
        OutputError: If the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        segment_bytes: int = 64 << 20,
        max_waiting: int = 10_000,
        linger: float = 0.0,
        on_event: Callable[..., None] = lambda *_, **__: None,
        create: bool = True,
    ) -> None:
        if segment_bytes < 1 or max_waiting < 1 or not 0 <= linger <= 1:
            rule = f"must be at least 1 and linger in [0, 1], got {segment_bytes}, {max_waiting} and {linger}"
            raise OptionError(f"decision log: segment_bytes and max_waiting {rule}")
        self.folder, self.max_waiting, self.linger, self._on_event = Path(folder), max_waiting, linger, on_event
        self.waiting = 0
        """Records that are not acknowledged yet."""
        self.outage: str | None = None
        """Why nothing can be written at the moment, without paths; None if all is well."""
        self.outages = 0
        """Number of outages so far."""
        self._gathered: list[_Waiting] = []  # from coroutines, not handed to the thread yet
        self._queue: SimpleQueue[list[_Waiting]] = SimpleQueue()  # an empty list ends the thread
        self._mutex = threading.Lock()  # of waiting, _gathered and _closed
        self._closed = False
        self._refused, self._outage_start = 0, 0.0
        self._busy_since: float | None = None  # since when the thread has waited for the disk
        try:
            self._appender = Appender(self.folder, segment_bytes, create)
        except OSError as error:
            raise to_output_error(str(self.folder), error) from error
        for note in self.notes:
            self._notify("log_note", note=note)
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
        self._thread.start()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was repaired or found missing when the log was opened, in sentences."""
        return self._appender.notes

    @property
    def last_record(self) -> int:
        """Number of the last acknowledged record."""
        return self._appender.last_record

    @property
    def lost(self) -> int:
        """Acknowledged records that are known to be missing."""
        return self._appender.lost

    @property
    def problem(self) -> str | None:
        """Why a record would not be written now: an outage, or a disk that does not answer; None if all is well."""
        since = self._busy_since
        if self.outage is None and since is not None and time.monotonic() - since > STALL_SECONDS:
            return "the disk does not answer"
        return self.outage

    def require_writable(self) -> None:
        """Raise LogUnavailableError if there is a `problem`."""
        problem = self.problem
        if problem is not None:
            raise LogUnavailableError(f"{self.folder}: cannot be written ({problem}); try again later", problem)

    def append(self, record: Record) -> Future[None]:
        """Queue a record, from any thread. Does not block.

        Returns:
            A future that is done when the record is on disk, or holds the LogUnavailableError that prevented it. It cannot
            be cancelled.

        Raises:
            LogError: If the log is closed.
            LogFullError: If too many records are waiting.
            LogUnavailableError: During an outage, or while the disk does not answer.
            InputError: If the record cannot be encoded or is too large.
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
            LogError: If the log is closed.
            LogFullError: If too many records are waiting.
            LogUnavailableError: If it could not be written.
            InputError: If the record cannot be encoded or is too large.
        """
        loop = asyncio.get_running_loop()
        done, payload = loop.create_future(), _encode_checked(record)
        with self._mutex:
            self._reserve()
            if not self._gathered or self._gathered[-1].done.get_loop() is not loop:  # type: ignore[union-attr]
                loop.call_later(self.linger, self._hand_over)
            self._gathered.append(_Waiting(payload, done))
        await done

    def close(self, seconds: float | None = None) -> bool:
        """Write what waits, then release the folder. Idempotent.

        Args:
            seconds: How long to wait for the disk; by default until all is on it. A disk that stalls longer leaves the rest,
                which was not acknowledged, to the log's thread, and the folder locked until the process ends.

        Returns:
            Whether all is on disk and the folder is released.
        """
        with self._mutex:
            is_first, self._closed = not self._closed, True
        if is_first:
            self._hand_over()
            self._queue.put([])
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _reserve(self) -> None:
        """Count one more waiting record, or raise; the caller holds the mutex."""
        if self._closed:
            raise LogError(f"{self.folder}: the decision log is closed; open it again to append")
        if self.outage is not None:
            self._refused += 1
        self.require_writable()
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
            self._busy_since = time.monotonic()
            if not batch and not is_last:
                self._look_after()
            while batch:
                failure = None
                try:
                    if self.outage is None:
                        count = self._appender.write([record.payload for record in batch])
                    else:  # queued just before the outage
                        self.require_writable()
                except Exception as error:  # all that wait fail at once, not one failed write after another
                    count, failure = len(batch), self._begin_outage(error, len(batch))
                with self._mutex:
                    self.waiting -= count
                _complete(batch[:count], failure)
                del batch[:count]
                self._busy_since = time.monotonic()
            self._busy_since = None
        self._appender.close()

    def _take_all(self) -> tuple[list[_Waiting], bool]:
        """Wait for records and return all that are queued, and whether the log is closing; nothing after a while."""
        batch: list[_Waiting] = []
        with contextlib.suppress(Empty):
            queued = self._queue.get(timeout=CHECK_SECONDS if self.outage is None else RETRY_SECONDS)
            while queued:
                batch.extend(queued)
                queued = self._queue.get_nowait()
            return batch, True
        return batch, False

    def _look_after(self) -> None:
        """Without records to write, see whether the log could be written, and end an outage."""
        try:
            if self.outage is None:
                self._appender.check()
            else:
                self._appender.recover()
                self._end_outage()
        except Exception as error:
            self._begin_outage(error, 0)

    def _begin_outage(self, error: Exception, count: int) -> LogUnavailableError:
        """Note why nothing can be written, and return the error for the records that were not."""
        self._refused += count
        if not isinstance(error, LogUnavailableError):
            reason = _reason(error)
            if self.outage is None:
                self.outages += 1
                self._outage_start = time.monotonic()
                self._notify("log_outage", log=str(self.folder), reason=reason, error=repr(error))
            self.outage = reason
        records = "record was" if count == 1 else "records were"
        problem = f"cannot be written ({self.outage}); {count:,} {records} not logged"
        return LogUnavailableError(f"{self.folder}: {problem}, new ones will be when that has ended", self.outage or "")

    def _end_outage(self) -> None:
        seconds, refused = time.monotonic() - self._outage_start, self._refused
        self.outage, self._refused = None, 0
        self._notify("log_recovered", log=str(self.folder), seconds=round(seconds, 1), refused=refused, lost=self.lost)

    def _notify(self, event: str, **values: Any) -> None:
        with contextlib.suppress(Exception):  # a broken event handler must not stop the log
            self._on_event(event, **values)


def _encode_checked(record: Record) -> bytes:
    payload = encode(record)
    if len(payload) > MAX_RECORD_BYTES:
        rule = f"has {len(payload):,} bytes, at most {MAX_RECORD_BYTES:,} are allowed"
        raise InputError(f"record {record.id!r}: {rule}; give fewer candidates")
    return payload


def _reason(error: Exception) -> str:
    """Why the log cannot be written, without paths."""
    if isinstance(error, LogError):
        return "its folder is in use or cannot be read"
    if not isinstance(error, OSError):
        return f"internal error, {type(error).__name__}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "the disk is full"
    return error.strerror or type(error).__name__


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
