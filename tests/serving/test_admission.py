"""Slots for requests in progress: batches and busy clients leave some to the others."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from mbcal.registry.registry import Registry
from mbcal.serving.admission import Admission
from mbcal.serving.batches import handle_members
from mbcal.serving.limits import Limits
from mbcal.serving.metrics import RequestMetrics
from mbcal.serving.refusals import RefusedError
from mbcal.serving.service import Service
from tests.support.servers import run_app
from tests.support.versions import ITEMS


def admitted(admission: Admission, members: int, client: str, most: int = 1000) -> int:
    """How many requests in a row are admitted."""
    for count in range(most):
        try:
            admission.take(members, client)
        except RefusedError as error:
            if error.status != 503:
                raise
            return count
    return most


def test_batches_of_one_client_leave_half_of_the_slots_to_single_requests() -> None:
    admission = Admission(Limits(max_in_progress=64), RequestMetrics())
    assert admitted(admission, 64, "a") == 2  # a batch holds 16 slots, whatever its size
    assert admitted(admission, 1, "a") == 32
    admission.release(16, 64, "a")
    assert admitted(admission, 64, "b") == 1
    admission.release(16, 64, "b")
    assert admitted(admission, 5, "a") == 3


def test_other_clients_find_a_slot_when_one_has_taken_all() -> None:
    metrics = RequestMetrics()
    admission = Admission(Limits(max_in_progress=64), metrics)
    assert admitted(admission, 1, "a") == 64
    assert [admitted(admission, 1, client) for client in "bcdef"] == [4, 4, 4, 4, 0]  # the reserve is bounded, too
    for client, slots in (("a", 64), ("b", 4), ("c", 4), ("d", 4), ("e", 4)):
        for _ in range(slots):
            admission.release(1, 1, client)
    assert metrics.in_progress == 0
    assert admission._held == admission._held_by_batches == {}  # clients that have gone take no memory


def test_one_slot_is_enough_for_any_request() -> None:
    admission = Admission(Limits(max_in_progress=1), RequestMetrics())
    assert admitted(admission, 64, "a") == 1
    admission.release(1, 64, "a")
    assert admitted(admission, 1, "a") == 1


def test_members_of_a_batch_are_handled_a_few_at_a_time_and_in_order() -> None:
    running, most, begun = 0, 0, []

    async def handle(number: int) -> int:
        nonlocal running, most
        begun.append(number)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        if number == 50:
            raise ValueError("fifty")
        return -number

    assert asyncio.run(handle_members(handle, range(40), 4)) == [-number for number in range(40)]
    assert most == 4
    assert begun == list(range(40))
    begun.clear()
    with pytest.raises(ValueError, match="fifty"):
        asyncio.run(handle_members(handle, range(100), 4))
    assert 51 <= len(begun) < 70
    assert running == 0


def test_single_requests_are_served_beside_large_batches(registry: Registry) -> None:
    batch = {"batch": [{"candidates": ITEMS}] * 30}

    async def story(http: httpx.AsyncClient, _: Service) -> None:
        large = [asyncio.create_task(http.post("/v1/rank", json=batch)) for _ in range(5)]
        await asyncio.sleep(0)
        single = await asyncio.gather(*(http.post("/v1/rank", json={"candidates": ITEMS}) for _ in range(5)))
        assert [answer.status_code for answer in single] == [200] * 5
        assert sorted(answer.status_code for answer in await asyncio.gather(*large)) == [200, 200, 503, 503, 503]
        assert len((await http.post("/v1/rank", json=batch)).json()["answers"]) == 30

    run_app(registry, story, limits=Limits(max_in_progress=10))


def test_a_batch_takes_as_much_of_the_rate_as_its_members(registry: Registry) -> None:
    batch = {"batch": [{"candidates": ITEMS}] * 6}
    now = [0.0]

    async def rate(http: httpx.AsyncClient, _: Service) -> None:
        assert (await http.post("/v1/rank", json=batch)).status_code == 200
        assert (await http.post("/v1/rank", json=batch)).status_code == 429
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).status_code == 200
        now[0] += 1.0
        large = {"batch": [{"candidates": ITEMS}] * 30}
        assert (await http.post("/v1/rank", json=large)).status_code == 200
        now[0] += 1.5  # 20 of the 30 are still owed
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).status_code == 429
        now[0] += 1.0
        assert (await http.post("/v1/rank", json={"candidates": ITEMS})).status_code == 200

    run_app(registry, rate, limits=Limits(rate=10.0), clock=lambda: now[0])
