"""Answers on their way to a client: only as much is given to the transport as it takes, so that what is not read is known.

With TLS, a transport encrypts whatever it is given at once and hands it on; it never says that too much waits, nor how much.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

PIECE = 16 * 1024
"""Bytes given to the transport at a time; more wait in it only for a moment, or with TLS below it (64 KiB)."""


class Outbox(asyncio.Transport):
    """A transport in front of another: it keeps what the other does not take yet, and closes the other when all has left.

    The protocol must tell it when the other pauses and resumes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._transport.set_write_buffer_limits(PIECE)
        self._parts: deque[memoryview] = deque()
        self._size = 0  # bytes of the parts
        self._is_paused = self._is_closing = False

    def write(self, data: Any) -> None:
        if data:
            self._parts.append(memoryview(data))
            self._size += len(data)
            self._send()

    def pause(self) -> None:
        """Keep what is written from now on."""
        self._is_paused = True

    def resume(self) -> bool:
        """Send what was kept; return whether all of it has left."""
        self._is_paused = False
        self._send()
        return not self._is_paused

    def _send(self) -> None:
        if self._transport.is_closing():
            self.clear()
        while self._parts and not self._is_paused and not self._transport.is_closing():
            part = self._parts.popleft()
            if len(part) > PIECE:
                self._parts.appendleft(part[PIECE:])
                part = part[:PIECE]
            self._size -= len(part)
            self._transport.write(part)  # may call `pause`
        if self._is_closing and not self._parts:
            self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Close when all has left; nothing is read any more."""
        self._is_closing = True
        if self._parts:
            self._transport.pause_reading()
        else:
            self._transport.close()

    def abort(self) -> None:
        self.clear()
        self._transport.abort()

    def clear(self) -> None:
        """Forget what was kept."""
        self._parts.clear()
        self._size = 0

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
