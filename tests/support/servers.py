"""The service for tests: its application in this process, or `mbcal serve` in another, and a proxy that loses answers."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from mbcal.decision_log.writer import DecisionLog
from mbcal.registry.registry import Registry
from mbcal.serving.access import Access
from mbcal.serving.limits import Limits
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.server import App
from mbcal.serving.service import Service

Story = Callable[[httpx.AsyncClient, Service], Awaitable[None]]


def run_app(
    registry: Registry,
    story: Story,
    log: Path | None = None,
    *,
    access: Access | None = None,
    epsilon: float = 0.0,
    sessions: MemoryStore | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run requests against the ASGI application in this process."""

    async def run() -> None:
        service = Service(
            registry, sessions or MemoryStore(), DecisionLog(log) if log else None, epsilon, limits or Limits()
        )
        await service.follower.look()
        transport = httpx.ASGITransport(App(service, access, clock))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await story(http, service)
        await service.close()

    asyncio.run(run())


@contextmanager
def serving(registry: Registry, *options: str, folder: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `mbcal serve` in a process, in a folder; yields the process and its port, and kills it at the end."""
    command = [sys.executable, "-P", "-m", "mbcal", "serve", "--registry", str(registry.path), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert process.stderr is not None
        port = next(int(json.loads(line)["address"].rsplit(":", 1)[1]) for line in process.stderr if "listening" in line)
        yield process, port
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def events_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Stop a server and return what it logged since it listens."""
    process.terminate()
    assert process.stderr is not None
    lines = process.stderr.readlines()
    process.wait(timeout=20)
    return [json.loads(line) for line in lines]


def metric(port: int, name: str) -> float:
    """The sum of all values of a metric of a server."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)


class CuttingProxy:
    """Passes requests on to a port, and cuts off the answer on every other connection."""

    def __init__(self, port: int) -> None:
        self._target, self.cut = port, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        connections = 0
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._target)) as server:
                client.settimeout(5)
                server.settimeout(5)
                try:
                    server.sendall(_read_message(client))
                    answer = _read_message(server)
                    if connections % 2 == 0:
                        self.cut += 1
                    else:
                        client.sendall(answer)
                except OSError:
                    pass
            connections += 1

    def close(self) -> None:
        """Stop listening."""
        self._listening.close()


def _read_message(connection: socket.socket) -> bytes:
    """One HTTP message, up to its content-length."""
    data = b""
    while (part := connection.recv(1 << 20)) != b"":
        data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if len(body) >= sum(lengths):
            break
    return data
