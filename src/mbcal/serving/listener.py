"""A listener that accepts what waits at once: uvloop accepts one connection in a pass of the event loop.

A pass is long while many connections have requests, so one connection a pass would let whoever has them keep newcomers out.
`connections` closes connections fairly, but only those that have been accepted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

AT_A_TIME = 64
"""Connections accepted in one pass of the event loop. They count from the next one: `run.SPARE_FILES` has room for them."""
SHARED_AT_A_TIME = 8
"""As many with several workers: who accepts all that waits leaves nothing to the others, which may be idle."""
HANDSHAKES_AT_A_TIME = 8
"""As many with TLS: a handshake is a millisecond of work, and all requests wait for those that were begun together."""
PAUSE_SECONDS = 0.1
"""Seconds without accepting after the system has refused a connection, such as for want of files."""

LAST_SECONDS = 0.5
"""Seconds in which a connection must have its protocol after the listener was closed."""


class Listener:
    """Accepts connections; it is closed as an `asyncio.Server` is."""

    def __init__(
        self,
        listener: socket.socket,
        begin: Callable[[socket.socket], Coroutine[Any, Any, Any]],
        at_a_time: int = AT_A_TIME,
        on_refused: Callable[[OSError], None] = lambda _: None,
    ) -> None:
        """Begin to accept.

        Args:
            listener: A socket that listens and does not block.
            begin: Gives an accepted socket its protocol, and owns the socket from then on.
            at_a_time: Connections accepted in one pass of the event loop.
            on_refused: Called when the system refuses a connection, such as for want of files.
        """
        self._listener, self._begin, self._at_a_time, self._on_refused = listener, begin, at_a_time, on_refused
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_a_time):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):  # none waits, or another process took it, or it has gone
                return
            except OSError as error:
                self._on_refused(error)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._begin(accepted))
            self._beginning.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._beginning.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the client may have gone before it had a protocol

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Wait until every connection has its protocol; those that take longer than `LAST_SECONDS` are closed."""
        if self._beginning:
            await asyncio.wait(self._beginning, timeout=LAST_SECONDS)
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)
