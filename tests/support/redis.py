"""A Redis server for tests, which can be killed, started again and paused."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest


class RedisServer:
    """Redis on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("there is no redis-server here (Debian: apt-get install redis-server)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        self.address = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError("redis-server did not start")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stop it without closing its connections."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        os.kill(self._process.pid, signal.SIGCONT)
