"""Clients that try to stop a real server or make it grow, while honest clients are served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from mbcal.client import Client
from mbcal.errors import ServiceError
from mbcal.registry.registry import Registry
from tests.support.servers import metric, serving
from tests.support.versions import ITEMS

POST = b"POST /v1/rank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
MAX_CONNECTIONS, MAX_MEMORY = 200, 8


@pytest.fixture(scope="module")
def server(shared_registry: Registry) -> Iterator[tuple[psutil.Process, int]]:
    limits = ("--max-connections", str(MAX_CONNECTIONS), "--max-memory", str(MAX_MEMORY))
    with serving(shared_registry, *limits) as (process, port):
        yield psutil.Process(process.pid), port


def connect(port: int, data: bytes = b"") -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", port), timeout=10)
    wire.sendall(data)
    return wire


def while_honest_clients_ask(port: int, attack: Callable[[], None]) -> list[tuple[int, float]]:
    """Statuses and seconds of honest requests, on their own connections, while an attack goes on."""
    seen: list[tuple[int, float]] = []
    stop = threading.Event()

    def ask() -> None:
        with Client(f"http://127.0.0.1:{port}", retries=0) as client:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    client.rank([], ITEMS, k=2)
                    status = 200
                except ServiceError as error:
                    status = error.status
                seen.append((status, time.monotonic() - began))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    attack()
    stop.set()
    for thread in asking:
        thread.join()
    return seen


def test_slow_clients_hold_no_slot_and_are_closed_in_five_seconds(server: tuple[psutil.Process, int]) -> None:
    _, port = server
    began = time.monotonic()
    bodies = [connect(port, POST + b"content-length: 1000\r\n\r\n{") for _ in range(80)]
    heads = [connect(port, POST + b"x: ") for _ in range(20)]
    silent = [connect(port) for _ in range(20)]
    newlines = connect(port)

    def drip() -> None:
        while time.monotonic() - began < 3:
            for wire in (*bodies, *heads):
                wire.sendall(b" ")
            newlines.sendall(b"\r\n")
            time.sleep(0.3)

    seen = while_honest_clients_ask(port, drip)
    assert len(seen) > 100
    assert {status for status, _ in seen} == {200}  # 80 slow bodies took all 64 slots once
    for wire, first in ((bodies[-1], b"HTTP/1.1 408"), (heads[-1], b"HTTP/1.1 408"), (silent[-1], b""), (newlines, b"")):
        assert wire.recv(12) == first
    assert time.monotonic() - began < 7
    for wire in (*bodies, *heads, *silent, newlines):
        wire.close()


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"a" * 20_000,
        b"a: b\r\n" * 101,
        b"x" * 20_000,
        b"transfer-encoding: chunked\r\n\r\n1\r\n \r\n0\r\nx: " + b"a" * 40_000,
    ],
    ids=["one value", "many headers", "one name", "trailer"],
)
def test_heads_that_are_too_large_are_refused(server: tuple[psutil.Process, int], head: bytes) -> None:
    with connect(server[1], POST + head) as wire:
        assert wire.recv(12) in (b"HTTP/1.1 431", b"HTTP/1.1 400")


def test_endless_headers_do_not_grow_the_memory(server: tuple[psutil.Process, int]) -> None:
    process, port = server
    before = process.memory_info().rss
    sent = 0
    for start in (b"x: ", b"\r\n" * 1000, b"/" * 100) * 10:
        with connect(port, POST + start) as wire:
            try:
                for _ in range(200):
                    sent += wire.send(b"a" * 65536)
            except OSError:
                pass
    assert sent > 10 << 20
    assert process.memory_info().rss - before < 30 << 20


def test_many_connections_are_bounded_and_honest_clients_served(server: tuple[psutil.Process, int]) -> None:
    process, port = server
    wires: list[socket.socket] = []

    def flood() -> None:
        for _ in range(3 * MAX_CONNECTIONS):
            wires.append(connect(port))
            time.sleep(0.001)

    seen = while_honest_clients_ask(port, flood)
    assert metric(port, "mbcal_connections") <= MAX_CONNECTIONS
    assert process.num_fds() < MAX_CONNECTIONS + 100
    assert len(seen) > 50
    assert {status for status, _ in seen} == {200}
    assert metric(port, "mbcal_connections_closed_total") >= MAX_CONNECTIONS
    for wire in wires:
        wire.close()


def test_many_requests_in_one_go_take_little_memory(server: tuple[psutil.Process, int]) -> None:
    process, port = server
    before = process.memory_info().rss
    with connect(port) as wire:
        try:
            for _ in range(20):
                wire.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)
        except OSError:
            pass
        assert process.memory_info().rss - before < 20 << 20


def test_what_is_remembered_is_bounded_in_bytes(server: tuple[psutil.Process, int]) -> None:
    process, port = server
    before = process.memory_info().rss
    history = [["x" * 250 + str(number), "click"] for number in range(1000)]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        for number in range(100):  # 40 MiB of histories
            request = {"history": history, "candidates": ITEMS, "session": f"long {number}", "id": f"id {number}"}
            assert http.post("/v1/rank", json=request).status_code == 200
    assert metric(port, "mbcal_remembered_bytes") <= MAX_MEMORY << 20
    assert process.memory_info().rss - before < 40 << 20


def test_forwarded_addresses_count_only_from_trusted_proxies(shared_registry: Registry) -> None:
    def statuses(port: int, addresses: list[str]) -> list[int]:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
            return [http.get("/v1/stats", headers={"x-forwarded-for": address}).status_code for address in addresses]

    with serving(shared_registry, "--rate", "2") as (_, port):
        assert 429 in statuses(port, [f"10.0.0.{number}" for number in range(6)])
    with serving(shared_registry, "--rate", "2", "--trusted-proxy", "127.0.0.1") as (_, port):
        assert statuses(port, [f"10.0.0.{number}" for number in range(6)]) == [200] * 6
        assert 429 in statuses(
            port, [f"6.6.6.{number}, 10.0.1.1" for number in range(6)]
        )  # the client's own word is not trusted
