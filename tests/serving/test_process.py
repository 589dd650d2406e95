"""`mbcal serve` as a process: hot swaps, kill -9, large and slow bodies, shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mbcal.client import Client
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision
from mbcal.errors import ServiceError
from mbcal.registry.registry import Registry
from mbcal.serving import events
from mbcal.serving.server import LINGER_SECONDS
from tests.support.servers import serving
from tests.support.versions import HISTORY, ITEMS, SHOWN


def test_the_server_imports_no_torch(registry: Registry) -> None:
    with serving(registry) as (process, port):
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.rank([], ITEMS, k=3).version == "v000001"
        maps = Path(f"/proc/{process.pid}/maps")
        if maps.exists():
            assert "libtorch" not in maps.read_text()


def test_versions_change_under_load_without_a_failure(registry: Registry) -> None:
    with serving(registry, "--epsilon", "0") as (_, port):
        seen: list[tuple[str, str]] = []
        stop = threading.Event()

        def work(name: str) -> None:
            with Client(f"http://127.0.0.1:{port}", retries=0) as client:
                while not stop.is_set():
                    answer = client.rank(HISTORY, ITEMS, SHOWN, k=3)
                    seen.append((answer.version, json.dumps([[entry.item, entry.score] for entry in answer.items])))

        workers = [threading.Thread(target=work, args=(str(n),)) for n in range(3)]
        for worker in workers:
            worker.start()
        for turn in range(4):
            name = ("v000002", "v000001")[turn % 2]
            registry.activate(name)
            deadline = time.monotonic() + 5
            while seen[-1:] == [] or seen[-1][0] != name:
                assert time.monotonic() < deadline, "the new version did not go live"
                time.sleep(0.02)
        stop.set()
        for worker in workers:
            worker.join()
        answers = {version: {items for name, items in seen if name == version} for version in ("v000001", "v000002")}
        assert all(len(items) == 1 for items in answers.values())  # each answer from exactly one version
        assert answers["v000001"] != answers["v000002"]


def test_nothing_acknowledged_is_lost_to_kill_9(registry: Registry, tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    for turn in range(3):
        with serving(registry, "--log", str(tmp_path / "log")) as (process, port):

            def work(port: int = port) -> None:
                with Client(f"http://127.0.0.1:{port}", retries=0) as client:
                    while True:
                        try:
                            answer = client.rank([], ITEMS, k=2)
                            acknowledged.add(answer.decision)
                            client.feedback(answer.decision, "click")
                            acknowledged.add(f"{answer.decision} feedback")
                        except ServiceError:
                            return

            workers = [threading.Thread(target=work) for _ in range(4)]
            for worker in workers:
                worker.start()
            deadline = time.monotonic() + 30
            while len(acknowledged) <= 40 * (turn + 1) and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            for worker in workers:
                worker.join()
    kept = {
        record.id if isinstance(record, Decision) else f"{record.decision} feedback" for record in read_log(tmp_path / "log")
    }
    assert len(acknowledged) > 100
    assert acknowledged <= kept


def test_bodies_that_are_too_large_or_too_slow(registry: Registry) -> None:
    with serving(registry, "--max-body", "4096") as (_, port):
        head = "POST /v1/rank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        for length in ("content-length: 1000000000", "transfer-encoding: chunked"):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
                body = b"x" * 65536 if "length" in length else b"10000\r\n" + b"x" * 65536 + b"\r\n"
                wire.sendall(f"{head}{length}\r\n\r\n".encode() + body)
                assert wire.recv(4096).startswith(b"HTTP/1.1 413")
        with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
            began = time.monotonic()
            wire.sendall(f"{head}content-length: 5000\r\n\r\n".encode() + b"x" * 5000)
            while wire.recv(4096):
                pass
            assert time.monotonic() - began < LINGER_SECONDS / 2  # all of it was sent: nothing is waited for
        with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
            wire.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())  # and nothing more
            assert wire.recv(4096).startswith(b"HTTP/1.1 408")
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.rank([], ITEMS).version == "v000001"


def test_sigterm_stops_the_server_and_loses_no_decision(registry: Registry, tmp_path: Path) -> None:
    with serving(registry, "--log", str(tmp_path / "log")) as (process, port):
        with Client(f"http://127.0.0.1:{port}") as client:
            decision = client.rank([], ITEMS).decision
        process.terminate()
        assert process.wait(timeout=15) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
    assert [record.id for record in read_log(tmp_path / "log") if isinstance(record, Decision)] == [decision]


def test_a_signal_that_comes_while_the_server_starts_stops_it(registry: Registry) -> None:
    """Before uvicorn listens to signals: the signal is sent when the application is made."""
    script = (
        "import os, signal, sys\n"
        "from mbcal.serving import run\n"
        "make = run.App\n"
        "run.App = lambda *given: (os.kill(os.getpid(), signal.SIGTERM), make(*given))[1]\n"
        "from mbcal.cli import main\n"
        "sys.argv[1:] = ['serve', '--registry', sys.argv[1], '--port', '0']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(registry.path)], capture_output=True, text=True, timeout=30)
    assert ended.returncode in (0, 128 + signal.SIGTERM)
    assert '"event": "stopped"' in ended.stderr


def test_a_signal_stops_a_server_whose_disk_stalls(registry: Registry, tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from mbcal.decision_log import appender\n"
        "from mbcal.serving import run\n"
        "run.DRAIN_SECONDS = 1\n"
        "real, stalls = appender._fdatasync, pathlib.Path(sys.argv.pop())\n"
        "appender._fdatasync = lambda file: time.sleep(60) if stalls.exists() else real(file)\n"
        "from mbcal.cli import main\n"
        "main()\n"
    )
    options = ["serve", "--registry", str(registry.path), "--port", "0", "--log", str(tmp_path / "log")]
    command = [sys.executable, "-c", script, *options, str(tmp_path / "stalls")]
    statuses: list[int] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = next(int(json.loads(line)["address"].rsplit(":", 1)[1]) for line in process.stderr if "listening" in line)
        (tmp_path / "stalls").touch()

        def ask() -> None:
            try:
                with Client(f"http://127.0.0.1:{port}", retries=0, timeout=20) as client:
                    client.rank([], ITEMS)
            except ServiceError as error:
                statuses.append(error.status)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.5)
        process.terminate()
        lines = process.stderr.read()
        assert process.wait(timeout=15) in (0, 128 + signal.SIGTERM)
        asking.join()
    assert statuses == [503]
    assert '"event": "log not closed", "records": 1' in lines
    assert '"event": "stopped"' in lines


def test_a_second_server_on_one_log_is_refused(registry: Registry, tmp_path: Path) -> None:
    with serving(registry, "--log", str(tmp_path / "log")):
        command = [sys.executable, "-m", "mbcal", "serve", "--registry", str(registry.path), "--log", str(tmp_path / "log")]
        second = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 2
        assert len(second.stderr.strip().splitlines()) == 1


def test_a_log_that_nobody_reads_any_more_stops_nothing(registry: Registry, tmp_path: Path) -> None:
    with serving(registry, "--workers", "2", "--log", str(tmp_path / "log")) as (process, port):
        assert process.stderr is not None
        process.stderr.close()  # as when the other end of a pipe has ended
        registry.activate("v000002")  # the server would print a line for it
        workers = psutil.Process(process.pid).children()
        os.kill(workers[0].pid, signal.SIGKILL)  # and for this
        deadline = time.monotonic() + 20
        with Client(f"http://127.0.0.1:{port}") as client:
            while client.rank([], ITEMS).version != "v000002" or len(psutil.Process(process.pid).children()) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        registry.activate("v000001")
        with Client(f"http://127.0.0.1:{port}") as client:
            while client.rank([], ITEMS).version != "v000001":
                assert time.monotonic() < deadline
                time.sleep(0.1)
        process.terminate()
        assert process.wait(timeout=20) == 0


def test_a_log_whose_reader_does_not_read_stops_nothing(registry: Registry, tmp_path: Path) -> None:
    with serving(registry, "--workers", "2", "--log", str(tmp_path / "log")) as (process, port):
        assert process.stderr is not None
        full = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        for size in (1024, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(full, b"x" * size)
        os.close(full)
        os.kill(psutil.Process(process.pid).children()[0].pid, signal.SIGKILL)  # the supervisor would print a line for it
        registry.activate("v000002")  # and the workers for this
        deadline = time.monotonic() + 20
        with Client(f"http://127.0.0.1:{port}") as client:
            while client.rank([], ITEMS, session="s", shown=[]).version != "v000002":
                assert time.monotonic() < deadline
                time.sleep(0.1)
        process.terminate()
        assert process.wait(timeout=10) == 0


def test_lines_that_are_lost_are_counted(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_WAITING", 3)
    lines, stuck, goes_on = events.EventLines(), threading.Event(), threading.Event()
    write = os.write

    def stuck_write(*data: Any) -> int:
        stuck.set()
        goes_on.wait(10)
        return write(*data)

    monkeypatch.setattr(os, "write", stuck_write)
    lines.add("first")
    assert stuck.wait(10)
    for number in range(5):
        lines.add(f"waiting {number}")
    lines.flush(0.01)  # it does not wait for ever
    goes_on.set()
    lines.flush(10)
    printed = capfd.readouterr().err.splitlines()
    assert [printed[0], *printed[2:]] == ["first", "waiting 0", "waiting 1", "waiting 2"]
    assert json.loads(printed[1])["lines"] == 2


def test_a_client_that_sends_its_whole_body_first_gets_the_refusal(shared_registry: Registry) -> None:
    head = b"POST /v1/rank HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with serving(shared_registry) as (_, port):
        for host, size, status in ((b"localhost", 5 << 20, b"413"), (b"elsewhere", 2 << 20, b"421")):
            for _ in range(4):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
                    wire.sendall(head % (host, size) + b" " * size)
                    assert wire.recv(4096).startswith(b"HTTP/1.1 " + status)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as wire:
            wire.sendall(head % (b"localhost", 2 << 20) + b" " * (1 << 20))  # the rest never comes
            began = time.monotonic()
            while wire.recv(4096):
                pass
            assert time.monotonic() - began < 3
