"""TLS handshakes that count as connections: asyncio shows a server a TLS connection only after its handshake.

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


async def shake_hands(
    connections: Connections, context: ssl.SSLContext, make: Callable[[], BoundedProtocol], accepted: socket.socket
) -> None:
    """Shake hands with a client that was accepted, and give it its protocol.

    Args:
        connections: All connections of this process.
        context: The server's certificate.
        make: Makes the protocol of a connection whose handshake is complete.
        accepted: The socket.
    """
    handshake = Handshake(accepted, connections)
    connections.opened(handshake)

    def follow() -> asyncio.Protocol:
        protocol = make()
        protocol.handshake = handshake
        return protocol

    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            follow,
            accepted,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )
    except (OSError, TimeoutError):
        accepted.close()
        if handshake in connections.open:
            connections.closed["handshake"] += 1
    finally:
        connections.lost(handshake)


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
