"""Limits on the bytes that connections make the server hold: bodies being received, answers that clients do not read."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import ssl
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from mbcal.serving.connections import ConnectionLimits, Connections
from mbcal.serving.protocol import bounded_protocol
from mbcal.serving.run import allow_files

LARGE = b"x" * (16 << 20)
HEAD_OF_CHUNKS = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
Story = Callable[[int, Connections], Awaitable[None]]


async def large_answers(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, then answer to /small with two bytes and to the rest with 16 MiB."""
    while (await receive()).get("more_body"):
        pass
    body = b"ok" if scope["path"] == "/small" else LARGE
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def slowly(scope: Any, receive: Any, send: Any) -> None:
    """Answer as `large_answers`, after a moment."""
    await asyncio.sleep(0.02)
    await large_answers(scope, receive, send)


def run_server(
    limits: ConnectionLimits, story: Story, app: Any = large_answers, certificate: tuple[Path, Path] | None = None
) -> None:
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)

    async def run() -> None:
        protocol: Any = bounded_protocol(limits)
        config = uvicorn.Config(app, http=protocol, log_config=None, ws="none")
        config.load()
        make = partial(protocol, config=config, server_state=ServerState(), app_state={})
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0, ssl=context)
        sweeper = asyncio.create_task(protocol.shared.sweep_forever())
        try:
            await story(server.sockets[0].getsockname()[1], protocol.shared)
        finally:
            sweeper.cancel()
            server.close()
            for connection in list(protocol.shared.open):
                connection.transport.abort()
            await asyncio.sleep(0.05)

    asyncio.run(run())


def connect(port: int, address: str = "127.0.0.1", certificate: tuple[Path, Path] | None = None) -> socket.socket:
    wire = socket.socket()
    wire.bind((address, 0))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.settimeout(5)
    wire.connect(("127.0.0.1", port))
    if certificate is not None:
        return ssl.create_default_context(cafile=str(certificate[0])).wrap_socket(wire, server_hostname="localhost")
    return wire


async def small_answer(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"ok"), 5)
    writer.close()
    return answer


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def cert(request: pytest.FixtureRequest) -> tuple[Path, Path] | None:
    return request.getfixturevalue("certificate") if request.param else None


def test_answers_that_are_not_read_are_bounded_together(cert: tuple[Path, Path] | None) -> None:
    async def story(port: int, connections: Connections) -> None:
        wires = [await asyncio.to_thread(connect, port, certificate=cert) for _ in range(6)]
        for wire in wires:
            wire.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.sleep(0.05)
        assert connections.closed["large"] >= 4  # of 96 MiB, 20 MiB may wait
        assert sum(connection.held for connection in connections.open) <= 20 << 20
        for wire in wires:
            wire.close()

    run_server(ConnectionLimits(max_buffered=20 << 20), story, certificate=cert)


@pytest.mark.parametrize("header", [b"", b"connection: close\r\n"])
def test_a_client_that_reads_slowly_gets_its_answer(cert: tuple[Path, Path] | None, header: bytes) -> None:
    def read_slowly(port: int) -> int:
        with connect(port, certificate=cert) as wire:
            wire.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n%s\r\n" % header)
            began, size = time.monotonic(), 0
            while size < len(LARGE) and (part := wire.recv(1 << 16)):
                size += len(part)
                time.sleep(max(began + size / 3e6 - time.monotonic(), 0.0))
            time.sleep(0.5)
            if not header:  # it is not idle before the answer has left
                wire.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
                assert wire.recv(1 << 16)
            return size

    async def story(port: int, connections: Connections) -> None:
        assert await asyncio.to_thread(read_slowly, port) >= len(LARGE)
        assert not connections.closed

    run_server(ConnectionLimits(head_seconds=3.0), story, certificate=cert)


def test_a_client_that_reads_nothing_is_closed(cert: tuple[Path, Path] | None) -> None:
    async def story(port: int, connections: Connections) -> None:
        wire = await asyncio.to_thread(connect, port, certificate=cert)
        wire.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(50):
            await asyncio.sleep(0.1)
            if connections.closed["unread"]:
                break
        assert connections.closed["unread"] == 1
        assert not connections.open
        wire.close()

    run_server(ConnectionLimits(head_seconds=1.0), story, certificate=cert)


def test_of_unfinished_bodies_the_largest_is_dropped() -> None:
    async def story(port: int, connections: Connections) -> None:
        head = b"POST /small HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
        wires = [connect(port) for _ in range(3)]
        for wire, size in zip(wires, (40_000, 90_000, 20_000), strict=True):
            wire.sendall(head + b"x" * size)
            await asyncio.sleep(0.05)
        assert dict(connections.closed) == {"large": 1}
        assert sorted(connection.held for connection in connections.open) == [20_000, 40_000]
        assert (await small_answer(port)).endswith(b"ok")
        for wire in wires:
            wire.close()
        await asyncio.sleep(0.05)
        assert sum(connection.held for connection in connections.open) == 0

    run_server(ConnectionLimits(max_buffered=100_000), story)


def test_with_too_many_connections_those_that_waited_longest_without_a_request_go() -> None:
    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)  # the first, but it has asked something
        wires: list[socket.socket] = []
        for _ in range(2):
            writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"ok"), 5)
            wires += [connect(port) for _ in range(20)]
            await asyncio.sleep(0.1)
            assert len(connections.open) <= 10
        assert connections.closed["evicted"] == 31
        writer.close()
        for wire in wires:
            wire.close()

    run_server(ConnectionLimits(max_connections=10), story)


def test_unfinished_bodies_go_before_newcomers_and_those_who_were_served() -> None:
    async def story(port: int, connections: Connections) -> None:
        head = b"POST /small HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        slow = []
        for _ in range(25):
            writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"ok"), 5)
            slow.append(connect(port))
            slow[-1].sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")  # it was served, too
            await asyncio.sleep(0.01)
            slow[-1].sendall(head)
            await asyncio.sleep(0.01)
            assert len(connections.open) <= 10
            assert (await small_answer(port)).endswith(b"ok")
        assert connections.closed["refused"] == 0
        assert connections.closed["evicted"] >= 16
        writer.close()
        for wire in slow:
            wire.close()

    run_server(ConnectionLimits(max_connections=10), story)


def test_an_address_with_most_connections_loses_its_own() -> None:
    async def story(port: int, connections: Connections) -> None:
        many = [connect(port) for _ in range(8)]
        for wire in many:
            wire.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        few = [connect(port, "127.0.0.2") for _ in range(4)]  # they have asked nothing yet
        await asyncio.sleep(0.1)
        assert sorted(Counter(connection.address for connection in connections.open).items()) == [
            ("127.0.0.1", 6),
            ("127.0.0.2", 4),
        ]
        for wire in (*many, *few):
            wire.close()

    run_server(ConnectionLimits(max_connections=10), story)


def test_addresses_that_hold_many_idle_connections_do_not_push_out_one_that_has_just_connected() -> None:
    async def story(port: int, connections: Connections) -> None:
        hoards = [connect(port, f"127.0.0.{2 + number % 3}") for number in range(9)]  # none has more than half of all
        for wire in hoards:
            wire.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        late = connect(port)  # its request takes a while to arrive
        for _ in range(5):
            hoards += [connect(port, f"127.0.0.{2 + number}") for number in range(3)]
            await asyncio.sleep(0.02)
        assert Counter(connection.address for connection in connections.open)["127.0.0.1"] == 1
        late.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        assert late.recv(4096).endswith(b"ok")
        for wire in (*hoards, late):
            wire.close()

    run_server(ConnectionLimits(max_connections=10), story)


def test_of_addresses_with_equally_many_connections_none_loses_all() -> None:
    async def story(port: int, connections: Connections) -> None:
        wires = [connect(port, f"127.0.0.{2 + number // 20}") for number in range(100)]
        await asyncio.sleep(0.1)
        wires.append(connect(port))
        await asyncio.sleep(0.1)
        assert connections.closed["evicted"] == 1
        assert set(Counter(connection.address for connection in connections.open).values()) == {1, 19, 20}
        for wire in wires:
            wire.close()

    run_server(ConnectionLimits(max_connections=100), story)


async def held_up(scope: Any, receive: Any, send: Any) -> None:
    """Answer to /small at once, and to the rest after many seconds."""
    if scope["path"] != "/small":
        await asyncio.sleep(30)
    await large_answers(scope, receive, send)


def test_an_address_whose_connections_are_all_busy_pushes_nobody_out() -> None:
    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"ok"), 5)  # from now on it is idle
        busy = [connect(port, "127.0.0.2") for _ in range(9)]
        for wire in busy:
            wire.sendall(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        busy += [connect(port, "127.0.0.2") for _ in range(5)]  # refused
        await asyncio.sleep(0.1)
        assert sum(not connection.is_waiting for connection in connections.open) == 9
        assert (await small_answer(port)).endswith(b"ok")  # a connection that is busy ends for it
        assert connections.closed["evicted"] == 1
        writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"ok"), 5)
        writer.close()
        for wire in busy:
            wire.close()

    run_server(ConnectionLimits(max_connections=10), story, held_up)


def test_a_newcomer_of_the_only_address_is_refused_when_all_are_busy() -> None:
    async def story(port: int, connections: Connections) -> None:
        busy = [connect(port) for _ in range(10)]
        for wire in busy:
            wire.sendall(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert b" 503 " in await asyncio.wait_for(reader.readline(), 5)
        assert connections.closed == {"refused": 1}
        writer.close()
        for wire in busy:
            wire.close()

    run_server(ConnectionLimits(max_connections=10), story, held_up)


class Busy:
    """A connection whose request is being handled; `looks` counts how often that was asked, of all."""

    looks = 0
    since, held, is_idle = 0.0, 0, False

    def __init__(self, address: str, connections: Connections) -> None:
        self.address, self._connections, self.is_refused = address, connections, False

    @property
    def is_waiting(self) -> bool:
        Busy.looks += 1
        return False

    def end(self, _: str) -> None:
        self._connections.lost(self)

    def refuse(self, _: int, __: str, ___: str, /) -> None:
        self.is_refused = True  # it is lost later, when the refusal has been written

    def check_time(self, _: float, __: float) -> None:
        pass


def test_newcomers_that_are_refused_cost_little_and_take_no_place() -> None:
    connections = Connections(ConnectionLimits(max_connections=100))

    def open_one(address: str) -> Busy:
        busy = Busy(address, connections)
        connections.opened(busy)
        return busy

    async def story() -> None:
        assert not any(open_one("a").is_refused for _ in range(100))
        Busy.looks = 0
        assert all(open_one("a").is_refused for _ in range(50))
        assert Busy.looks == 100  # all were looked at once in this pass of the event loop
        assert len(connections.open) == 100
        assert not any(open_one("b").is_refused for _ in range(9))  # busy ones of the other address go
        await asyncio.sleep(0)
        assert open_one("a").is_refused  # only as many went as were needed
        assert Counter(one.address for one in connections.open) == {"a": 91, "b": 9}

    asyncio.run(story())


def test_what_is_sent_before_an_answer_waits_unparsed_and_counts() -> None:
    request = b"GET /long HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 90 + b"\r\n"

    async def story(port: int, connections: Connections) -> None:
        wires = [connect(port) for _ in range(4)]
        for number, wire in enumerate(wires, 2):
            wire.sendall(request * number)
            await asyncio.sleep(0.05)
        assert sorted(connection.held // len(request) for connection in connections.open) == [1, 2, 3]
        assert dict(connections.closed) == {"large": 1}
        for wire in wires:
            wire.close()

    run_server(ConnectionLimits(max_buffered=9 * len(request)), story, held_up)


def test_requests_that_wait_cost_no_more_memory_than_their_bytes() -> None:
    request = b"GET /long HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 90 + b"\r\n"

    async def story(port: int, _: Connections) -> None:
        tracemalloc.start()
        wires = [connect(port) for _ in range(20)]
        for wire in wires:
            wire.sendall(request * 16)
        await asyncio.sleep(0.3)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held < 20 * (len(request) * 16 + 40_000)  # one request is parsed; 16 would be 300 kB
        for wire in wires:
            wire.close()

    run_server(ConnectionLimits(), story, held_up)


def test_a_client_that_reads_no_answer_has_no_further_request_handled() -> None:
    asked: list[str] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await large_answers(scope, receive, send)

    async def story(port: int, _: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 2 + b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.2)
        assert asked == ["/large"]
        answers = b""
        while not answers.endswith(b"ok"):
            answers = answers[-64:] + await asyncio.wait_for(reader.read(1 << 20), 5)
        assert asked == ["/large", "/large", "/small"]
        writer.close()

    run_server(ConnectionLimits(), story, noting)


def test_many_requests_in_one_packet_are_all_answered() -> None:
    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n" * 300)
        for _ in range(300):
            await asyncio.wait_for(reader.readuntil(b"ok"), 5)
        assert [connection.held for connection in connections.open] == [0]
        assert not connections.closed
        writer.close()

    run_server(ConnectionLimits(), story)


@pytest.mark.parametrize("seed", range(6))
def test_requests_of_all_kinds_are_answered_in_their_order_however_they_arrive(seed: int) -> None:
    draw = random.Random(seed)
    bodies = [b"", b"\n\r\n" * 7, b"\n0\r\n\r\n" * 7, b"\r\n\r\nGET /no HTTP/1.1\r\n\r\n", b"x" * 40_000, b"y"]
    requests, expected = [], []
    for number in range(40):
        body = draw.choice(bodies)
        head = b"POST /%d HTTP/1.1\r\nhost: x\r\n" % number
        if draw.random() < 0.5:
            cuts = sorted(draw.sample(range(len(body)), min(len(body), 2)))
            parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if b > a]
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
            requests.append(head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        else:
            requests.append(head + b"content-length: %d\r\n\r\n" % len(body) + body + draw.choice([b"", b"\r\n"]))
        expected.append(b"POST /%d %s;" % (number, body))
    data = b"".join(requests)

    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)

        async def send() -> None:
            start = 0
            while start < len(data):
                end = start + draw.choice([1, 2, 3, 50, 500, 70_000])
                writer.write(data[start:end])
                await writer.drain()
                await asyncio.sleep(0)
                start = end
            writer.write_eof()

        sending = asyncio.create_task(send())
        for wanted in expected:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(len(wanted)) == wanted
        assert await reader.read() == b""
        await sending
        assert not connections.closed
        writer.close()

    run_server(ConnectionLimits(), story, echo)


@pytest.mark.parametrize("end", [b"000\r\n\r\n", b"0;a=b\r\n\r\n", b"0\r\na: b\r\n\r\n"])
def test_what_follows_chunks_that_end_in_an_unusual_way_is_not_answered_but_the_first_is(end: bytes) -> None:
    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((HEAD_OF_CHUNKS + b"1\r\nx\r\n" + end) * 3)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert answer.endswith(b"POST /a x;")
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):  # alone they are answered as any
            writer.write(HEAD_OF_CHUNKS + b"1\r\nx\r\n" + end)
            await asyncio.wait_for(reader.readuntil(b"POST /a x;"), 5)
        assert not connections.closed
        writer.close()

    run_server(ConnectionLimits(), story, echo)


def test_many_ends_that_are_none_in_a_body_of_chunks_are_refused() -> None:
    body = b"\n0\r\n\r\n" * 10_000

    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD_OF_CHUNKS + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert b" 431 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /small HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await asyncio.wait_for(reader.readuntil(b"ok"), 5)
        writer.close()

    run_server(ConnectionLimits(), story)


@pytest.mark.parametrize(
    "rest", [b"\x00garbage\r\n\r\n", b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nz\r\n"]
)
def test_what_is_no_request_is_refused_after_the_answers_to_those_before_it(rest: bytes) -> None:
    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n" * 3 + rest)
        answers = (await asyncio.wait_for(reader.read(), 5)).split(b"HTTP/1.1 ")
        assert [answer[:3] for answer in answers] == [b"", b"200", b"200", b"200", b"400"]
        writer.close()
        await asyncio.sleep(0.05)
        assert not connections.open

    run_server(ConnectionLimits(), story, slowly)


def test_a_client_that_closes_its_end_gets_its_answers() -> None:
    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), 5)).count(b"HTTP/1.1 200") == 3
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /small HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        writer.write_eof()  # the body will never be complete
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await asyncio.sleep(0.05)
        assert not connections.open

    run_server(ConnectionLimits(), story, slowly)


def test_headers_after_the_body_mean_nothing() -> None:
    seen: list[list[bytes]] = []

    async def keep_headers(scope: Any, receive: Any, send: Any) -> None:
        seen.append([name for name, _ in scope["headers"]])
        await large_answers(scope, receive, send)

    async def story(port: int, _: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /small HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n0\r\nauthorization: Bearer token\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"ok"), 5)
        writer.close()

    run_server(ConnectionLimits(), story, keep_headers)
    assert seen == [[b"host", b"transfer-encoding"]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with method, path and body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body")
    answer = b"%s %s %s;" % (scope["method"].encode(), scope["path"].encode(), body)
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip"])
def test_codings_that_are_not_known_are_refused(coding: bytes) -> None:
    async def story(port: int, _: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: %s\r\n\r\n1\r\nx\r\n0\r\n\r\n" % coding)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 501 ")
        writer.close()

    run_server(ConnectionLimits(), story, echo)


def test_spaces_around_a_coding_mean_nothing() -> None:
    async def story(port: int, _: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding:  Chunked \r\n\r\n2\r\nxy\r\n0\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b";"), 5)).endswith(b"POST /a xy;")
        writer.close()

    run_server(ConnectionLimits(), story, echo)


def test_of_many_busy_connections_only_as_many_end_as_newcomers_need() -> None:
    class Busy:
        is_waiting = is_idle = False
        held = 0

        def __init__(self, address: str) -> None:
            self.address, self.since, self.ended = address, 0.0, ""

        def end(self, reason: str) -> None:
            self.ended = reason
            connections.lost(self)

        def refuse(self, _: int, __: str, reason: str, /) -> None:
            self.ended = reason

        def check_time(self, now: float, seconds: float) -> None: ...

    connections = Connections(ConnectionLimits(max_connections=200))
    of_a_proxy = [Busy("proxy") for _ in range(200)]
    for connection in (*of_a_proxy, Busy("probe")):
        connections.opened(connection)
    assert [connection.ended for connection in of_a_proxy if connection.ended] == ["evicted"]


def test_chunks_that_are_tiny_are_refused_and_the_rest_is_not_parsed() -> None:
    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD_OF_CHUNKS + b"1\r\nx\r\n" * 100_000)
        assert b"chunks that are too small" in await asyncio.wait_for(reader.readuntil(b"}"), 5)
        writer.close()
        assert dict(connections.closed) == {"large head": 1}
        assert len(taken) <= 2  # pieces whose body was handed over, of 37

    taken: list[bytes] = []

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            taken.append(message["body"])

    run_server(ConnectionLimits(), story, counting)


@pytest.mark.parametrize(("size", "number"), [(1, 2_000), (256, 1_900), (1024, 512), (65536, 8)])
def test_bodies_in_chunks_of_a_sensible_size_are_taken(size: int, number: int) -> None:
    chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)

    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        for _ in range(2):  # the second request begins anew
            writer.write(HEAD_OF_CHUNKS + chunk * number + b"0\r\n\r\n")
            answer = await asyncio.wait_for(reader.readuntil(b";"), 5)
            assert answer.endswith(b"POST /a " + b"x" * (size * number) + b";")
        assert not connections.closed
        writer.close()

    run_server(ConnectionLimits(), story, echo)


def test_bodies_of_answered_requests_are_not_held_while_others_are_on_their_way() -> None:
    body = b"x" * 10_000
    request = b"POST /small HTTP/1.1\r\nhost: x\r\ncontent-length: 10000\r\n\r\n" + body

    async def story(port: int, connections: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request * 2)
        for _ in range(20):  # there are always two on their way
            await asyncio.wait_for(reader.readuntil(b"ok"), 5)
            writer.write(request)
        await asyncio.wait_for(reader.readuntil(b"ok"), 5)
        await asyncio.wait_for(reader.readuntil(b"ok"), 5)
        await asyncio.sleep(0.05)
        assert [connection.held for connection in connections.open] == [0]
        assert not connections.closed
        writer.close()

    run_server(ConnectionLimits(max_buffered=60_000), story, slowly)


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAA\r\n"
SIZED = b"POST /a HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"content-length: 4\r\n\r\nbody"
CHUNKED = b"POST /b HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"
SOCKET = b"GET /c HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
PLAIN = b"POST /d HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nend"


@pytest.mark.parametrize("piece", [1, 50, 150, 1 << 20])
def test_a_wish_to_change_the_protocol_is_not_followed_and_nothing_is_lost(piece: int) -> None:
    data = SIZED + CHUNKED + SOCKET + PLAIN

    async def story(port: int, _: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for start in range(0, len(data), piece):
            writer.write(data[start : start + piece])
            await writer.drain()
            await asyncio.sleep(0)
        for wanted in (b"POST /a body;", b"POST /b body;", b"GET /c ;", b"POST /d end;"):
            answer = await asyncio.wait_for(reader.readuntil(b";"), 5)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"\r\n" + wanted)
        writer.close()

    run_server(ConnectionLimits(), story, echo)


def test_tunnels_are_refused() -> None:
    async def story(port: int, _: Connections) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"CONNECT a:80 HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\nrest")
        answers = await asyncio.wait_for(reader.read(), 5)  # until it is closed
        assert answers.startswith(b"HTTP/1.1 400")
        writer.close()

    run_server(ConnectionLimits(), story, echo)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit", "allowed"),
    [
        (1024, 4096, 1000, 1256, 1000),
        (1024, resource.RLIM_INFINITY, 5000, 5256, 5000),
        (512, 1024, 1000, 1024, 768),  # an address with all connections leaves files to the server
        (64, 100, 1000, 100, 50),
        (4096, 4096, 1000, None, 1000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 1000, None, 1000),
    ],
)
def test_connections_are_as_many_as_the_system_allows_files_for(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, limit: int | None, allowed: int
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert allow_files(wanted) == allowed
    assert raised == ([] if limit is None else [(limit, hard)])
