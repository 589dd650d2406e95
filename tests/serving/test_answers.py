"""Answers that are remembered by the id of their request: how many, how long, and who gets the failure of one."""

from __future__ import annotations

import asyncio

import pytest

from mbcal.serving.messages import RankAnswer, RankedItem
from mbcal.serving.repeats import IdConflictError, RepeatedRequests
from mbcal.serving.state import MemoryStore


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
