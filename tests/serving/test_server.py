"""The server as its clients meet it: in process by ASGI, and as a process of its own by sockets, kindly and not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from mbcal.agents import load
from mbcal.client import AsyncClient, Client
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Decision, Feedback
from mbcal.decision_log.writer import DecisionLog
from mbcal.errors import ServiceError
from mbcal.registry.registry import Registry
from mbcal.serving.messages import openapi
from mbcal.serving.server import App
from mbcal.serving.service import Limits, Service
from mbcal.serving.state import MemoryStore
from tests.support.versions import HISTORY, ITEMS, SHOWN, fitted


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    return [fitted(seed=seed).save(folder / str(seed)) for seed in range(2)]


@pytest.fixture
def registry(models: list[Path], tmp_path: Path) -> Registry:
    made = Registry(tmp_path / "registry")
    for path in models:
        made.publish(path)
    made.activate(made.versions()[0])
    return made


def run(
    registry: Registry, story: Callable[[httpx.AsyncClient, Service], Any], log: Path | None = None, **more: Any
) -> Service:
    """A story told to the application in this process."""
    token = more.pop("token", None)
    epsilon = more.pop("epsilon", 0.0)
    sessions = more.pop("sessions", None) or MemoryStore()

    async def tell() -> Service:
        service = Service(registry, sessions, DecisionLog(log) if log else None, epsilon, Limits(**more))
        await service.refresh_version()
        app = App(service, token)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
            await story(http, service)
        await service.close()
        return service

    return asyncio.run(tell())


def test_it_ranks_as_the_library_does(registry: Registry, models: list[Path]) -> None:
    candidates = [item for item in ITEMS if item not in ("item 2", "item 9")]
    wanted = load(models[0], "cpu").rank(HISTORY, candidates, SHOWN)

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        asked = {"candidates": candidates, "k": len(candidates), "history": HISTORY, "shown": SHOWN}
        said = (await http.post("/v1/rank", json=asked)).json()
        assert said["version"] == "v000001"
        assert [entry["item"] for entry in said["items"]] == [entry.item for entry in wanted]
        for entry, theirs in zip(said["items"], wanted, strict=True):
            assert entry["score"] == pytest.approx(theirs.score, abs=1e-5)
            assert sum(entry["parts"].values()) == pytest.approx(entry["score"], abs=1e-6)
            assert entry["propensity"] == 1.0

    run(registry, story)


def test_feedback_may_go_to_another_server_than_the_one_that_ranked(registry: Registry) -> None:
    shared = MemoryStore()
    made: list[str] = []

    async def rank(http: httpx.AsyncClient, _: Service) -> None:
        asked = {"candidates": ITEMS, "session": "s", "history": HISTORY, "k": 2}
        made.append((await http.post("/v1/rank", json=asked)).json()["decision"])

    async def tell(http: httpx.AsyncClient, service: Service) -> None:
        told = await http.post("/v1/feedback", json={"decision": made[0], "behaviour": "click"})
        assert told.json() == {"decision": made[0], "applied": True}
        known = await service.sessions.get("s")
        assert known is not None
        assert [behaviour for _, behaviour in known.shown] == ["click"]
        assert service.stats()["versions"]["v000001"]["feedback"] == 1

    run(registry, rank, sessions=shared)
    run(registry, tell, sessions=shared)


def test_a_session_remembered_equals_one_sent_whole(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        shown: list[list[str]] = []
        for behaviour in ("click", "skip", "like"):
            kept = (
                await http.post("/v1/rank", json={"candidates": ITEMS, "session": "s", "history": HISTORY, "k": 3})
            ).json()
            whole = (
                await http.post("/v1/rank", json={"candidates": ITEMS, "history": HISTORY, "shown": shown, "k": 3})
            ).json()
            assert kept["items"] == whole["items"]
            for _ in range(2):  # feedback twice is as good as once
                told = await http.post("/v1/feedback", json={"decision": kept["decision"], "behaviour": behaviour})
                assert told.json() == {"decision": kept["decision"], "applied": True}
            shown.append([kept["items"][0]["item"], behaviour])

    run(registry, story, tmp_path / "log")
    records = list(read_log(tmp_path / "log"))
    assert sum(isinstance(record, Decision) for record in records) == 6
    assert sum(isinstance(record, Feedback) for record in records) == 3
    last = [record for record in records if isinstance(record, Decision) and record.session][-1]
    assert [behaviour for _, behaviour in last.shown] == ["click", "skip"]
    assert last.history == HISTORY
    assert (last.step, last.version, last.candidates) == (2, "v000001", ITEMS)


def test_asking_again_with_one_id_is_one_decision(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        asked = {"candidates": ITEMS, "id": "mine"}
        answers = await asyncio.gather(*(http.post("/v1/rank", json=asked) for _ in range(8)))
        assert len({answer.content for answer in answers}) == 1
        assert answers[0].json()["decision"] == "mine"

    run(registry, story, tmp_path / "log", epsilon=0.5)
    assert len(list(read_log(tmp_path / "log"))) == 1


def test_several_users_in_one_call(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        users = [{"candidates": ITEMS, "history": HISTORY[:n], "k": 2} for n in range(3)]
        together = (await http.post("/v1/rank", json={"batch": users})).json()["answers"]
        for one, asked in zip(together, users, strict=True):
            assert one["items"] == (await http.post("/v1/rank", json=asked)).json()["items"]
        told = [{"decision": one["decision"], "behaviour": "click"} for one in together]
        assert len((await http.post("/v1/feedback", json={"batch": told})).json()["answers"]) == 3

    run(registry, story)


def test_strangers_and_mistakes_are_told_apart(registry: Registry) -> None:
    cases: list[tuple[str, Any, int, str]] = [
        ("/v1/rank", {"candidates": ["nobody knows it"]}, 200, ""),
        ("/v1/rank", {"candidates": []}, 422, "length >= 1"),
        ("/v1/rank", {"candidates": ["a", "a"]}, 422, "twice"),
        ("/v1/rank", {"candidates": ["a"], "k": 0}, 422, ">= 1"),
        ("/v1/rank", {"candidates": ["a"], "colour": 1}, 422, "unknown field"),
        ("/v1/rank", {"candidates": ["a"], "history": [["item 1", "loved"]]}, 422, "'loved' is unknown"),
        ("/v1/rank", {"candidates": ["a"], "history": [["item 1"]]}, 422, ""),
        ("/v1/rank", [], 422, ""),
        ("/v1/feedback", {"decision": "gone", "behaviour": "click"}, 422, "name the item"),
        ("/v1/feedback", {"decision": "gone", "behaviour": "click", "item": "item 1"}, 200, ""),
        ("/v1/feedback", {"decision": "gone", "behaviour": "loved", "item": "item 1"}, 422, "loved"),
    ]

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for path, asked, status, said in cases:
            answer = await http.post(path, json=asked)
            assert answer.status_code == status, (path, asked, answer.text)
            assert said in (answer.json().get("error", "") if status != 200 else ""), answer.text
        stranger = (await http.post("/v1/rank", json={"candidates": ["nobody knows it"]})).json()["items"][0]
        assert stranger["known"] is False
        assert (await http.get("/nowhere")).status_code == 404
        wrong = await http.get("/v1/rank")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")

    run(registry, story)


def test_any_bytes_get_an_answer(registry: Registry) -> None:
    """2xx or 4xx, never 5xx, whatever is sent."""

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=st.one_of(st.binary(max_size=300), st.text(max_size=100).map(lambda text: json.dumps(text).encode())))
    def bytes_(body: bytes) -> None:
        seen.append(body)

    pairs = st.lists(st.lists(st.text(max_size=4), max_size=3), max_size=3)
    fields = st.fixed_dictionaries(
        {},
        optional={
            "candidates": st.one_of(st.lists(st.text(max_size=5), max_size=4), st.integers(), st.none()),
            "k": st.one_of(st.integers(), st.floats(), st.text(max_size=3)),
            "session": st.one_of(st.text(max_size=4), st.none()),
            "history": pairs,
            "shown": st.one_of(pairs, st.none()),
            "batch": st.lists(st.dictionaries(st.text(max_size=4), st.integers()), max_size=2),
            "decision": st.text(max_size=4),
            "behaviour": st.text(max_size=4),
        },
    )

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(body=fields)
    def nearly(body: dict[str, Any]) -> None:
        seen.append(json.dumps(body).encode())

    seen: list[bytes] = [
        b"",
        b"{",
        b'"\\ud800"',
        b'{"candidates":["\\ud800"]}',
        b"[" * 5000,
        b'{"candidates":' + b"[" * 5000,
        b'{"candidates":["a"],"k":1e999}',
        b"\xff",
    ]
    bytes_()
    nearly()

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for body in seen:
            for path in ("/v1/rank", "/v1/feedback"):
                answer = await http.post(path, content=body)
                assert answer.status_code in (200, 400, 422), (path, body, answer.text)

    run(registry, story)


def test_requests_made_from_the_document_get_documented_answers(registry: Registry) -> None:
    """What the OpenAPI document allows, and what it does not, as schemathesis makes it up."""
    schema = schemathesis.openapi.from_dict(openapi("0"))
    asked: list[tuple[str, str, Any]] = []
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:

            @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def make(case: Any) -> None:
                given = None if type(case.body).__name__ == "NotSet" else case.body
                body = given if isinstance(given, bytes | None) else json.dumps(given).encode()
                asked.append((case.method, case.path, body))

            with contextlib.suppress(Unsatisfiable):  # there is nothing wrong one could say to a GET
                make()

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for method, path, body in asked:
            answer = await http.request(method, path, content=body)
            known = openapi("0")["paths"][path][method.lower()]["responses"]
            assert str(answer.status_code) in known, (path, body, answer.text)
            assert answer.status_code < 500

    run(registry, story)
    assert len({path for _, path, _ in asked}) == 6


def test_only_who_has_the_token_may(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": "Bearer secret"}, 200),
        ):
            answer = await http.post("/admin/epsilon", json={"epsilon": 0.25}, headers=headers)
            assert answer.status_code == status
        assert service.epsilon == 0.25
        assert (await http.post("/admin/epsilon", json={"epsilon": 2}, headers=headers)).status_code == 422

    run(registry, story, token="secret")  # noqa: S106 - no password of anybody's

    async def closed(http: httpx.AsyncClient, _: Service) -> None:
        assert (await http.post("/admin/reload", headers={"authorization": "Bearer "})).status_code == 403

    run(registry, closed)


def test_the_rate_of_a_client_is_bounded(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        answers = [await http.get("/v1/stats") for _ in range(8)]
        assert [answer.status_code for answer in answers[:5]] == [200] * 5
        assert answers[-1].status_code == 429
        assert answers[-1].headers["retry-after"] == "1"
        await asyncio.sleep(0.5)
        assert (await http.get("/v1/stats")).status_code == 200

    run(registry, story, rate=5.0)


def test_more_than_can_be_served_are_told_at_once(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        answered: list[int] = []

        async def ask() -> httpx.Response:
            answer = await http.post("/v1/rank", json={"candidates": ITEMS})
            answered.append(answer.status_code)
            return answer

        answers = await asyncio.gather(*(ask() for _ in range(40)))
        assert sorted(answered) == [200] * 10 + [503] * 30
        assert answered[:30] == [503] * 30  # nobody is refused after others were served
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 503)
        assert (await ask()).status_code == 200

    run(registry, story, tmp_path / "log", at_once=10)


def test_numbers_for_machines_and_people(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        for behaviour in ("click", "like"):
            said = (await http.post("/v1/rank", json={"candidates": ITEMS, "session": "s"})).json()
            await http.post("/v1/feedback", json={"decision": said["decision"], "behaviour": behaviour})
        stats = (await http.get("/v1/stats")).json()["versions"]["v000001"]
        assert stats == {"decisions": 2, "sessions": 1, "feedback": 2, "reward per session": 6.0}
        text = (await http.get("/metrics")).text
        assert 'mbcal_requests_total{path="/v1/rank",status="200"} 2' in text
        assert 'mbcal_reward{version="v000001"} 6.0' in text
        assert "mbcal_request_seconds_count 5" in text
        model = (await http.get("/v1/model")).json()
        assert (model["agent"], model["rewards"]) == ("mbcal", [0.0, 1.0, 5.0])
        assert (await http.get("/readyz")).json() == {"version": "v000001"}
        assert "Rank by hand" in (await http.get("/")).text

    run(registry, story)


def test_without_a_version_it_is_not_ready(tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        assert (await http.get("/healthz")).status_code == 200
        for answer in (await http.get("/readyz"), await http.post("/v1/rank", json={"candidates": ["a"]})):
            assert answer.status_code == 503
            assert "publish one" in answer.json()["error"]

    run(Registry(tmp_path / "empty"), story)


def test_a_damaged_version_is_refused_and_the_old_one_serves_on(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        scorer = registry.open("v000002").path / "scorer.safetensors"
        data = bytearray(scorer.read_bytes())
        data[len(data) // 2] ^= 1
        scorer.write_bytes(bytes(data))
        pointer = registry.path / "current.json"
        pointer.write_text(pointer.read_text().replace('"v000001"', '"v000002"', 1))
        await service.refresh_version()
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).json()["version"] == "v000001"
        assert "v000002" in (await http.get("/v1/model")).json()["refused"]

    run(registry, story)


# ---- a process of its own


@contextmanager
def serving(registry: Registry, *more: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "mbcal", "serve", "--registry", str(registry.path), "--port", "0", *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = next(int(json.loads(line)["address"].rsplit(":", 1)[1]) for line in process.stderr if "listening" in line)
        yield process, port
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_the_server_imports_no_torch(registry: Registry) -> None:
    with serving(registry) as (process, port):
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.rank(ITEMS, k=3).version == "v000001"
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
                    answer = client.rank(ITEMS, history=HISTORY, shown=SHOWN, k=3)
                    seen.append((answer.version, json.dumps([[entry.item, entry.score] for entry in answer.items])))

        workers = [threading.Thread(target=work, args=(str(n),)) for n in range(3)]
        for worker in workers:
            worker.start()
        for turn in range(4):
            name = ("v000002", "v000001")[turn % 2]
            registry.activate(name)
            deadline = time.monotonic() + 5
            while seen[-1:] == [] or seen[-1][0] != name:
                assert time.monotonic() < deadline, "it was not visible"
                time.sleep(0.02)
        stop.set()
        for worker in workers:
            worker.join()
        answers = {version: {said for name, said in seen if name == version} for version in ("v000001", "v000002")}
        assert all(len(said) == 1 for said in answers.values())  # each answer from exactly one version
        assert answers["v000001"] != answers["v000002"]


def test_nothing_acknowledged_is_lost_to_kill_9(registry: Registry, tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    for turn in range(3):
        with serving(registry, "--log", str(tmp_path / "log")) as (process, port):

            def work(port: int = port) -> None:
                with Client(f"http://127.0.0.1:{port}", retries=0) as client:
                    while True:
                        try:
                            answer = client.rank(ITEMS, k=2)
                            acknowledged.add(answer.decision)
                            client.feedback(answer.decision, "click")
                            acknowledged.add(f"{answer.decision} told")
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
        record.id if isinstance(record, Decision) else f"{record.decision} told" for record in read_log(tmp_path / "log")
    }
    assert len(acknowledged) > 100
    assert acknowledged <= kept


def test_bodies_that_are_too_large_or_too_slow(registry: Registry) -> None:
    with serving(registry, "--max-body", "4096") as (_, port):
        head = "POST /v1/rank HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        for length in ("content-length: 1000000000", "transfer-encoding: chunked"):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
                body = b"x" * 65536 if "length" in length else b"10000\r\n" + b"x" * 65536 + b"\r\n"
                wire.sendall(f"{head}{length}\r\n\r\n".encode() + body)
                assert wire.recv(4096).startswith(b"HTTP/1.1 413")
        with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
            wire.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())  # and nothing more
            began = time.monotonic()
            assert wire.recv(4096).startswith(b"HTTP/1.1 408")
            assert 4 < time.monotonic() - began < 8
        with Client(f"http://127.0.0.1:{port}") as client:
            assert client.rank(ITEMS).version == "v000001"


def test_it_stops_when_told_and_answers_what_it_began(registry: Registry, tmp_path: Path) -> None:
    with serving(registry, "--log", str(tmp_path / "log")) as (process, port):
        with Client(f"http://127.0.0.1:{port}") as client:
            decision = client.rank(ITEMS).decision
        process.terminate()
        assert process.wait(timeout=15) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
    assert [record.id for record in read_log(tmp_path / "log") if isinstance(record, Decision)] == [decision]


# ---- the client


def test_the_client_asks_again_and_logs_once(registry: Registry, tmp_path: Path) -> None:
    """A proxy that cuts every first answer off: the client tries again, the log has one decision each."""
    with serving(registry, "--log", str(tmp_path / "log")) as (_, port):
        proxy = _Cutting(port)
        with Client(f"http://127.0.0.1:{proxy.port}") as client:
            first = client.rank(ITEMS, session="s")
            assert client.feedback(first.decision, "like").applied

        async def asynchronously() -> None:
            async with AsyncClient(f"http://127.0.0.1:{proxy.port}") as client:
                assert (await client.rank(ITEMS, k=2)).version == "v000001"
                assert (await client.model())["agent"] == "mbcal"

        asyncio.run(asynchronously())
        proxy.close()
        assert proxy.cut >= 3
    records = list(read_log(tmp_path / "log"))
    assert [type(record) for record in records] == [Decision, Feedback, Decision]


def _message(wire: socket.socket) -> bytes:
    """One whole HTTP message, as far as its length goes."""
    data = b""
    while (part := wire.recv(1 << 20)) != b"":
        data += part
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if len(body) >= sum(lengths):
            break
    return data


class _Cutting:
    """Passes on what comes, and cuts the first answer of every other connection off."""

    def __init__(self, port: int) -> None:
        self._to, self.cut = port, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while True:
            try:
                wire, _ = self._listening.accept()
            except OSError:
                return
            with wire, socket.create_connection(("127.0.0.1", self._to)) as other:
                wire.settimeout(5)
                other.settimeout(5)
                try:
                    other.sendall(_message(wire))
                    answer = _message(other)
                    if number % 2 == 0:
                        self.cut += 1
                    else:
                        wire.sendall(answer)
                except OSError:
                    pass
            number += 1

    def close(self) -> None:
        self._listening.close()


def test_what_the_server_refuses_is_a_sentence(registry: Registry) -> None:
    twice = r"/v1/rank: candidates: an item is there twice.*\(HTTP 422\)"
    with (
        serving(registry) as (_, port),
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(ServiceError, match=twice),
    ):
        client.rank(["a", "a"])
    with Client("http://127.0.0.1:9", retries=1) as nobody, pytest.raises(ServiceError, match="'mbcal serve' running there"):
        nobody.rank(["a"])


def test_a_second_server_on_one_log_is_refused(registry: Registry, tmp_path: Path) -> None:
    with serving(registry, "--log", str(tmp_path / "log")):
        command = [sys.executable, "-m", "mbcal", "serve", "--registry", str(registry.path), "--log", str(tmp_path / "log")]
        second = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 2
        assert len(second.stderr.strip().splitlines()) == 1
