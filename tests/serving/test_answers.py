"""Answers that are remembered by the id of their request: how many, how long, and who gets the failure of one."""

from __future__ import annotations

import asyncio

import pytest

from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import RankAnswer, RankedItem
from mbcal.serving.repeats import IdConflictError, RepeatedRequests
from mbcal.serving.state import DecisionRef, StateAwayError


def test_answers_are_bounded_in_bytes_and_in_time() -> None:
    now = [0.0]
    remembered = RepeatedRequests(MemoryStore(), 20_000, 60.0, lambda: now[0])
    made: list[str] = []

    async def ask(name: str, request: str = "hash") -> RankAnswer:
        async def work() -> RankAnswer:
            made.append(name)
            return RankAnswer(name, "v1", 0.1, [RankedItem("i" * 100, 1.0, {"instant": 1.0}, 0.9, True)] * 5)

        return await remembered.once(name, request, work)

    async def story() -> None:
        for number in range(100):
            assert (await ask(str(number))).decision == str(number)
            assert remembered.used_bytes <= 20_000
        await ask("99")
        assert made[-1] == "99"
        assert len(made) == 100
        await ask("0")  # was dropped
        assert len(made) == 101
        with pytest.raises(IdConflictError):
            await ask("99", "other")
        now[0] = 61.0
        await ask("99", "other")  # its time is over
        assert len(made) == 102

    asyncio.run(story())


def test_only_the_same_request_shares_a_failure() -> None:
    remembered, made = RepeatedRequests(MemoryStore(), 20_000, 60.0), list[str]()

    def ask(request: str) -> asyncio.Task[RankAnswer]:
        async def work() -> RankAnswer:
            made.append(request)
            await asyncio.sleep(0.01)
            if request == "bad":
                raise ValueError(request)
            return RankAnswer("a", "v1", 0.1, [])

        return asyncio.create_task(remembered.once("a", request, work))

    async def story() -> None:
        requests = ("bad", "good", "bad", "good", "other")
        answers = await asyncio.gather(*map(ask, requests), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ValueError, RankAnswer, ValueError, RankAnswer, IdConflictError]
        assert made == ["bad", "good"]

    asyncio.run(story())


class SharedStore(MemoryStore):
    is_shared = True


class AwayStore(SharedStore):
    """A store that can be away."""

    available = True

    async def claim_decision(self, decision: str) -> DecisionRef | bool:
        self._require_available()
        return await super().claim_decision(decision)

    async def remember_decision(self, decision: str, reference: DecisionRef) -> DecisionRef:
        self._require_available()
        return await super().remember_decision(decision, reference)

    def _require_available(self) -> None:
        if not self.available:
            raise StateAwayError("away")


@pytest.mark.parametrize("has_supervisor", [False, True])
def test_what_was_answered_while_the_store_was_away_is_shared_afterwards(has_supervisor: bool) -> None:
    now = [0.0]
    store, supervisor = (kind(60.0, clock=lambda: now[0]) for kind in (AwayStore, SharedStore))
    one, two = (RepeatedRequests(store, 20_000, 60.0, lambda: now[0]) for _ in range(2))
    one.supervisor = supervisor if has_supervisor else None

    async def ask(server: RepeatedRequests, name: str, score: float) -> tuple[float, bool]:
        async def work() -> RankAnswer:
            answer = RankAnswer(name, "v1", 0.1, [RankedItem("item", score, {}, 0.5, True)])
            return await server.remember(name, server.reference("hash", "session", 7, answer), answer)

        answer = await server.once(name, "hash", work)
        return answer.items[0].score, answer.remembered

    async def story() -> None:
        store.available = False
        for name in ("a", "b", "late"):
            assert await ask(one, name, 1.0) == await ask(one, name, 2.0) == (1.0, False)
        store.available = True
        assert await ask(one, "a", 2.0) == (1.0, False)  # as it was answered first
        shared = await store.recall_decision("a")
        assert shared is not None
        assert (shared.session, shared.time, shared.items) == ("session", 7, ["item"])
        assert await ask(two, "a", 3.0) == (1.0, False)
        assert await ask(two, "b", 3.0) == (3.0, True)  # it cannot know
        assert await ask(one, "b", 4.0) == ((1.0, False) if has_supervisor else (3.0, True))
        now[0] = 61.0  # the time of the ids is over
        assert await ask(one, "late", 5.0) == (5.0, True)

    asyncio.run(story())


def test_servers_agree_again_after_their_store_was_emptied() -> None:
    now = [0.0]
    store = SharedStore(lifetime=60.0, clock=lambda: now[0])
    servers = [RepeatedRequests(store, 20_000, 3600.0) for _ in range(2)]

    async def ask(server: int, name: str) -> str:
        async def work() -> RankAnswer:
            answer = RankAnswer(name, f"v{server}", 0.1, [RankedItem("i", 1.0, {"instant": 1.0}, 0.9, True)])
            return await servers[server].remember(name, servers[server].reference("hash", None, 1, answer), answer)

        return (await servers[server].once(name, "hash", work)).version

    async def story() -> None:
        assert [await ask(0, "a"), await ask(0, "b")] == ["v0", "v0"]
        now[0] = 61.0  # the store forgets all of it
        assert [await ask(0, "a"), await ask(1, "a")] == ["v0", "v0"]  # the first server shares it again
        assert [await ask(1, "b"), await ask(0, "b"), await ask(1, "b")] == ["v1", "v1", "v1"]
        shared = await store.recall_decision("a")
        assert shared is not None
        assert (shared.items, shared.version) == (["i"], "v0")

    asyncio.run(story())
