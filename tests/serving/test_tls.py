"""TLS handshakes that are never finished and connections that clients never close: they count, and others are served."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import httpx
import psutil
import pytest
import uvicorn

from mbcal.registry.registry import Registry
from mbcal.serving import run
from mbcal.serving.connections import ConnectionLimits, Connections
from mbcal.serving.listener import AT_A_TIME, HANDSHAKES_AT_A_TIME, SHARED_AT_A_TIME
from mbcal.serving.run import Server
from tests.support.servers import events_of, serving

MAX_CONNECTIONS = 40


@pytest.mark.parametrize(
    ("is_tls", "workers", "at_a_time"),
    [
        (False, None, AT_A_TIME),
        (False, Mock(), SHARED_AT_A_TIME),  # so that a burst of connections does not go to one worker
        (True, None, HANDSHAKES_AT_A_TIME),
        (True, Mock(), HANDSHAKES_AT_A_TIME),
    ],
)
def test_few_handshakes_are_begun_at_a_time_and_workers_share_connections(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, is_tls: bool, workers: Mock | None, at_a_time: int
) -> None:
    given: list[int] = []

    async def story() -> None:
        app, connections = Mock(service=Mock(workers=workers)), Connections(ConnectionLimits())
        cert, key = certificate if is_tls else (None, None)
        server = Server(
            uvicorn.Config(app, lifespan="off", ssl_certfile=cert, ssl_keyfile=key), app, connections, say_nothing
        )
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([cast(socket.socket, None)])
        server._sweeper.cancel()

    async def say_nothing(_: list[socket.socket]) -> None:
        pass

    monkeypatch.setattr(run, "Listener", lambda *arguments: given.append(arguments[2]))
    monkeypatch.setattr(run, "gc", Mock())
    asyncio.run(story())
    assert given == [at_a_time]


def test_handshakes_count_as_connections(shared_registry: Registry, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--max-connections", str(MAX_CONNECTIONS))
    with ExitStack() as wires, serving(shared_registry, *options) as (process, port):
        server, address = psutil.Process(process.pid), f"https://localhost:{port}"
        context = ssl.create_default_context(cafile=str(cert))
        before = server.num_fds()
        for number in range(4):
            for _ in range(MAX_CONNECTIONS):
                wire = wires.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                wire.sendall(b"\x16\x03\x01"[:number])
                time.sleep(0.001)
            assert httpx.get(f"{address}/healthz", verify=context).status_code == 200
            assert server.num_fds() - before <= MAX_CONNECTIONS + 2
        text = httpx.get(f"{address}/metrics", verify=context).text
        assert 'mbcal_connections_closed_total{reason="evicted"}' in text
        time.sleep(5.5)  # what is left does not finish its handshake in time
        assert server.num_fds() - before <= 2
        assert [event["event"] for event in events_of(process)] == ["draining", "stopped"]


def test_clients_that_never_agree_to_close_hold_no_more_connections_than_others(
    shared_registry: Registry, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--max-connections", str(MAX_CONNECTIONS))
    context = ssl.create_default_context(cafile=str(cert))
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n%s\r\n"
    with ExitStack() as wires, serving(shared_registry, *options) as (process, port):
        server = psutil.Process(process.pid)
        before = server.num_fds()

        def connect(data: bytes) -> None:
            plain = socket.create_connection(("127.0.0.1", port), timeout=10)
            wires.enter_context(context.wrap_socket(plain, server_hostname="localhost")).sendall(data)

        for data in (b"", request % b""):
            for _ in range(2 * MAX_CONNECTIONS):
                connect(data)
            time.sleep(0.1)
            assert server.num_fds() - before <= MAX_CONNECTIONS + 2  # those that were evicted are gone
        for _ in range(10):
            connect(request % b"connection: close\r\n")
        time.sleep(7)  # the rest was idle for too long; what was closed has not been agreed to
        assert server.num_fds() - before <= 2
        assert httpx.get(f"https://localhost:{port}/healthz", verify=context).status_code == 200
        assert [event["event"] for event in events_of(process)] == ["draining", "stopped"]
