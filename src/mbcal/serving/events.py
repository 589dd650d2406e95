"""The server's log: events as lines of JSON on standard error.

A thread of its own writes them, because a reader that has stopped reading (a pager, a log shipper that is stuck) would block
whoever writes. At most `MAX_WAITING` lines wait for it; what comes then is lost, and counted by the next line written.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import sys
import threading
import time
from typing import Any

MAX_WAITING = 1000
"""Lines that wait to be written."""
EXIT_SECONDS = 0.5
"""Longest time for which the end of the process waits for them."""


class EventLines:
    """Lines on their way to standard error."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._lost = 0

    def add(self, line: str) -> None:
        """Have a line written; it is lost if too many wait."""
        with self._lock:
            try:
                self._waiting.put_nowait(line)
                if self._thread is None:
                    thread = threading.Thread(target=self._write_forever, name="events", daemon=True)
                    thread.start()
                    self._thread = thread
            except queue.Full:
                self._lost += 1
            except RuntimeError:  # no thread can be started at the moment: the next line tries again
                pass

    def flush(self, seconds: float) -> None:
        """Wait until all lines are written, so many seconds at most."""
        done = self._waiting.all_tasks_done
        with done:
            done.wait_for(lambda: not self._waiting.unfinished_tasks, seconds)

    def _write_forever(self) -> None:
        while True:
            line = self._waiting.get()
            with self._lock:
                lost, self._lost = self._lost, 0
            if lost and _write(_line("lines lost", lines=lost)):
                lost = 0
            is_written = _write(line)
            with self._lock:
                self._lost += lost + (not is_written)
            self._waiting.task_done()


def _write(line: str) -> bool:
    """Write to the file, not to Python's stream: its lock, held by a thread that waits, would hold up the end."""
    try:
        if sys.__stderr__ is not None:
            os.write(sys.__stderr__.fileno(), line.encode() + b"\n")
        return True
    except (OSError, ValueError):  # its reader has ended, its disk is full, or it was closed
        return False


def _line(event: str, **values: Any) -> str:
    return json.dumps({"time": round(time.time(), 3), "event": event, **values})


_lines = EventLines()


def print_event(event: str, **values: Any) -> None:
    """Print an event as one line of JSON on standard error, soon.

    Nothing is raised and nobody waits if that cannot be written, because its reader has ended or does not read, or its disk
    is full: the line is lost, but what has happened is still dealt with.
    """
    _lines.add(_line(event, **values))


def flush_events() -> None:
    """Wait until all events are printed, `EXIT_SECONDS` at most."""
    _lines.flush(EXIT_SECONDS)


atexit.register(flush_events)
