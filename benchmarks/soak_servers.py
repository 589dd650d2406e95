"""The servers of `soak.py`: `mbcal serve` with its workers, and a Redis server."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import numpy as np
import psutil


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Server:
    """`mbcal serve` on one port through all its restarts."""

    def __init__(self, command: list[str], log: Path, events: Path) -> None:
        self.log, self.port, self.starts = log, free_port(), 0
        self._command = [*command, "--log", str(log), "--port", str(self.port)]
        self._events = events.open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self._draw = np.random.default_rng(2)

    def launch(self) -> None:
        """Start it; it is not ready yet."""
        self._process = subprocess.Popen(self._command, stderr=self._events)
        self.starts += 1

    async def ready(self) -> None:
        """Wait until it is ready."""
        deadline = time.monotonic() + 60
        while not await asyncio.to_thread(self._is_ready):
            assert time.monotonic() < deadline, "the server did not start; see events.log"
            await asyncio.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def _processes(self) -> list[psutil.Process]:
        """The server's process and its workers."""
        if self._process is None or self._process.poll() is not None:
            return []
        main = psutil.Process(self._process.pid)
        return [main, *main.children(recursive=True)]

    def memory(self) -> float:
        """MiB of all its processes."""
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in self._processes():
                total += process.memory_info().rss
        return total / 2**20

    def limit_files(self, size: int | None) -> None:
        """Let no file of the server grow beyond this size; None for no limit.

        Raises:
            PermissionError: If the system does not allow it.
        """
        for process in self._processes():
            try:
                _, hard = process.rlimit(resource.RLIMIT_FSIZE)
                process.rlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
            except psutil.AccessDenied as error:
                raise PermissionError("limits of another process cannot be set here") from error

    async def kill(self) -> None:
        """Kill (-9) a worker, or of the only process, which is then started again."""
        processes = self._processes()
        if len(processes) > 1:
            processes[1 + int(self._draw.integers(len(processes) - 1))].kill()
            return
        processes[0].kill()
        assert self._process is not None
        await asyncio.to_thread(self._process.wait)
        self.launch()

    async def stop(self) -> None:
        """SIGTERM, and wait until it has ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, 30)

    def end(self) -> None:
        """Kill what is left."""
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._events.close()


class RedisServer:
    """A Redis server without persistence."""

    def __init__(self, folder: Path) -> None:
        self._port, self._folder = free_port(), folder
        self.address = f"redis://127.0.0.1:{self._port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = ["redis-server", "--port", str(self._port), "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                return
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
