"""Claims of workers on ids, through the supervisor: of all workers one answers, whatever is slow, gone or damaged."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from mbcal.serving import hub as hub_module
from mbcal.serving.hub import Hub, HubStore
from mbcal.serving.messages import RankAnswer
from mbcal.serving.refusals import refusal, refusal_headers
from mbcal.serving.repeats import RepeatedRequests
from mbcal.serving.state import DecisionRef, MemoryStore, StateAwayError

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
