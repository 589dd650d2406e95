"""Connections with limits, below HTTP: uvicorn's httptools protocol buffers any header, waits for ever, and counts nothing.

Of one request, everything but its body is limited to `max_head` bytes and must arrive within `head_seconds`; the parser is
fed in pieces, so that a connection never buffers more. Bodies that are being received and answers that are not read are
limited in bytes for all connections together: if they grow beyond it, the connection that holds most is closed. When too
many connections are open, those are closed that have made the server wait longest for a complete request: first those of an
address that has more than half of all, last those that have been answered and are idle. Connections count from the moment
they are accepted (`tls`). Every refusal is JSON with one sentence.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

PIECE = 16 * 1024
"""Bytes given to the parser at a time."""
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
    """Bytes of bodies being received and of answers not read, of all connections together."""
    max_pipelined: int = 16
    """Requests that wait on one connection for the answer to an earlier one."""


class HeadTooLargeError(Exception):
    """The head of a request is too large."""


class Connection(Protocol):
    """An open connection, as `Connections` sees it: HTTP, or a TLS handshake that is not complete."""

    address: str
    """The client's."""
    since: float
    """Time of the event loop since which the server has waited for the client."""
    held: int
    """Bytes this connection makes the server hold: of bodies, and of answers not read."""

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
        self.closed: Counter[str] = Counter()
        """Connections that were closed, by reason."""
        self.on_event: Callable[..., None] = lambda *_, **__: None
        """Called with an event and its values."""
        self._buffered = 0
        self._reported: set[str] = set()

    def opened(self, newcomer: Connection) -> None:
        """Add a connection; if there are too many, close some that wait, or else the newcomer."""
        self.open.add(newcomer)
        if len(self.open) <= self.limits.max_connections:
            return
        waiting = [connection for connection in self.open if connection is not newcomer and connection.is_waiting]
        if not waiting:
            newcomer.refuse(503, "too many connections are open; try again in a second", "refused")
            return
        most, per_address = self.limits.max_connections, Counter(connection.address for connection in self.open)

        def last_to_go(other: Connection) -> tuple[bool, bool, int, float]:
            count = per_address[other.address]
            return count <= most // 2, other.is_idle, -count, other.since

        waiting.sort(key=last_to_go)
        for connection in waiting[: max(1, most // 50)]:  # several: sorting is not free
            connection.end("evicted")

    def report_once(self, event: str, **values: Any) -> None:
        """Report an event the first time; clients that cause it again and again would fill the log."""
        if event not in self._reported:
            self._reported.add(event)
            self.on_event(event, **values)

    def lost(self, connection: Connection) -> None:
        """Remove a connection."""
        self.open.discard(connection)
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


class BoundedProtocol(HttpToolsProtocol):
    """One connection; `bounded_protocol` makes the class that shares a `Connections`."""

    shared: ClassVar[Connections]
    handshake: Connection | None = None
    """What was counted in place of this connection until its TLS handshake was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.handshake is not None:
            self.shared.lost(self.handshake)
        self.address = self.client[0] if self.client else ""
        self.since = self.loop.time()
        """When the connection began to wait for a request, or the request began to arrive."""
        self.served = 0
        """Requests answered."""
        self.held = 0
        """Bytes this connection makes the server hold: of bodies, and of answers not read."""
        self._body = self._unread = 0
        self._stalled: tuple[int, float] | None = None  # bytes the client has not read, and when it last read some
        self._is_arriving = False  # a request has begun and is not complete
        self._head = self._headers = 0  # bytes and headers of the request so far
        self._silent = 0  # bytes since the parser last reported something: it may have kept them all
        self._is_head, self._received = False, 0  # the head is incomplete; bytes of it received, whatever was reported
        self._has_ended = False  # a request ended in this piece, and the rest of the piece is of the next
        self._problem: tuple[int, str, str] | None = None  # status, sentence and reason of the refusal
        self._running: Any = None  # the request that is being handled; `cycle` is the latest
        self.shared.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.lost(self)
        running = () if self._running is None or self._running.response_complete else (self._running,)
        for cycle in (*running, *(cycle for cycle, _ in self.pipeline)):  # uvicorn tells the latest only
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays: a client that has sent its request and closed its end still gets the answer."""
        if self.is_waiting or self.scheme == "https":  # TLS has no end of its own for each side
            return False
        self.cycle.keep_alive = False
        return True

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def is_waiting(self) -> bool:
        """Whether no complete request is being handled: none has begun to arrive, or its body has not ended."""
        cycle = self.cycle  # the latest; while an earlier one is handled, it is in the pipeline
        return cycle is None or cycle.response_complete or (cycle.more_body and not self.pipeline)

    @property
    def is_idle(self) -> bool:
        """Whether a request was answered and no other has begun."""
        return self.served > 0 and not self._is_arriving

    # ---- arriving

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            if self.transport.is_closing():
                return
            piece = data if len(data) <= PIECE else data[start : start + PIECE]
            self._silent += len(piece)
            self._has_ended = False
            super().data_received(piece)
            if self._is_head and not self._has_ended:
                self._received += len(piece)
            if max(self._silent, self._received) > self.shared.limits.max_head and not self.transport.is_closing():
                self.refuse(431, _HEAD_SENTENCE, "large head")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.since, self._is_arriving = self.loop.time(), True
        self._head = self._headers = self._silent = self._received = 0
        self._is_head = True

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_head:  # what follows a body in pieces counts, but means nothing: the head was judged before
            super().on_header(name, value)
        self._headers += 1
        self._count_head(len(name) + len(value) + 4)

    def _count_head(self, size: int) -> None:
        self._silent = 0
        self._head += size
        limits = self.shared.limits
        if self._head > limits.max_head or self._headers > limits.max_headers:
            self._problem = (431, _HEAD_SENTENCE, "large head")
            raise HeadTooLargeError  # the parser stops, and `send_400_response` is called

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.shared.limits.max_pipelined:
            sentence = "too many requests were sent before the first was answered; wait for the answers"
            self._problem = (400, sentence, "pipelined")
            self.shared.report_once("too many requests at once", client=self.address, most=self.shared.limits.max_pipelined)
            raise HeadTooLargeError
        self._is_head, self._received = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._silent = 0
        if not self.cycle.response_complete:
            self.hold(self._body + len(body), self._unread)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._silent, self._is_arriving, self._has_ended = 0, False, True

    # ---- leaving

    def on_response_complete(self) -> None:
        self.served += 1
        if not self._is_arriving:
            self.since = self.loop.time()
        if not self.pipeline:
            self.hold(0, self._unread)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read as fast as it asks: count what waits for it."""
        super().pause_writing()
        self.hold(self._body, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self.hold(self._body, 0)

    def hold(self, body: int, unread: int) -> None:
        """Set the bytes this connection makes the server hold."""
        change = body + unread - self.held
        self._body, self._unread, self.held = body, unread, body + unread
        if change:
            self.shared.changed(change)

    # ---- ending

    def check_time(self, now: float, seconds: float) -> None:
        """Close the connection if a request or a wait takes longer than allowed, or an answer is not read."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            if self._stalled is None or unread < self._stalled[0]:
                self._stalled = (unread, now)
            elif now - self._stalled[1] > seconds:
                self.end("unread")
            return
        self._stalled = None
        if (
            self.cycle is None or self.cycle.response_complete
        ) and now - self.since > seconds:  # bodies have a limit in `App`
            if self._is_arriving and not self.transport.is_closing():
                limit = self.shared.limits.head_seconds
                self.refuse(408, f"the request was not sent within {limit:g} seconds", "slow")
            else:
                self.end("idle" if self.served else "slow")

    def end(self, reason: str) -> None:
        """Close the connection at once, whatever the client has not read."""
        self.shared.closed[reason] += 1
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
        self.shared.lost(self)

    def refuse(self, status: int, sentence: str, reason: str) -> None:
        """Answer with a refusal and close the connection.

        Args:
            status: The status.
            sentence: Why.
            reason: The reason under which the connection is counted as closed.
        """
        self.shared.closed[reason] += 1
        body = json.dumps({"error": sentence}).encode()
        head = b"content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer a request the parser stopped at."""
        self.refuse(*(self._problem or (400, msg, "invalid")))


_HEAD_SENTENCE = "the headers are too large or too many; send fewer"


def bounded_protocol(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """Return a protocol class whose connections share these limits."""
    members: dict[str, Any] = {"shared": Connections(limits)}
    return type("Protocol", (BoundedProtocol,), members)
