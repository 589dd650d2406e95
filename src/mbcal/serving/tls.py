"""A TLS listener whose handshakes count as connections: asyncio shows a server a TLS connection only after its handshake.

::

    accepted ──▶ Handshake, counted and closed as any other connection ──▶ complete: HTTP takes its place
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from mbcal.serving.clients import client_of
from mbcal.serving.connections import Connections
from mbcal.serving.protocol import BoundedProtocol

HANDSHAKE_SECONDS = 5.0
"""Seconds in which a handshake must be complete."""
SHUTDOWN_SECONDS = 1.0
"""Seconds in which a client must agree that a connection is closed; it counts until then."""
PAUSE_SECONDS = 0.1
"""Seconds without accepting after the system has refused a connection, such as for want of files."""


class TlsListener:
    """Accepts connections and shakes hands; it is closed as an `asyncio.Server` is."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        context: ssl.SSLContext,
        make: Callable[[], BoundedProtocol],
    ) -> None:
        """Begin to accept.

        Args:
            listener: A socket that listens.
            connections: All connections of this process.
            context: The server's certificate.
            make: Makes the protocol of a connection whose handshake is complete.
        """
        self._listener, self._connections, self._context, self._make = listener, connections, context, make
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept_forever())

    async def _accept_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            task = loop.create_task(self._shake_hands(accepted))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        handshake = Handshake(accepted, self._connections)
        self._connections.opened(handshake)

        def follow() -> asyncio.Protocol:
            protocol = self._make()
            protocol.handshake = handshake
            return protocol

        try:
            await loop.connect_accepted_socket(
                follow,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except (OSError, TimeoutError):
            accepted.close()
            if handshake in self._connections.open:
                self._connections.closed["handshake"] += 1
        finally:
            self._connections.lost(handshake)

    def close(self) -> None:
        """Accept no more; handshakes that are not complete end."""
        for task in (self._accepting, *self._shaking):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted and no handshake goes on."""
        await asyncio.gather(self._accepting, *self._shaking, return_exceptions=True)


class Handshake:
    """A connection whose TLS handshake is not complete, as `protocol.Connection`."""

    is_waiting, is_idle = True, False

    def __init__(self, accepted: socket.socket, connections: Connections) -> None:
        self._socket, self._connections = accepted, connections
        self.since, self.held = asyncio.get_running_loop().time(), 0
        self.address = ""
        with contextlib.suppress(OSError):  # the client may be gone
            self.address = client_of(str(accepted.getpeername()[0]))

    def end(self, reason: str) -> None:
        """Close the connection at once."""
        self._connections.closed[reason] += 1
        self._connections.lost(self)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the handshake fails, and the transport closes the socket

    def refuse(self, _: int, __: str, reason: str, /) -> None:
        """Close the connection: nothing can be said before the handshake."""
        self.end(reason)

    def check_time(self, now: float, seconds: float) -> None:
        """Do nothing: the handshake has a limit of its own."""
