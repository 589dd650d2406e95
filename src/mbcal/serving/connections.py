"""All connections of a process: how many there are, which are closed when there are too many, and what they hold.

When too many connections are open, the address that has most of them loses one, and so on: of its connections those that
have made the server wait longest for a complete request, then those that have been answered and are idle, then the one that
has just been opened, last those whose requests are being handled: a client can keep all of its connections busy. So whoever
holds many cannot push out an address that has few. Connections count from the moment they are accepted (`tls`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nlargest, nsmallest
from typing import Any, Protocol

SWEEP_SECONDS = 0.5
"""Seconds between two searches for connections that take too long."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on connections."""

    max_connections: int = 1000
    """Open connections."""
    max_head: int = 16 * 1024
    """Bytes of a request without its body: request line, headers, chunk sizes, trailers."""
    max_headers: int = 100
    """Headers of a request."""
    head_seconds: float = 5.0
    """Seconds in which the head must arrive, from the first byte or from the opening of the connection; also seconds without
    progress after which a client that does not read its answer is closed."""
    max_buffered: int = 64 << 20
    """Bytes of bodies being received, of requests that wait for the answer to an earlier one, and of answers not read; of
    all connections together."""


class Connection(Protocol):
    """An open connection, as `Connections` sees it: HTTP, or a TLS handshake that is not complete."""

    address: str
    """The client's, as `clients.client_of` has it."""
    since: float
    """Time of the event loop since which the server has waited for the client."""
    held: int
    """Bytes this connection makes the server hold: of bodies, requests that wait, and answers not read."""

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for the client: no complete request is being handled."""

    @property
    def is_idle(self) -> bool:
        """Whether a request was answered and no other has begun."""

    def end(self, reason: str) -> None:
        """Close the connection at once, whatever the client has not read."""

    def refuse(self, status: int, sentence: str, reason: str, /) -> None:
        """Answer with a refusal, if that is possible, and close the connection."""

    def check_time(self, now: float, seconds: float) -> None:
        """Close the connection if the client takes longer than allowed."""


class Connections:
    """All connections of a process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.open: set[Connection] = set()
        self._of_address: dict[str, set[Connection]] = {}  # those that are open
        self._all_busy: str | None = None  # the address that has most connections, if all were busy in this pass of the loop
        self.closed: Counter[str] = Counter()
        """Connections that were closed, by reason."""
        self.on_event: Callable[..., None] = lambda *_, **__: None
        """Called with an event and its values."""
        self._buffered = 0
        self._reported: set[str] = set()

    def opened(self, newcomer: Connection) -> None:
        """Add a connection; if there are too many, close some, or the newcomer if its address has most and all are busy."""
        self.open.add(newcomer)
        self._of_address.setdefault(newcomer.address, set()).add(newcomer)
        if len(self.open) <= self.limits.max_connections:
            return
        if newcomer.address != self._all_busy:
            for connection in self._to_close(newcomer):
                connection.end("evicted")
        if len(self.open) > self.limits.max_connections:
            newcomer.refuse(503, "too many connections are open; try again in a second", "refused")
            self.lost(newcomer)  # it closes by itself, and what closes must not cost others their place

    def _to_close(self, newcomer: Connection) -> list[Connection]:
        """The connections that go for a newcomer; none if it must go itself.

        Several that wait at a time, since to find them is not free, but so that no address has fewer than another before.
        """
        first, second = [*nlargest(2, map(len, self._of_address.values())), 0][:2]
        several = max(1, min(self.limits.max_connections // 50, first - second))
        others = [one for ones in self._of_address.values() if len(ones) == first for one in ones if one is not newcomer]
        if waiting := [one for one in others if one.is_waiting]:
            return nsmallest(several, waiting, key=lambda one: (one.is_idle, one.since))
        if len(self._of_address[newcomer.address]) < first:
            return [min(others, key=lambda one: one.since)]  # no more requests than needed are cut off
        self._all_busy = newcomer.address
        asyncio.get_running_loop().call_soon(self._forget_busy)
        return []

    def _forget_busy(self) -> None:
        self._all_busy = None

    def report_once(self, event: str, **values: Any) -> None:
        """Report an event the first time; clients that cause it again and again would fill the log."""
        if event not in self._reported:
            self._reported.add(event)
            self.on_event(event, **values)

    def lost(self, connection: Connection) -> None:
        """Remove a connection."""
        self.open.discard(connection)
        ones = self._of_address.get(connection.address, set())
        ones.discard(connection)
        if not ones:
            self._of_address.pop(connection.address, None)
        self._buffered -= connection.held
        connection.held = 0

    def changed(self, change: int) -> None:
        """Count bytes that connections make the server hold; if they are too many, close the connection that holds most."""
        self._buffered += change
        while change > 0 and self._buffered > self.limits.max_buffered and self.open:
            largest = max(self.open, key=lambda other: other.held)
            largest.end("large")

    async def sweep_forever(self) -> None:
        """Close connections that take too long, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """Close connections that have taken too long at this time of the event loop."""
        for connection in list(self.open):
            connection.check_time(now, self.limits.head_seconds - SWEEP_SECONDS)
