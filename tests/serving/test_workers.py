"""`mbcal serve --workers`: one port, shared sessions, restarts, a graceful end; and how a single server drains."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from mbcal.client import Client
from mbcal.decision_log import Loss
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision
from mbcal.registry.registry import Registry
from mbcal.serving.hub import HubStore
from mbcal.serving.messages import RankAnswer
from mbcal.serving.metrics import merge_metrics
from mbcal.serving.run import ServerSettings
from mbcal.serving.state import DecisionRef, session_store
from mbcal.serving.supervisor import Supervisor
from tests.support.decision_records import decision, write_log
from tests.support.servers import events_of, metric, serving
from tests.support.versions import ITEMS

ADMIN = "0123456789abcdef-admin"


def test_several_workers_are_one_service(shared_registry: Registry, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(shared_registry, "--workers", "2", "--log", str(log), "--epsilon", "0") as (process, port):
        address = f"http://127.0.0.1:{port}"
        acknowledged = converse(address, sessions=8, steps=3)
        workers = psutil.Process(process.pid).children()
        assert len(workers) == 2
        wait_until(lambda: metric(port, "mbcal_decisions") == 24)  # of both workers, whichever answers
        text = httpx.get(f"{address}/metrics").text
        assert text.count("# TYPE mbcal_ready gauge") == 1
        assert 'mbcal_ready{worker="0"} 1' in text
        assert 'mbcal_ready{worker="1"} 1' in text

        os.kill(workers[0].pid, signal.SIGKILL)
        acknowledged |= converse(address, sessions=4, steps=3, prefix="after")  # the other serves on
        wait_until(lambda: metric(port, "mbcal_ready") == 2)
        assert metric(port, "mbcal_worker_restarts_total") == 1
        acknowledged |= converse(address, sessions=4, steps=3, prefix="later")
        events = events_of(process)
        assert process.returncode == 0
    ended = [event for event in events if event["event"] == "worker ended"]
    assert [event["exit_code"] for event in ended] == [-signal.SIGKILL]
    names = Counter(event["event"] for event in events)
    assert (names["draining"], names["stopped"], names["stopping"]) == (2, 3, 1)
    records = [record for worker in (0, 1) for record in read_log(log / f"worker-{worker}") if isinstance(record, Decision)]
    assert acknowledged <= {record.id for record in records}
    assert all(any(read_log(log / f"worker-{worker}")) for worker in (0, 1))  # both took part
    assert {record.step for record in records} == {0, 1, 2}  # each worker knew what the other had shown


@pytest.mark.parametrize("has_redis", [False, True])
def test_what_a_killed_worker_had_logged_is_the_answer_of_all(
    shared_registry: Registry, tmp_path: Path, redis_address: str, has_redis: bool
) -> None:
    """It is killed between logging and answering: nobody can claim the ids until its log was read."""
    state = redis_address if has_redis else "memory"
    settings = ServerSettings(str(shared_registry.path), log=str(tmp_path), state=state)
    now = time.time_ns() // 1000
    answered = {"request": "hash", "scores": [2.0, 1.0], "seen": [True, False], "parts": {"instant": [2.0, 1.0]}}
    made = decision(0, id="logged", time=now, items=["a", "c"], propensities=[0.5, 1.0], context={"hour": 7}, **answered)
    write_log(tmp_path / "worker-0", [made])

    async def story() -> None:
        with socket.socket() as listener:
            supervisor = Supervisor(settings, 2, listener)
            tasks, workers = [], []
            for number in range(2):
                ours, its = socket.socketpair()
                tasks.append(asyncio.create_task(supervisor._hub.serve(str(number), ours)))
                workers.append(HubStore(its, lambda: None))
            killed, other = workers
            assert [await killed.claim_decision(name) for name in ("logged", "not logged", "given up")] == [True] * 3
            await killed.release_decision("given up")
            await killed.close()
            await tasks[0]
            assert [await other.claim_decision(name) for name in ("logged", "not logged")] == [False] * 2
            await supervisor._settle(0)
            known = await other.claim_decision("logged")
            assert isinstance(known, DecisionRef)
            assert known.items == ["a", "c"]
            assert (known.session, known.time, known.context) == (made.session, now, '{"hour":7}')
            answer = msgspec.msgpack.decode(known.answer, type=RankAnswer)
            assert [(item.item, item.score, item.propensity) for item in answer.items] == [("a", 2.0, 0.5), ("c", 1.0, 1.0)]
            assert await other.claim_decision("not logged") is True
            assert supervisor._hub.claims.left_by("0") == {}
            if has_redis:  # other servers know it, too
                store = session_store(redis_address, 60.0)
                assert await store.claim_decision("logged") == known
                await store.close()
            await other.close()
            await tasks[1]

    asyncio.run(story())


def test_workers_give_a_canary_its_share_and_agree_who_gets_it(registry: Registry, tmp_path: Path) -> None:
    live, canary = registry.versions()
    registry.start_canary(canary)
    log, names = tmp_path / "log", [f"s{number}" for number in range(200)]
    options = ["--workers", "2", "--log", str(log), "--canary", "0.3", "--no-watch", "--state", "memory"]
    with serving(registry, *options) as (_, port):
        address, each_alone = f"http://127.0.0.1:{port}", {"connection": "close"}  # so that either worker may get a request
        with httpx.Client(base_url=address, headers=each_alone) as http:
            for name in names * 2:
                answer = http.post("/v1/rank", json={"candidates": ITEMS, "k": 1, "session": name})
                assert answer.status_code == 200
    decisions = [
        (worker, record)
        for worker in (0, 1)
        for record in read_log(log / f"worker-{worker}")
        if isinstance(record, Decision)
    ]
    assert len(decisions) == 400
    versions = {name: {record.version for _, record in decisions if record.session == name} for name in names}
    assert all(len(chosen) == 1 for chosen in versions.values())  # sticky, whichever worker answers
    assert Counter(version for (version,) in versions.values())[canary] / len(names) == pytest.approx(0.3, abs=0.1)
    assert {(worker, record.version) for worker, record in decisions} == {(w, v) for w in (0, 1) for v in (live, canary)}
    workers = {name: {worker for worker, record in decisions if record.session == name} for name in names}
    assert sum(len(both) == 2 for both in workers.values()) >= 20


def test_what_one_worker_learns_holds_for_all(
    shared_registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MBCAL_ADMIN_TOKEN", ADMIN)
    with serving(shared_registry, "--workers", "2", "--log", str(tmp_path / "log"), "--epsilon", "0.5") as (process, port):
        address = f"http://127.0.0.1:{port}"

        def post(path: str, body: dict[str, object]) -> dict[str, object]:
            answer = httpx.post(f"{address}{path}", json=body, headers={"authorization": f"Bearer {ADMIN}"})
            assert answer.status_code == 200
            return dict(answer.json())

        with ThreadPoolExecutor(4) as pool:  # the same request, with the same id, at the same moment
            for number in range(15):
                request: dict[str, object] = {"candidates": ITEMS, "k": 3, "id": f"same {number}", "session": f"s {number}"}
                answers = list(pool.map(lambda _, body=request: post("/v1/rank", body), range(4)))  # type: ignore[misc]
                assert all(answer == answers[0] for answer in answers)
                for _ in range(6):
                    post("/v1/feedback", {"decision": f"same {number}", "behaviour": "like"})
        wait_until(lambda: stats_of(address)["decisions"] == 15 and stats_of(address)["feedback"] >= 15)
        time.sleep(2.2)  # both workers have reported since
        assert stats_of(address)["feedback"] == 15  # each once, whichever workers it was sent to
        assert stats_of(address)["reward_per_session"] == 5.0

        post("/admin/epsilon", {"epsilon": 0.25})
        assert {post("/v1/rank", {"candidates": ITEMS})["epsilon"] for _ in range(20)} == {0.25}
        os.kill(psutil.Process(process.pid).children()[0].pid, signal.SIGKILL)
        time.sleep(0.5)
        wait_until(lambda: metric(port, "mbcal_ready") == 2)
        assert {post("/v1/rank", {"candidates": ITEMS})["epsilon"] for _ in range(20)} == {0.25}
    records = [record for worker in (0, 1) for record in read_log(tmp_path / "log" / f"worker-{worker}")]
    ids = [record.id for record in records if isinstance(record, Decision)]
    assert len(ids) == len(set(ids)) == 15 + 40


def stats_of(address: str) -> dict[str, float]:
    return dict(httpx.get(f"{address}/v1/stats").json()["versions"]["v000001"])


def converse(address: str, sessions: int, steps: int, prefix: str = "s") -> set[str]:
    """Rank and give feedback on new connections, so that any worker may get each request; the ids of the decisions."""
    decisions = set()
    for step in range(steps):
        for number in range(sessions):
            with Client(address) as client:
                answer = client.rank([], ITEMS, k=1, session=f"{prefix} {number}")
            assert answer.remembered
            decisions.add(answer.decision)
            with Client(address) as client:
                assert client.feedback(answer.decision, "click").applied, (step, number)
    return decisions


def wait_until(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_workers_end_with_their_supervisor(shared_registry: Registry) -> None:
    with serving(shared_registry, "--workers", "2") as (process, port):
        workers = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        assert len(psutil.wait_procs(workers, timeout=15)[0]) == 2
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_workers_that_cannot_start_end_the_command(shared_registry: Registry, tmp_path: Path) -> None:
    with serving(shared_registry, "--log", str(tmp_path / "log" / "worker-1")) as (process, _):
        command = [*process.args[:-4], "--workers", "2", "--log", str(tmp_path / "log"), "--port", "0"]  # type: ignore[index]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "another process writes this decision log" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_worker_that_is_started_again_waits_for_a_log_that_has_gone(shared_registry: Registry, tmp_path: Path) -> None:
    log, acknowledged, numbers = tmp_path / "disk" / "log", set(), iter(range(1_000_000))
    with serving(shared_registry, "--workers", "2", "--log", str(log)) as (process, port):

        def ask() -> int:
            name = f"request {next(numbers)}"
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/rank", json={"id": name, "candidates": ITEMS}, timeout=10)
            if answer.status_code == 200:
                acknowledged.add(name)
            return answer.status_code

        def workers() -> list[psutil.Process]:
            return psutil.Process(process.pid).children()

        assert {ask() for _ in range(10)} == {200}
        log.rename(tmp_path / "away")
        time.sleep(1.5)
        workers()[0].kill()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert ask() == 503
        assert not log.exists()
        (tmp_path / "away").rename(log)
        wait_until(lambda: ask() == 200)
        wait_until(lambda: metric(port, "mbcal_log_outages_total") == 1 and len(workers()) == 2)
        assert metric(port, "mbcal_log_lost_records") == 0
        assert {ask() for _ in range(10)} == {200}
    lost: list[Loss] = []
    assert acknowledged <= {record.id for record in read_log(log, lost) if isinstance(record, Decision)}
    assert not lost


def test_modules_in_the_folder_of_the_command_are_not_imported(shared_registry: Registry, tmp_path: Path) -> None:
    """A script of the operator, such as http.py, took the place of Python's own: no worker started."""
    for name in ("http", "queue", "types"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    log = str(tmp_path / "log")
    with serving(shared_registry, "--workers", "2", "--log", log, "--canary", "0.1", folder=tmp_path) as (process, port):
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        assert not any(event["event"] == "worker ended" for event in events_of(process))


def test_requests_in_progress_finish_when_a_server_stops(shared_registry: Registry) -> None:
    with serving(shared_registry) as (process, port):
        body = b'{"candidates": ["item 1"]}'
        head = b"POST /v1/rank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
            wire.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body[:-1])
            time.sleep(0.3)
            process.terminate()
            time.sleep(0.5)
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0  # listeners are closed first
            threading.Timer(0.2, wire.sendall, (body[-1:],)).start()
            assert wire.recv(4096).startswith(b"HTTP/1.1 200")
        events = events_of(process)
        assert process.returncode == 0
        assert [event["event"] for event in events] == ["draining", "stopped"]


def test_metrics_of_workers_are_merged() -> None:
    texts = {"1": '# TYPE a counter\na{x="y"} 2\n# TYPE b gauge\nb 3\n', "0": "# TYPE b gauge\nb 4\n"}
    assert merge_metrics(texts, 5).splitlines() == [
        "# TYPE b gauge",
        'b{worker="0"} 4',
        'b{worker="1"} 3',
        "# TYPE a counter",
        'a{x="y",worker="1"} 2',
        "# TYPE mbcal_worker_restarts_total counter",
        "mbcal_worker_restarts_total 5",
    ]
