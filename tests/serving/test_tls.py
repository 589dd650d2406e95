"""TLS handshakes that are never finished: they count as connections, and others are served beside them."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil

from mbcal.registry.registry import Registry
from tests.support.servers import events_of, serving

MAX_CONNECTIONS = 40


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
