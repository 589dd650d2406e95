"""Requests with an id of the client, and a log that cannot be written, as a client meets them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from mbcal.decision_log import Decision, compact_log, read_log, writer
from mbcal.decision_log.tail import recent_decisions
from mbcal.decision_log.writer import DecisionLog
from mbcal.registry.registry import Registry
from mbcal.serving import claims
from mbcal.serving.claims import IdBusyError
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import RankAnswer, RankRequest
from mbcal.serving.redis_state import RedisStore
from mbcal.serving.refusals import refusal
from mbcal.serving.repeats import RepeatedRequests, request_hash
from mbcal.serving.run import ServerSettings, make_service
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.serving.state import DecisionRef, StateAwayError
from tests.support.decision_records import decision
from tests.support.servers import run_app
from tests.support.versions import HISTORY, ITEMS

Story = Callable[[httpx.AsyncClient], Awaitable[None]]
REQUEST: dict[str, Any] = {"id": "mine", "history": HISTORY, "candidates": ITEMS, "k": 3}


def serve(settings: ServerSettings, story: Story, service: Service | None = None) -> None:
    """Tell a story to a service that starts as `mbcal serve` does."""

    async def run() -> None:
        started = service or make_service(settings)
        await started.follower.look()
        transport = httpx.ASGITransport(App(started))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await story(http)
        await started.close()

    asyncio.run(run())


def test_an_id_belongs_to_one_request(registry: Registry, tmp_path: Path) -> None:
    async def story(http: httpx.AsyncClient, _: Service) -> None:
        first = await http.post("/v1/rank", json=REQUEST)
        spaced = await http.post(
            "/v1/rank", content=json.dumps(REQUEST, indent=3), headers={"content-type": "application/json"}
        )
        batch = await http.post("/v1/rank", json={"batch": [REQUEST]})
        assert spaced.content == first.content
        assert batch.json()["answers"] == [first.json()]
        changes = (
            {"k": 2},
            {"candidates": ITEMS[1:]},
            {"history": HISTORY[:1]},
            {"user": "u"},
            {"session": "s"},
            {"shown": []},
        )
        for change in changes:
            other = await http.post("/v1/rank", json={**REQUEST, **change})
            assert other.status_code == 409
            assert other.json() == {"error": "id: 'mine' is the id of another request; give every request an id of its own"}
        both = await asyncio.gather(
            *(http.post("/v1/rank", json={**REQUEST, "id": "new", "k": k}) for k in (1, 2))
        )  # at the same time
        assert sorted(answer.status_code for answer in both) == [200, 409]

    run_app(registry, story, tmp_path / "log", epsilon=0.5)
    assert [record.id for record in read_log(tmp_path / "log")] == ["mine", "new"]


@pytest.mark.parametrize("state", ["memory", "redis"])
def test_an_id_that_the_service_made_is_taken(registry: Registry, tmp_path: Path, redis_address: str, state: str) -> None:
    async def story(http: httpx.AsyncClient) -> None:
        made = (await http.post("/v1/rank", json={**REQUEST, "id": None, "session": "s"})).json()["decision"]
        other = await http.post("/v1/rank", json={**REQUEST, "id": made})
        assert other.status_code == 409
        feedback = await http.post("/v1/feedback", json={"decision": made, "behaviour": "click"})
        assert feedback.json()["applied"]  # to the session of the first

    address = redis_address if state == "redis" else state
    serve(ServerSettings(str(registry.path), log=str(tmp_path / "log"), state=address), story)
    assert sum(isinstance(record, Decision) for record in read_log(tmp_path / "log")) == 1


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_a_decision_with_an_id_of_the_service_is_never_replaced(redis_address: str, store: str) -> None:
    async def story() -> None:
        sessions = MemoryStore() if store == "memory" else RedisStore(redis_address)
        name, made = f"made {time.time_ns()}", DecisionRef("s", 1, ["a"], "v")
        assert await sessions.remember_decision(name, made) == made
        assert await sessions.claim_decision(name) == made
        assert await sessions.remember_decision(name, DecisionRef("t", 2, ["b"], "v", "hash", b"")) == made
        await sessions.close()

    asyncio.run(story())


@pytest.mark.parametrize("compacted", [False, True])
def test_a_restart_changes_nothing_for_an_id(registry: Registry, tmp_path: Path, compacted: bool) -> None:
    settings = ServerSettings(str(registry.path), epsilon=0.5, log=str(tmp_path / "log"))
    answers: list[dict[str, Any]] = []

    async def ask(http: httpx.AsyncClient) -> None:
        requests = [{**REQUEST, "id": number, "candidates": ITEMS[number:]} for number in range(4)]
        answers.extend([(await http.post("/v1/rank", json=request)).json() for request in requests])

    serve(settings, ask)
    if compacted:
        with DecisionLog(tmp_path / "log", segment_bytes=1) as log:
            log.append(decision(9)).result(10)
        assert compact_log(tmp_path / "log").segments == 1
    registry.activate("v000002")  # the answer stays that of the version that gave it
    serve(settings, ask)
    assert answers[:4] == answers[4:]
    assert {answer["version"] for answer in answers} == {"v000001"}
    assert len([record for record in read_log(tmp_path / "log") if isinstance(record, Decision)]) == 4 + compacted

    async def conflict(http: httpx.AsyncClient) -> None:
        assert (await http.post("/v1/rank", json={**REQUEST, "id": 0, "k": 1})).status_code == 409

    serve(settings, conflict)

    async def unknown(http: httpx.AsyncClient) -> None:
        assert (await http.post("/v1/rank", json={**REQUEST, "id": 0, "k": 1})).json()["version"] == "v000002"

    serve(ServerSettings(str(registry.path), log=str(tmp_path / "log"), lifetime=0.0), unknown)  # its time is over


def test_what_others_know_comes_before_what_the_log_had(registry: Registry, tmp_path: Path) -> None:
    """A killed process logged an answer that nobody saw, and another one answered since."""
    settings, store, bodies = ServerSettings(str(registry.path), epsilon=0.5), SharedStore(), list[bytes]()

    async def ask(http: httpx.AsyncClient) -> None:
        bodies.append((await http.post("/v1/rank", json={**REQUEST, "k": 8})).content)

    unseen = DecisionLog(tmp_path / "log" / "worker-1")
    serve(settings, ask, Service(registry, MemoryStore(), unseen, 0.5))
    seen = DecisionLog(tmp_path / "log" / "worker-0")
    serve(settings, ask, Service(registry, store, seen, 0.5))
    assert bodies[0] != bodies[1]
    of_one = replace(settings, log=str(tmp_path / "log" / "worker-1"))
    serve(of_one, ask, make_service(of_one, store))  # it has only its own log, in which the unseen answer is
    of_all = replace(settings, log=str(tmp_path / "log"))
    serve(of_all, ask, make_service(of_all))  # nothing but the logs is left: the latest counts, though it is read first
    assert bodies[2:] == [bodies[1]] * 2


def test_a_decision_that_was_recovered_is_remembered_when_it_is_asked_for(registry: Registry, tmp_path: Path) -> None:
    settings = ServerSettings(str(registry.path), log=str(tmp_path / "log"))
    request, answers = {**REQUEST, "session": "s", "context": {}}, list[dict[str, Any]]()

    async def ask(http: httpx.AsyncClient) -> None:
        answers.append((await http.post("/v1/rank", json=request)).json())

    async def respond(http: httpx.AsyncClient) -> None:
        unknown = await http.post("/v1/feedback", json={"decision": "mine", "behaviour": "click"})
        assert unknown.status_code == 422
        await ask(http)
        assert (await http.post("/v1/feedback", json={"decision": "mine", "behaviour": "click"})).status_code == 200

    serve(settings, ask)
    serve(settings, respond)
    assert answers[0] == answers[1]
    assert answers[0]["remembered"]
    found = [record for record in read_log(tmp_path / "log") if not isinstance(record, Decision)]
    assert [(record.decision, record.item) for record in found] == [("mine", answers[0]["items"][0]["item"])]


def test_ids_do_not_depend_on_a_clock_that_can_be_set() -> None:
    assert RepeatedRequests(MemoryStore(), 20_000, 60.0)._clock is time.monotonic
    now = [5.0]
    remembered = RepeatedRequests(MemoryStore(), 20_000, 60.0, lambda: now[0])
    logged = msgspec.structs.replace(decision(1), request="hash", time=time.time_ns() // 1000 - 50_000_000)
    logged = msgspec.structs.replace(logged, scores=[1.0] * len(logged.items), seen=[True] * len(logged.items), parts={})

    async def work() -> RankAnswer:
        return RankAnswer("new", "v1", 0.1, [])

    async def story() -> None:
        assert remembered.recover([logged]) == 1
        now[0] += 5
        assert (await remembered.once(logged.id, "hash", work)).decision == logged.id
        assert remembered.recover([logged]) == 1
        now[0] += 61
        assert (await remembered.once(logged.id, "hash", work)).decision == "new"  # it was logged 116 seconds ago

    asyncio.run(story())


def test_what_is_recovered_is_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with DecisionLog(folder, segment_bytes=1000) as log:
        for number in range(60):
            log.append(decision(number)).result(10)
    size = sum(path.stat().st_size for path in folder.glob("*.log"))
    all_ids = [f"d{number}" for number in range(60)]
    assert [found.id for found in recent_decisions(folder, 0, 2 * size)] == all_ids
    some = [found.id for found in recent_decisions(folder, 0, size // 3)]
    assert some == all_ids[-len(some) :]
    assert 10 < len(some) < 25
    assert [found.id for found in recent_decisions(folder, 50_000_000, size)] == all_ids[50:]
    assert list(recent_decisions(folder, (int(time.time()) + 9) * 1_000_000, size)) == []
    assert list(recent_decisions(tmp_path / "nothing", 0, size)) == []


def test_the_latest_answers_of_all_workers_are_recovered(tmp_path: Path) -> None:
    """One log after the other would leave no room for the answers of the first worker."""
    for worker in (0, 1):
        with DecisionLog(tmp_path / "log" / f"worker-{worker}") as log:
            for number in range(worker, 200, 2):
                answered = {"request": "hash", "scores": [1.0, 0.5], "seen": [True, True], "parts": {}}
                log.append(decision(number, **answered)).result(10)
    found = [found.id for found in recent_decisions(tmp_path / "log", 0, 1 << 20)]
    assert found == [f"d{number}" for number in range(200)]
    remembered = RepeatedRequests(MemoryStore(), 60_000, 1e12)
    assert remembered.recover(recent_decisions(tmp_path / "log", 0, 1 << 20)) == 200
    kept = [number for number in range(200) if remembered._known.get(("unshared", f"d{number}"))]
    assert 20 < len(kept) < 150
    assert kept == list(range(200 - len(kept), 200))


class SharedStore(MemoryStore):
    is_shared = True


def test_workers_that_share_a_store_share_answers(registry: Registry) -> None:
    store, bodies = SharedStore(), []

    async def ask(http: httpx.AsyncClient) -> None:
        bodies.append((await http.post("/v1/rank", json=REQUEST)).content)
        assert (await http.post("/v1/rank", json={**REQUEST, "k": 2})).status_code == 409

    for _ in range(2):
        serve(ServerSettings(""), ask, Service(registry, store, None, 0.5))
    assert bodies[0] == bodies[1]


def test_the_hash_does_not_depend_on_who_reads_the_candidates(registry: Registry) -> None:
    service = make_service(ServerSettings(str(registry.path)))
    asyncio.run(service.follower.look())
    reader = service.live.reader
    names = [*ITEMS[:5], "x" * 31, "y" * 32, "z" * 256, "12"]
    request = RankRequest(candidates=names)
    by_json = reader.read(msgspec.Raw(json.dumps([*names[:-1], 12], indent=1).encode()), 1, 100)
    from_json = request_hash(request, by_json)
    assert from_json == request_hash(request, reader.read(names, 1, 100))
    assert from_json != request_hash(request, reader.read(names[::-1], 1, 100))


def test_a_log_that_cannot_be_written_is_a_503(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.02)
    folder = tmp_path / "log"

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def outage(http: httpx.AsyncClient, reason: str) -> None:
        feedback = {"decision": "old", "behaviour": "click", "item": ITEMS[0]}
        for answer in (
            await http.post("/v1/rank", json={"candidates": ITEMS}),
            await http.post("/v1/feedback", json=feedback),
            await http.get("/readyz"),
        ):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            problem = f"the decision log cannot be written ({reason}); try again in a second"
            assert answer.json()["error"].replace("No such file or directory", reason) == problem
            assert str(tmp_path) not in answer.text
        assert "mbcal_log_writable 0" in (await http.get("/metrics")).text

    async def recovery(http: httpx.AsyncClient, service: Service, outages: int) -> None:
        assert service.log is not None
        while service.log.outage is not None:
            await asyncio.sleep(0.01)
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).status_code == 200
        assert (await http.get("/readyz")).status_code == 200
        text = (await http.get("/metrics")).text
        assert "mbcal_log_writable 1" in text
        assert f"mbcal_log_outages_total {outages}" in text

    async def story(http: httpx.AsyncClient, service: Service) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            await outage(http, "the disk is full")
        await recovery(http, service, 1)
        folder.rename(tmp_path / "away")
        await outage(http, "the current segment has vanished")
        (tmp_path / "away").rename(folder)
        await recovery(http, service, 2)

    run_app(registry, story, folder)
    assert len(list(read_log(folder))) == 2


def test_workers_share_answers_while_redis_has_lost_them(registry: Registry) -> None:
    supervisor, bodies = SharedStore(), []

    async def ask(http: httpx.AsyncClient) -> None:
        bodies.append((await http.post("/v1/rank", json=REQUEST)).content)

    for _ in range(2):
        worker = Service(registry, SharedStore(), None, 0.5)  # a store of its own: nothing is in it
        worker.repeated.supervisor = supervisor
        serve(ServerSettings(""), ask, worker)
    assert bodies[0] == bodies[1]


def test_a_connection_to_redis_that_was_just_closed_fails_no_request(
    registry: Registry, tmp_path: Path, redis_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision is logged by then: a failure would have the next one who asks get another answer."""
    store = RedisStore(redis_address)
    service = Service(registry, store, DecisionLog(tmp_path), 0.5)
    service.repeated.supervisor = SharedStore()
    request = {**REQUEST, "id": "closed"}

    async def closed(*_: object, **__: object) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    async def story(http: httpx.AsyncClient) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(store._redis, "set", closed)
            first = await http.post("/v1/rank", json=request)
            assert (first.status_code, first.json()["remembered"]) == (200, False)
            assert (await http.post("/v1/rank", json=request)).json() == first.json()
        while not store.available:
            await asyncio.sleep(0.01)
        assert (await http.post("/v1/rank", json=request)).json()["items"] == first.json()["items"]

    serve(ServerSettings(""), story, service)
    assert [record.id for record in read_log(tmp_path)] == ["closed"]


def test_of_workers_that_are_asked_at_the_same_moment_one_answers(registry: Registry, tmp_path: Path) -> None:
    """They share sessions (one store), or only a supervisor beside a Redis that has lost everything."""

    async def story(workers: list[Service]) -> None:
        clients = []
        for worker in workers:
            await worker.follower.look()
            clients.append(httpx.AsyncClient(transport=httpx.ASGITransport(App(worker)), base_url="http://localhost"))
        for number in range(10):
            request = {**REQUEST, "id": f"same {number}"}
            answers = await asyncio.gather(*(http.post("/v1/rank", json=request) for http in clients * 2))
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.content for answer in answers}) == 1
            others = [
                http.post("/v1/rank", json={**request, "id": f"other {number}", "k": 2 + n})
                for n, http in enumerate(clients)
            ]
            assert sorted(answer.status_code for answer in await asyncio.gather(*others)) == [200, 409]
        assert sum(worker.counts["v000001"].decisions for worker in workers) == 20
        for worker, http in zip(workers, clients, strict=True):
            await http.aclose()
            await worker.close()

    for kind in ("store", "supervisor"):
        shared = SharedStore()
        workers = []
        for number in range(2):
            log = DecisionLog(tmp_path / f"{kind} {number}")
            workers.append(Service(registry, shared if kind == "store" else SharedStore(), log, 0.5))
            workers[-1].repeated.supervisor = shared if kind == "supervisor" else None
        asyncio.run(story(workers))
        logs = [record.id for number in range(2) for record in read_log(tmp_path / f"{kind} {number}")]
        assert len(logs) == len(set(logs)) == 20


def test_a_claim_ends_with_a_failure_and_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "WAIT_SECONDS", 0.1)
    store = SharedStore()
    one, two = RepeatedRequests(store, 20_000, 60.0), RepeatedRequests(store, 20_000, 60.0)
    answer, slow = RankAnswer("a", "v1", 0.1, []), asyncio.Event()

    async def fail() -> RankAnswer:
        raise ValueError("fails")

    async def wait() -> RankAnswer:
        await slow.wait()
        return answer

    async def make() -> RankAnswer:
        return answer

    async def story() -> None:
        with pytest.raises(ValueError, match="fails"):
            await one.once("a", "hash", fail)
        assert (await two.once("a", "hash", make)).decision == "a"
        waiting = asyncio.create_task(one.once("b", "hash", wait))
        await asyncio.sleep(0.01)
        with pytest.raises(IdBusyError, match="try again in a second"):
            await two.once("b", "hash", make)
        slow.set()
        await waiting

    asyncio.run(story())
    assert refusal(IdBusyError("id: x")).status == 503


def test_an_answer_that_the_supervisor_does_not_confirm_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may have answered: asked again, all give the answer that the supervisor knows."""
    supervisor = SharedStore()
    repeated = RepeatedRequests(SharedStore(), 20_000, 60.0)
    repeated.supervisor = supervisor
    remember = supervisor.remember_decision

    async def too_late(name: str, reference: DecisionRef) -> DecisionRef:
        await remember(name, replace_answer(reference))
        raise StateAwayError("state: the supervisor of this server does not answer; try again in a second")

    def replace_answer(reference: DecisionRef) -> DecisionRef:
        return msgspec.structs.replace(reference, answer=msgspec.msgpack.encode(RankAnswer("a", "v2", 0.1, [])))

    async def make() -> RankAnswer:
        return RankAnswer("a", "v1", 0.1, [])

    async def story() -> None:
        monkeypatch.setattr(supervisor, "remember_decision", too_late)
        with pytest.raises(StateAwayError, match="does not answer"):
            await repeated.once("a", "hash", make)
        monkeypatch.setattr(supervisor, "remember_decision", remember)
        assert (await repeated.once("a", "hash", make)).version == "v2"

    asyncio.run(story())
