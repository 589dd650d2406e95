"""Turns: a client whose requests are much work delays itself, not the others."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from mbcal.registry.registry import Registry
from mbcal.serving.batches import members_of
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.serving.turns import LITTLE_WORK, PASSES, WORK_AT_A_TIME, Turns, work_of
from tests.support.versions import ITEMS


def order_of(requests: list[tuple[str, float]]) -> list[str]:
    """The order in which requests that wait at the same time get their turns."""
    turns, order = Turns(), list[str]()

    async def ask(client: str, work: float) -> None:
        await turns.take(client, work)
        order.append(client)

    async def story() -> None:
        await asyncio.gather(*(ask(*request) for request in requests))
        assert (turns._waiting, turns._clocks) == ([], {})  # clients that have gone take no memory

    asyncio.run(story())
    return order


def test_clients_take_turns_by_their_work() -> None:
    assert "".join(order_of([("a", 1.0)] * 4 + [("b", 1.0)] * 4)) == "abababab"
    assert "".join(order_of([("a", 100.0)] * 3 + [("b", 1.0)] * 3)) == "bbbaaa"
    assert "".join(order_of([("a", 2.0)] * 4 + [("b", 1.0)] * 4)) == "babbabaa"


def test_a_client_that_comes_later_is_next() -> None:
    turns, order = Turns(), list[str]()

    async def ask(client: str, work: float) -> None:
        await turns.take(client, work)
        order.append(client)
        if client == "a" and order.count("a") == 2:
            asyncio.create_task(ask("b", 1.0))  # noqa: RUF006

    async def story() -> None:
        await asyncio.gather(*(ask("a", 200.0) for _ in range(6)))

    asyncio.run(story())
    assert "".join(order) == "aabaaaa"


def test_the_event_loop_goes_on_between_requests_that_are_much_work() -> None:
    turns, passes, seen = Turns(), [0], list[int]()

    async def count_passes() -> None:
        while True:
            passes[0] += 1
            await asyncio.sleep(0)

    async def ask() -> None:
        await turns.take("a", WORK_AT_A_TIME)
        seen.append(passes[0])

    async def story() -> None:
        counting = asyncio.create_task(count_passes())
        await asyncio.gather(*(ask() for _ in range(4)))
        counting.cancel()

    asyncio.run(story())
    assert all(later - earlier > PASSES for earlier, later in itertools.pairwise(seen))


def test_a_request_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
    async def story() -> None:
        turns = Turns()
        waiting = [asyncio.create_task(turns.take("a", 1.0)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), asyncio.CancelledError, type(None)]
        assert turns._clocks == {}

    asyncio.run(story())


def test_items_with_features_and_steps_are_work() -> None:
    names = b'{"candidates": [%s]}' % b", ".join(b'"item %d"' % number for number in range(1000))
    items = b'{"candidates": [%s]}' % b", ".join(b'{"item": %d, "features": {"words": 1}}' % n for n in range(1000))
    assert work_of(b'{"candidates": ["a"]}') == pytest.approx(1.2, abs=0.1)
    assert work_of(names) == pytest.approx(13, abs=1)  # measured: 1.3 ms more than a small request, which has 0.15 ms
    assert work_of(items) > 200
    assert work_of(b" " * 65536) == 9


@pytest.mark.parametrize("is_batch", [False, True])
def test_requests_of_others_overtake_those_that_are_much_work(registry: Registry, is_batch: bool) -> None:
    large: dict[str, Any] = {"candidates": ITEMS, "history": [["item 1", "click"]] * 900}
    flood = {"batch": [large] * 16} if is_batch else large
    finished: list[str] = []

    async def story() -> None:
        service = Service(registry, MemoryStore(), None, 0.0)
        await service.follower.look()
        app = App(service)

        async def post(client: str, body: dict[str, Any]) -> None:
            transport = httpx.ASGITransport(app, client=(client, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                assert (await http.post("/v1/rank", json=body)).status_code == 200
            finished.append(client)

        flooding = [asyncio.create_task(post("10.0.0.1", flood)) for _ in range(2 if is_batch else 30)]
        while app.metrics.in_progress < (32 if is_batch else 30):
            await asyncio.sleep(0)
        await post("10.0.0.2", {"candidates": ITEMS})
        await asyncio.gather(*flooding)
        await service.close()

    asyncio.run(story())
    assert finished.index("10.0.0.2") <= 2  # of 31; it came last


def test_to_count_the_members_of_a_batch_is_work_of_its_client(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    take = Turns.take

    async def noted(self: Turns, client: str, work: float) -> None:
        events.append((client, work))
        await take(self, client, work)

    monkeypatch.setattr(Turns, "take", noted)
    monkeypatch.setattr("mbcal.serving.server.members_of", lambda body: events.append("counted") or members_of(body))
    body = json.dumps({"batch": [1] * 1000}).encode()

    async def story() -> None:
        service = Service(registry, MemoryStore(), None, 0.0)
        await service.follower.look()
        transport = httpx.ASGITransport(App(service), client=("10.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = await http.post("/v1/rank", content=body, headers={"content-type": "application/json"})
        assert answer.status_code >= 400
        await service.close()

    asyncio.run(story())
    assert events[:2] == [("10.0.0.1", work_of(body)), "counted"]


def test_every_answer_waits_for_its_turn_but_probes_and_refusals_not_for_others_of_their_client(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, float]] = []
    take = Turns.take

    async def noted(self: Turns, client: str, work: float) -> None:
        taken.append((client, round(work, 1)))
        await take(self, client, work)

    monkeypatch.setattr(Turns, "take", noted)
    own, probe, refused = ("10.0.0.1", 1.0), ("10.0.0.1 probes", LITTLE_WORK), ("10.0.0.1 refused", LITTLE_WORK)

    async def story() -> None:
        service = Service(registry, MemoryStore(), None, 0.0)
        await service.follower.look()
        transport = httpx.ASGITransport(App(service), client=("10.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for path, status, turn in (
                ("/metrics", 200, own),
                ("/v1/stats", 200, own),
                ("/healthz", 200, probe),
                ("/readyz", 200, probe),
                ("/nothing", 404, refused),
                ("/v1/rank", 405, refused),
            ):
                taken.clear()
                assert (await http.get(path)).status_code == status
                assert taken == [turn], path
            taken.clear()
            assert (await http.get("/healthz", headers={"host": "elsewhere"})).status_code == 421
            assert taken == [refused]
        await service.close()

    asyncio.run(story())
