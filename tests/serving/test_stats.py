"""What statistics cost: those of all workers need the supervisor, whom every request needs."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import httpx
import msgspec
import pytest

from mbcal.registry.registry import Registry
from mbcal.serving import server
from mbcal.serving.bounded import BoundedDict
from mbcal.serving.hub import Hub
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.pool import Pool, Snapshot
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.serving.state import StateAwayError
from mbcal.serving.stats import Shared


class FakeWorkers:
    """The supervisor of a worker, who takes a while to answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def exchange(self, snapshot: Snapshot) -> Pool:
        self.asked += 1
        await asyncio.sleep(0.05)
        return Pool([snapshot], {}, {}, 0)


def test_many_who_ask_for_statistics_ask_the_supervisor_once(registry: Registry) -> None:
    async def story() -> None:
        service = Service(registry, MemoryStore(), None, 0.0)
        service.workers = workers = FakeWorkers()  # type: ignore[assignment]
        transport = httpx.ASGITransport(App(service), client=("10.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answers = await asyncio.gather(*(http.get("/v1/stats") for _ in range(40)))
            answers.append(await http.get("/v1/stats"))
        assert {answer.status_code for answer in answers} == {200}
        assert answers[0].json()["workers"] == 1
        assert workers.asked == 1  # type: ignore[attr-defined]

    asyncio.run(story())


def test_a_worker_goes_on_reporting_after_any_failure(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REPORT_SECONDS", 0.001)
    outcomes: list[Exception | None] = [StateAwayError("away"), RuntimeError("can't start new thread"), MemoryError(), None]
    events: list[str] = []

    class Failing(FakeWorkers):
        async def report(self, _: str) -> None:
            if outcomes and (outcome := outcomes.pop(0)) is not None:
                raise outcome

    async def story() -> None:
        service = Service(registry, MemoryStore(), None, 0.0, on_event=lambda event, **_: events.append(event))
        service.workers = workers = Failing()  # type: ignore[assignment]
        reporting = asyncio.create_task(App(service)._report_metrics())
        async with asyncio.timeout(5):
            while not workers.asked:  # type: ignore[attr-defined]
                await asyncio.sleep(0.001)
        reporting.cancel()

    asyncio.run(story())
    assert events == ["failed", "failed"]


def test_a_shared_result_is_made_again_when_it_is_old_or_failed() -> None:
    results: list[Any] = [StateAwayError("away"), 1, 2]

    async def compute() -> int:
        await asyncio.sleep(0)
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return int(result)

    async def story() -> None:
        shared = Shared(compute, 0.1)
        both = await asyncio.gather(shared(), shared(), return_exceptions=True)
        assert [type(one) for one in both] == [StateAwayError, StateAwayError]
        assert [await shared(), await shared()] == [1, 1]
        await asyncio.sleep(0.12)
        assert await shared() == 2

    asyncio.run(story())


@pytest.mark.parametrize("name", ["short", "\N{GRINNING FACE}" * 250])
def test_feedback_that_was_counted_is_remembered_in_few_bytes(name: str) -> None:
    async def story() -> int:
        hub = Hub(MemoryStore())
        tracemalloc.start()
        for number in range(2000):
            item = msgspec.Raw(msgspec.msgpack.encode(f"{name} {number}"))
            assert await hub._first_feedback("w", f"{name} {number}", item)
            assert not await hub._first_feedback("w", f"{name} {number}", item)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return used

    assert asyncio.run(story()) < 2000 * 300


def test_the_names_of_a_key_count() -> None:
    answers: BoundedDict[tuple[str, str], int] = BoundedDict(100_000)
    for number in range(1000):
        answers.put((f"{number}" + "\N{GRINNING FACE}" * 250, "\N{GRINNING FACE}" * 250), number, 0)
    assert len(answers) == 39  # 2.5 kB each
