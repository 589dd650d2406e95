"""The listener: whatever waits is accepted, however long a pass of the event loop takes."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from functools import partial

import pytest
import uvloop

from mbcal.serving import listener as module
from mbcal.serving.listener import AT_A_TIME, HANDSHAKES_AT_A_TIME, Listener


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket that listens on a free port."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        listening.setblocking(False)
        yield listening


def connect(listening: socket.socket, number: int) -> list[socket.socket]:
    return [socket.create_connection(listening.getsockname(), timeout=5) for _ in range(number)]


async def no_protocol(accepted: socket.socket) -> None:
    accepted.close()


@pytest.mark.parametrize("at_a_time", [AT_A_TIME, HANDSHAKES_AT_A_TIME])
def test_many_connections_are_accepted_in_one_pass(listening: socket.socket, at_a_time: int) -> None:
    passes: list[int] = []
    clients = connect(listening, at_a_time + 5)

    async def begin(accepted: socket.socket) -> None:
        passes[-1] += 1
        accepted.close()

    async def story() -> None:
        listener = Listener(listening, begin, at_a_time)
        while sum(passes) < len(clients):
            passes.append(0)
            await asyncio.sleep(0)
        listener.close()
        await listener.wait_closed()

    asyncio.run(asyncio.wait_for(story(), 10))
    assert [number for number in passes if number] == [at_a_time, 5]
    for client in clients:
        client.close()


def test_after_the_system_refused_a_connection_there_is_a_pause(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []
    told: list[OSError] = []

    class Refusing(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            tries.append(asyncio.get_running_loop().time())
            if len(tries) < 3:
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.05)
    (client,) = connect(listening, 1)

    async def story() -> None:
        with Refusing(fileno=listening.dup().detach()) as refusing:
            refusing.setblocking(False)
            listener = Listener(refusing, no_protocol, on_refused=told.append)
            assert await asyncio.to_thread(client.recv, 1) == b""
            listener.close()
            await listener.wait_closed()

    asyncio.run(asyncio.wait_for(story(), 10))
    assert len(tries) == 4  # refused twice, accepted, and none is left
    assert tries[2] - tries[0] >= 0.09
    assert [error.errno for error in told] == [errno.EMFILE] * 2
    client.close()


def test_a_listener_that_is_closed_ends_what_has_no_protocol(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[socket.socket] = []

    async def never(accepted: socket.socket) -> None:
        begun.append(accepted)
        try:
            await asyncio.Event().wait()
        finally:
            accepted.close()

    async def story() -> None:
        listener = Listener(listening, never)
        (first,) = connect(listening, 1)
        while not begun:
            await asyncio.sleep(0)
        listener.close()
        await listener.wait_closed()
        assert first.recv(1) == b""
        (second,) = connect(listening, 1)  # the system takes it, the listener does not
        await asyncio.sleep(0.05)
        assert len(begun) == 1
        first.close()
        second.close()

    monkeypatch.setattr(module, "LAST_SECONDS", 0.05)
    asyncio.run(story())


def test_a_listener_that_is_closed_waits_for_connections_that_are_about_to_have_a_protocol(listening: socket.socket) -> None:
    protocols: list[asyncio.Protocol] = []

    class Noted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            protocols.append(self)

        def connection_lost(self, exc: Exception | None) -> None:
            protocols.remove(self)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(listening, partial(loop.connect_accepted_socket, Noted))
        clients = connect(listening, 5)
        while not listener._beginning:
            await asyncio.sleep(0)
        listener.close()
        await listener.wait_closed()
        assert len(protocols) == 5
        for client in clients:
            client.close()
        while protocols:
            await asyncio.sleep(0)

    for new_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(story(), 10))
