"""Who a client is, and that a client which stores much drops nothing that others have stored."""

from __future__ import annotations

import asyncio
import contextvars
import socket

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbcal.registry.registry import Registry
from mbcal.serving.bounded import FairDict
from mbcal.serving.clients import client_of, current_client
from mbcal.serving.hub import Hub, HubStore
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import RankAnswer, RankedItem
from mbcal.serving.repeats import RepeatedRequests
from mbcal.serving.service import Service
from mbcal.serving.state import DecisionRef
from tests.support.servers import run_app
from tests.support.versions import ITEMS


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("?", "?"),
        ("", ""),
    ],
)
def test_an_ipv6_client_is_a_network(address: str, client: str) -> None:
    assert client_of(address) == client


def as_client(client: str, values: FairDict[int, str], key: int, size: int = 0) -> None:
    def put() -> None:
        current_client.set(client)
        values.put(key, client, size)

    contextvars.copy_context().run(put)


def test_the_client_that_holds_most_loses_its_oldest() -> None:
    values: FairDict[int, str] = FairDict(100_000)
    for key in range(20):
        as_client("honest", values, key)
    for key in range(100, 1000):
        as_client("flood", values, key)
    assert all(key in values for key in range(20))
    assert 100 not in values
    assert 999 in values
    as_client("flood", values, 3)  # it stays with who stored it first
    for key in range(1000, 1500):
        as_client("flood", values, key)
    assert 3 in values


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30), st.integers(0, 3000), st.booleans()), max_size=80))
def test_what_clients_hold_is_counted_as_it_changes(changes: list[tuple[str, int, int, bool]]) -> None:
    values: FairDict[int, str] = FairDict(20_000)
    for client, key, size, is_dropped in changes:
        if is_dropped:
            values.pop(key)
        else:
            as_client(client, values, key, size)
        assert values.used_bytes == sum(values._held.values()) <= 20_000
        assert sum(map(len, values._keys.values())) == len(values._holder) == len(values)
        assert {client: held.bit_length() for client, held in values._held.items()} == {
            client: level for level, clients in values._levels.items() for client in clients
        }


def test_a_flood_of_one_client_does_not_make_the_ids_of_others_unknown() -> None:
    made: list[str] = []
    remembered = RepeatedRequests(MemoryStore(), 50_000, 60.0)

    async def ask(client: str, name: str) -> None:
        async def work() -> RankAnswer:
            made.append(name)
            return RankAnswer(name, "v1", 0.1, [RankedItem("i" * 100, 1.0, {"instant": 1.0}, 0.9, True)] * 5)

        current_client.set(client)
        await remembered.once(name, "hash", work)

    async def story() -> None:
        await ask("honest", "first")
        for number in range(200):
            await ask("flood", str(number))
        await ask("honest", "first")
        assert made.count("first") == 1
        await ask("flood", "0")
        assert made.count("0") == 2

    asyncio.run(story())


def test_what_a_request_stores_belongs_to_its_client(registry: Registry) -> None:
    async def story(http: httpx.AsyncClient, service: Service) -> None:
        body = {"candidates": ITEMS, "id": "a", "session": "s"}
        assert (await http.post("/v1/rank", json=body)).status_code == 200
        assert isinstance(service.sessions, MemoryStore)
        stores = (service.repeated._known._known, service.sessions._sessions, service.sessions._decisions)
        assert [list(store._held) for store in stores] == [["127.0.0.1"]] * 3

    run_app(registry, story)


def test_the_supervisor_knows_whose_request_a_worker_answers() -> None:
    async def story() -> None:
        hub = Hub(MemoryStore(max_bytes=3 * 20_000))
        ours, its = socket.socketpair()
        serving, store = asyncio.create_task(hub.serve("0", ours)), HubStore(its, lambda: None)
        current_client.set("honest")
        await store.remember_decision("first", DecisionRef(None, 1, ["item"], "v1"))
        current_client.set("flood")
        for number in range(100):
            await store.remember_decision(str(number), DecisionRef(None, 1, ["item"], "v1"))
        assert await store.recall_decision("0") is None
        assert await store.recall_decision("first") is not None
        await store.close()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(story())
