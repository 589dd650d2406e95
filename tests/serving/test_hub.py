"""Claims of workers on ids, through the supervisor: of all workers one answers, whatever is slow, gone or damaged."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from mbcal.serving import hub as hub_module
from mbcal.serving import supervisor as supervisor_module
from mbcal.serving.events import flush_events
from mbcal.serving.hub import Hub, HubStore
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import RankAnswer, RankedItem
from mbcal.serving.refusals import refusal, refusal_headers
from mbcal.serving.repeats import IdConflictError, RepeatedRequests, logged_reference
from mbcal.serving.run import ServerSettings
from mbcal.serving.state import DecisionRef, Session, StateAwayError
from mbcal.serving.supervisor import Supervisor
from tests.support.decision_records import decision

ANSWER = RankAnswer("a", "v1", 0.1, [])


def answered(request: str = "hash", answer: RankAnswer = ANSWER) -> DecisionRef:
    return DecisionRef(None, 1, [], "v1", request, msgspec.msgpack.encode(answer))


@asynccontextmanager
async def workers_of(hub: Hub, count: int = 2) -> AsyncIterator[tuple[list[HubStore], list[asyncio.Task[None]]]]:
    """Workers numbered from 0, and the supervisor's task for each."""
    pairs = [socket.socketpair() for _ in range(count)]
    tasks = [asyncio.create_task(hub.serve(str(number), ours)) for number, (ours, _) in enumerate(pairs)]
    stores = [HubStore(its, lambda: None) for _, its in pairs]
    try:
        yield stores, tasks
    finally:
        for store in stores:
            await store.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def make() -> RankAnswer:
    return ANSWER


@pytest.mark.parametrize("has_redis", [False, True])
def test_no_id_is_answered_while_the_supervisor_is_away(monkeypatch: pytest.MonkeyPatch, has_redis: bool) -> None:
    """It does not answer, then it is gone: only it knows what the other workers answered."""
    monkeypatch.setattr(hub_module, "CALL_SECONDS", 0.05)

    async def story() -> None:
        hub = Hub(MemoryStore())
        async with workers_of(hub, 1) as ((worker,), tasks):
            repeated = RepeatedRequests(MemoryStore() if has_redis else worker, 20_000, 60.0)
            repeated.supervisor = worker if has_redis else None
            assert await repeated.once("answered before", "hash", make) == ANSWER
            with monkeypatch.context() as slow:
                slow.setitem(hub._handlers, "claim_decision", lambda *_: asyncio.sleep(0.2))
                with pytest.raises(StateAwayError, match="does not answer; try again in a second") as raised:
                    await repeated.once("other", "hash", make)
            assert refusal(raised.value).status == 503
            assert (b"retry-after", b"1") in refusal_headers(raised.value, 503)
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.05)
            with pytest.raises(StateAwayError, match="is gone"):
                await repeated.once("other", "hash", make)
            assert await repeated.once("answered before", "hash", make) == ANSWER  # it needs nobody

    asyncio.run(story())


def test_a_claim_that_came_too_late_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor reads the call of a worker that waits no longer."""

    async def story() -> None:
        hub = Hub(MemoryStore())
        async with workers_of(hub) as ((late, other), _):
            await other.recall_decision("connects")
            await late.recall_decision("connects")
            monkeypatch.setattr(hub_module, "CALL_SECONDS", 0.0)
            with pytest.raises(StateAwayError):
                await late.claim_decision("a")
            cancelled = asyncio.create_task(late.claim_decision("b"))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            monkeypatch.setattr(hub_module, "CALL_SECONDS", 2.0)
            await late.recall_decision("all read")
            assert [await other.claim_decision(name) for name in ("a", "b")] == [True, True]
            monkeypatch.setattr(hub_module, "CALL_SECONDS", 0.0)
            with pytest.raises(StateAwayError):
                await late.claim_decision("a")  # the other one has it, and keeps it
            monkeypatch.setattr(hub_module, "CALL_SECONDS", 2.0)
            assert await late.claim_decision("a") is False

    asyncio.run(story())


def test_what_waits_for_a_supervisor_that_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may be stopped or swapped out; then requests without an id go on."""
    monkeypatch.setattr(hub_module, "CALL_SECONDS", 0.01)
    large = DecisionRef(None, 1, ["x" * 100_000], "v1")

    async def story() -> None:
        ours, its = socket.socketpair()
        store, hub = HubStore(its, lambda: None), Hub(MemoryStore())
        for _ in range(200):
            with pytest.raises(StateAwayError):
                await store.remember_decision("no id", large)
            with pytest.raises(StateAwayError):
                await store.claim_decision("a")
        waiting = store._writer.transport.get_write_buffer_size()  # type: ignore[union-attr]
        assert waiting < hub_module.MAX_UNREAD + 200_000
        with pytest.raises(StateAwayError):
            await store.remember_decision("b", answered())  # it ends a claim, so it is sent all the same
        serving = asyncio.create_task(hub.serve("0", ours))
        monkeypatch.setattr(hub_module, "CALL_SECONDS", 5.0)
        while store._writer.transport.get_write_buffer_size():  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        assert await store.recall_decision("b") == answered()
        assert await store.claim_decision("a") is True
        await store.close()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(story())


def test_a_claim_lasts_as_long_as_its_worker_lives() -> None:
    now = [0.0]

    async def story() -> None:
        hub = Hub(MemoryStore(lifetime=1e9, clock=lambda: now[0]))
        async with workers_of(hub) as ((slow, other), tasks):
            assert [await slow.claim_decision(name) for name in ("a", "b")] == [True, True]
            now[0] = 3600.0  # its disk stalls
            assert await other.claim_decision("a") is False
            await other.release_decision("a")  # it is not its own
            assert await other.claim_decision("a") is False
            assert await slow.remember_decision("a", answered()) == answered()
            assert await other.claim_decision("a") == answered()
            assert hub.claims.left_by("0") == {}
            await slow.close()
            await tasks[0]
            assert list(hub.claims.left_by("0")) == ["b"]
            assert await other.claim_decision("b") is False
            await hub.claims.settle("1", "b", None)  # another worker's end does not matter
            assert await other.claim_decision("b") is False
            await hub.claims.settle("0", "b", None)
            assert await other.claim_decision("b") is True
            await hub.claims.settle("0", "b", answered())  # it came too late: the id is another worker's
            assert await hub.claims.claim("0", "b") is False
            assert await other.remember_decision("b", answered("other")) == answered("other")

    asyncio.run(story())


def test_a_worker_that_was_started_again_cannot_end_the_claims_of_the_one_before() -> None:
    async def story() -> None:
        claims = Hub(MemoryStore()).claims
        assert await claims.claim("0", "a") is True
        claims.end("0")
        await claims.release("0", "a")
        assert await claims.claim("0", "a") is False
        await claims.settle("0", "a", answered())
        assert await claims.claim("0", "a") == answered()

    asyncio.run(story())


def test_of_two_workers_one_begins_a_session() -> None:
    async def story() -> None:
        async with workers_of(Hub(MemoryStore())) as ((first, second), _):
            begins = [Session("ann", ()) for _ in range(2)]
            assert await first.begin("s", begins[0]) is begins[0]
            begun = await second.begin("s", begins[1])
            assert begun == begins[1]
            assert begun is not begins[1]

    asyncio.run(story())


@pytest.mark.parametrize("has_redis", [False, True])
def test_the_first_of_two_answers_is_what_both_give(has_redis: bool) -> None:
    """Two processes answer one id, as when one has lost its claim: the later one gives the answer of the first."""

    async def story() -> None:
        async with workers_of(Hub(MemoryStore())) as ((one, two), _):
            first = RankAnswer("a", "v1", 0.1, [RankedItem("item", 1.0, {}, 0.5, True)])
            repeated = RepeatedRequests(MemoryStore() if has_redis else two, 20_000, 60.0)
            repeated.supervisor = two if has_redis else None

            async def slow(name: str, request: str) -> RankAnswer:
                await one.remember_decision(name, answered("hash", first))
                own = RankAnswer("a", "v1", 0.1, [])
                return await repeated.remember(name, repeated.reference(request, None, 1, own), own)

            for _ in range(2):
                assert await repeated.once("a", "hash", lambda: slow("a", "hash")) == first
            with pytest.raises(IdConflictError):
                await repeated.once("b", "other hash", lambda: slow("b", "other hash"))

    asyncio.run(story())


def test_ids_of_a_worker_whose_log_cannot_be_read_are_free_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def damaged(*_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(supervisor_module, "recent_decisions", damaged)
    monkeypatch.setattr(supervisor_module, "CLAIM_SECONDS", 0.1)

    async def story() -> None:
        with socket.socket() as listener:
            supervisor = Supervisor(ServerSettings("registry", log=str(tmp_path)), 1, listener)
            claims = supervisor._hub.claims
            await claims.claim("0", "a")
            claims.end("0")
            settling = asyncio.create_task(supervisor._settle(0))
            await asyncio.sleep(0.05)
            assert await claims.claim("1", "a") is False
            await settling
            assert await claims.claim("1", "a") is True

    asyncio.run(story())
    flush_events()
    assert '"log unreadable"' in (printed := capfd.readouterr().err)
    assert "IndexError: list index out of range" in printed


def test_a_worker_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Process:
        returncode: int | None = None

        async def communicate(self, _: bytes) -> None:
            started.set()
            await supervisors[0]._stopping.wait()
            self.returncode = 0

        def terminate(self) -> None:
            pass

    async def execute(*_: object, **__: object) -> Process:
        failures.append(len(os.listdir("/proc/self/fd")))
        if len(failures) <= 3:
            raise OSError(errno.EMFILE, "Too many open files") if len(failures) < 3 else RuntimeError("any other")
        return Process()

    failures: list[int] = []
    supervisors: list[Supervisor] = []
    started = asyncio.Event()
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", execute)

    async def story() -> None:
        with socket.socket() as listener:
            supervisors.append(Supervisor(ServerSettings("registry"), 1, listener))
            running = asyncio.create_task(supervisors[0]._keep_running(0))
            await asyncio.wait_for(started.wait(), 10)
            supervisors[0]._stopping.set()
            await running

    asyncio.run(story())
    assert len(set(failures)) == 1  # every attempt closed its sockets
    assert supervisors[0]._hub.restarts == 3
    flush_events()
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(event["event"], event["worker"], event["error"], event["restart_in"]) for event in events] == [
        ("worker ended", 0, "OSError: [Errno 24] Too many open files", 0.02),
        ("worker ended", 0, "OSError: [Errno 24] Too many open files", 0.04),
        ("worker ended", 0, "RuntimeError: any other", 0.08),
    ]


@pytest.mark.parametrize("field", ["seen", "scores", "parts"])
def test_a_logged_decision_with_too_few_values_has_no_answer(field: str) -> None:
    values = {"request": "hash", "scores": [2.0, 1.0], "seen": [True, False], "parts": {"instant": [2.0, 1.0]}}
    assert logged_reference(decision(0, **values)) is not None
    short = {"seen": [True], "scores": [2.0], "parts": {"instant": [2.0]}}
    assert logged_reference(decision(0, **{**values, field: short[field]})) is None
