"""Connections with limits, below HTTP: uvicorn's httptools protocol buffers any header, waits for ever, and counts nothing.

Of one request, everything but its body is limited to `max_head` bytes and must arrive within `head_seconds`; the parser is
fed in pieces, so that a connection never buffers more. A piece ends where a request may end, and what a client sends before
its request is answered waits as it came: a connection has one parsed request at most. Bodies that are being received,
requests that wait and answers that are not read are limited in bytes for all connections together (`connections`): if they
grow beyond it, the connection that holds most is closed. Every refusal is JSON with one sentence.

::

    bytes ──▶ nothing in progress ──▶ a piece ──▶ parser ──▶ request ──▶ answer
                      └──▶ else they wait, and no more are read ◀──────────┘ parsed on
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mbcal.serving.clients import client_of
from mbcal.serving.connections import Connection, ConnectionLimits, Connections
from mbcal.serving.outbox import Outbox

PIECE = 16 * 1024
"""Bytes given to the parser at a time."""

_LINE_ENDS = re.compile(rb"(?:\r?\n)+")
_EMPTY_LINE = re.compile(rb"\n\r\n")
_LAST_CHUNK = re.compile(rb"(?<![^\n])0\r\n\r\n")
LOOKALIKE_BYTES = 64
"""What the end of a body in chunks costs of `max_head` where it is none, but part of the body."""


class RefusedHeadError(Exception):
    """The head of a request is too large or not served; the parser stops at it."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection; `bounded_protocol` makes the class that shares a `Connections`."""

    shared: ClassVar[Connections]
    handshake: Connection | None = None
    """What was counted in place of this connection until its TLS handshake was complete."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._outbox = Outbox(transport)
        super().connection_made(self._outbox)
        if self.handshake is not None:
            self.shared.lost(self.handshake)
        self.address = client_of(self.client[0]) if self.client else ""
        self.since = self.loop.time()
        """When the connection began to wait for a request, or the request began to arrive."""
        self.served = 0
        """Requests answered."""
        self.held = 0
        """Bytes this connection makes the server hold: of bodies, requests that wait, and answers not read."""
        self._body = 0  # bytes of the body of the request that is not answered
        self._left = 0  # bytes to come of a body whose length is known
        self._is_chunked = False  # the body comes in chunks
        self._ahead = b""  # what has arrived while a request is being handled
        self._has_ended = False  # the client sends no more
        self._stalled: tuple[int, float] | None = None  # bytes the client has not read, and when it last read some
        self._is_arriving = False  # a request has begun and is not complete
        self._head = self._headers = 0  # bytes and headers of the request so far
        self._is_head = False  # the head is incomplete
        self._parts: list[bytes] = []  # of the body, in the piece that is being parsed
        self._beside = 0  # bytes since the last request ended, but those of its body: headers, chunk sizes, what is skipped
        self._problem: tuple[int, str, str] | None = None  # status, sentence and reason of the refusal
        self._plain_head = b""  # of a request that wants another protocol, without that wish
        self.shared.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.lost(self)
        self._ahead = b""
        self._outbox.clear()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays: a client that has sent its requests and closed its end still gets the answers."""
        if self.scheme == "https":  # TLS has no end of its own for each side
            return False
        self._has_ended = True
        self.data_received(b"")
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether no complete request is being handled: none has begun to arrive, or its body has not ended."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    @property
    def is_idle(self) -> bool:
        """Whether a request was answered and no other has begun."""
        return self.served > 0 and not self._is_arriving

    # ---- arriving

    def data_received(self, data: bytes) -> None:
        data, self._ahead = self._ahead + data, b""
        start = 0
        while start < len(data) and not self.transport.is_closing():
            if not self.is_waiting or self.flow.write_paused:
                self._ahead = data[start:]
                self.flow.resume_reading()  # uvicorn's pause ends when the body is handed over; this one may last longer
                self.transport.pause_reading()
                break
            end = self._end_of_piece(data, start)
            self._beside += end - start
            self._feed(data[start:end])
            self._take_body()
            if self._beside > self.shared.limits.max_head and not self.transport.is_closing():
                self.refuse(431, _HEAD_SENTENCE if self._is_head else _CHUNKS_SENTENCE, "large head")
            start = end
        self._count_held()
        if self._has_ended and not self._ahead:
            if self.is_waiting:
                self.transport.close()
            else:
                self.cycle.keep_alive = False

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Where the parser must stop at the latest, so that it meets the end of one request at most."""
        end = min(start + PIECE, len(data))
        if self._left:
            return min(start + self._left, end)
        found = _LINE_ENDS.match(data, start, end)  # perhaps the rest of an end that began in the piece before
        if found is None and self._is_chunked:
            found = _LAST_CHUNK.search(data, start, end)
            self._beside += LOOKALIKE_BYTES if found else 0
        elif found is None:
            found = _EMPTY_LINE.search(data, start, end)
        return found.end() if found else end

    def _parse_on(self) -> None:
        """Parse what has arrived meanwhile, if nothing is in progress any more."""
        if self._ahead and self.is_waiting and not self.flow.write_paused and not self.transport.is_closing():
            self.transport.resume_reading()
            self.data_received(b"")

    def _feed(self, data: bytes) -> None:
        """Give data to the parser. A request to change the protocol is read again without that wish, which HTTP allows.

        The parser ends a request that wants an upgrade with its head: the body would be lost, and what follows it.
        """
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._plain_head + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            except httptools.HttpParserError:
                if self.is_waiting:
                    self.send_400_response("the request is not valid HTTP")
                return

    def on_message_begin(self) -> None:
        if not self.is_waiting:  # after chunks that end in another way than is looked for, such as with trailers
            self.cycle.keep_alive = False  # as HTTP allows: what was sent ahead must be sent again
            raise RefusedHeadError
        super().on_message_begin()
        self.since, self._is_arriving = self.loop.time(), True
        self._head = self._headers = 0
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
        self._head += size
        limits = self.shared.limits
        if self._head > limits.max_head or self._headers > limits.max_headers:
            self._problem = (431, _HEAD_SENTENCE, "large head")
            raise RefusedHeadError  # the parser stops, and `send_400_response` is called

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            method = self.parser.get_method()
            if method == b"CONNECT":
                self._problem = (400, "CONNECT: this is no proxy", "invalid")
                raise RefusedHeadError
            lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
            lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            self._plain_head = b"\r\n".join([*lines, b"", b""])
            return
        if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in self.headers):
            self._problem = (501, "transfer-encoding: only chunked is known; send the body as it is", "invalid")
            raise RefusedHeadError
        self._is_head = False
        self._is_chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        self._left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)  # and no more: the chunks of a body may be of one byte each

    def _take_body(self) -> None:
        """Hand over the parts of the body that this piece had."""
        body = b"".join(self._parts)
        if not body:
            return
        self._parts.clear()
        self._beside = max(self._beside - len(body), 0)
        self._left = max(self._left - len(body), 0)
        super().on_body(body)
        if not self.cycle.response_complete:
            self._body += len(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `_feed` reads it again
        self._take_body()
        super().on_message_complete()
        self._beside, self._is_arriving, self._is_chunked = 0, False, False

    # ---- leaving

    def on_response_complete(self) -> None:
        self.served += 1
        if not self._is_arriving:
            self.since = self.loop.time()
        self._body = 0
        self._count_held()
        super().on_response_complete()
        self._parse_on()

    def pause_writing(self) -> None:
        """The client does not read as fast as it asks: count what waits for it, and handle no further request of it."""
        self._outbox.pause()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._outbox.resume():
            super().resume_writing()
        self._count_held()
        self._parse_on()

    def timeout_keep_alive_handler(self) -> None:
        """Do nothing: uvicorn would close an answer that is still leaving as idle; `check_time` closes what is."""

    def _count_held(self) -> None:
        """Count the bytes this connection makes the server hold."""
        unread = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        change = self._body + len(self._ahead) + unread - self.held
        if change:
            self.held += change
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
        if self._stalled is not None:  # the last answer has only just left
            self._stalled = None
            if not self._is_arriving:
                self.since = now
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
        self.transport.abort()  # with TLS, `close` waits for the client to agree: open for the system, but not counted
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
_CHUNKS_SENTENCE = "the body comes in chunks that are too small; send larger ones"


def bounded_protocol(limits: ConnectionLimits) -> type[BoundedProtocol]:
    """Return a protocol class whose connections share these limits."""
    members: dict[str, Any] = {"shared": Connections(limits)}
    return type("Protocol", (BoundedProtocol,), members)
