"""Sessions and decisions in memory and in a real Redis."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mbcal.errors import OptionError
from mbcal.registry.registry import Registry
from mbcal.serving.clients import current_client
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import FeedbackRequest, RankAnswer, RankRequest
from mbcal.serving.redis_state import KeptKeys, RedisStore
from mbcal.serving.service import Service
from mbcal.serving.state import MAX_NAMES, DecisionRef, Session, StateAwayError, Step, latest_steps, session_store
from tests.support.redis import RedisServer
from tests.support.versions import ITEMS

ANSWER = msgspec.msgpack.encode(RankAnswer("d", "v000001", 0.1, []))
BEGIN = Session("u1", (("item 1", "click"),))
STEPS = [Step(3, 0, "d2", "item 3", "skip"), Step(1, 0, "d1", "item 2", "like"), Step(1, 1, "d1", "item 4", "click")]


def test_steps_are_ordered_whatever_order_they_arrive_in() -> None:
    wanted = (("item 2", "like"), ("item 4", "click"), ("item 3", "skip"))
    for order in itertools.permutations(STEPS):
        session = BEGIN
        for step in (*order, *order):  # all of it twice
            session = session.after(step)
        assert session.shown == wanted


def test_the_first_feedback_on_an_item_counts() -> None:
    again = Step(9, 0, "d1", "item 2", "skip")
    assert BEGIN.after(STEPS[1]).after(again).shown == (("item 2", "like"),)


def test_the_latest_steps_of_a_long_session_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.serving.state.MAX_STEPS", 3)
    session = BEGIN
    for moment in (5, 1, 4, 2, 3):
        session = session.after(Step(moment, 0, f"d{moment}", f"item {moment}", "skip"))
    assert [step.time for step in session.steps] == [3, 4, 5]


def test_names_of_a_session_are_bounded_in_bytes() -> None:
    for name in (*"abcdefg", "x" * 250, "ä" * 250):
        session = BEGIN
        for moment in range(300):
            session = session.after(Step(moment, 0, f"d{moment}", f"{moment}{name}", name))
        used = sum(len((item + behaviour).encode()) for item, behaviour in session.shown)
        assert used <= MAX_NAMES
        assert len(session.steps) == 300 or used > MAX_NAMES - 1100  # as many as there is room for
        assert session.steps[-1].time == 299


def test_the_latest_steps_of_a_history_are_kept() -> None:
    steps = tuple((f"item {number}", "click") for number in range(100))
    assert latest_steps(steps, 20) == steps[80:]
    assert latest_steps(steps, 0) == ()
    assert latest_steps(steps[:3], 20) == steps[:3]
    assert latest_steps(steps, 1000) == steps
    long = tuple((f"{number:0256}", "y" * 256) for number in range(1000))
    assert latest_steps(long, 1000) == long[1000 - MAX_NAMES // 512 :]


def test_contexts_of_a_session_are_bounded_whatever_order_they_arrive_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.serving.state.MAX_CONTEXT", 10)
    steps = [Step(time, 0, f"d{time}", f"item {time}", "click", context="x" * time) for time in range(1, 6)]
    for order in itertools.permutations(steps):
        session = BEGIN
        for step in order:
            session = session.after(step)
        assert session.shown_context[-2:] == ("xxxx", "xxxxx")  # 9 of 10 characters, the newest
        assert sum(map(len, session.shown_context)) <= 10
    large = BEGIN.after(Step(1, 0, "d", "item", "click", context="x" * 11))
    assert (large.shown, large.shown_context) == ((("item", "click"),), ())


async def story(store: MemoryStore | RedisStore) -> None:
    assert await store.get("s") is None
    assert await store.add("s", STEPS[0]) is None  # unknown
    assert await store.begin("s", BEGIN) is BEGIN
    assert await store.begin("s", Session("other", ())) == BEGIN  # the first history counts
    for step in STEPS:
        known = await store.add("s", step)
    assert known is not None
    assert known.shown == (("item 2", "like"), ("item 4", "click"), ("item 3", "skip"))
    assert await store.get("s") == known
    many = [Step(10 + n, 0, f"e{n}", f"item {n}", "skip") for n in range(20)]
    await asyncio.gather(*(store.add("s", step) for step in many))  # all at once: none is lost
    last = await store.get("s")
    assert last is not None
    assert len(last.steps) == 23
    assert await store.recall_decision("d1") is None
    await store.remember_decision("d1", DecisionRef("s", 7, ["item 2", "item 4"], "v000001", "hash"))
    assert await store.recall_decision("d1") == DecisionRef("s", 7, ["item 2", "item 4"], "v000001", "hash")
    assert [await store.claim_decision(name) for name in ("d1", "d2", "d2")] == [
        True,
        True,
        False,
    ]  # the answer to d1 is gone
    await store.release_decision("d2")
    assert await store.claim_decision("d2") is True
    answered = DecisionRef("s", 7, ["item 2"], "v000001", "hash", ANSWER)
    assert await store.remember_decision("d2", answered) == answered
    assert await store.claim_decision("d2") == answered
    later = DecisionRef("s", 8, ["item 4"], "v000001", "hash", ANSWER)
    assert await store.remember_decision("d2", later) == answered  # the first answer stays
    assert await store.recall_decision("d2") == answered
    assert await store.remember_decision("d1", later) == later  # the first had no answer
    assert await store.recall_decision("d1") == later
    await store.close()


def test_memory() -> None:
    asyncio.run(story(MemoryStore()))


def test_the_oldest_decisions_are_dropped_first() -> None:
    async def tell() -> list[bool]:
        store = MemoryStore(max_bytes=3 * 2 * 1050)  # a third of it for decisions, of 967 bytes each
        for name in ("d1", "d2", "d3"):
            await store.remember_decision(name, DecisionRef(None, 1, ["item 2"], "v000001"))
        return [await store.recall_decision(name) is None for name in ("d1", "d2", "d3")]

    assert asyncio.run(tell()) == [True, False, False]


def test_redis(redis_address: str) -> None:
    asyncio.run(story(RedisStore(redis_address)))


def test_sessions_expire() -> None:
    now = [0.0]
    store = MemoryStore(lifetime=10, max_bytes=3600, clock=lambda: now[0])  # room for three sessions

    async def tell() -> None:
        await store.begin("a", BEGIN)
        now[0] = 9
        assert await store.add("a", STEPS[0]) is not None  # ten more seconds
        now[0] = 18
        assert await store.get("a") is not None  # ten more
        now[0] = 27
        assert await store.get("a") is not None
        now[0] = 38
        assert await store.get("a") is None
        for name in "bcde":
            await store.begin(name, BEGIN)
        assert await store.get("b") is None  # too many: the least recently used is dropped
        assert await store.get("e") is not None
        now[0] = 60
        await store.begin("f", BEGIN)
        assert store.n_sessions == 1  # expired sessions are freed by the next write

    asyncio.run(tell())


def test_decisions_expire() -> None:
    now = [0.0]
    store = MemoryStore(lifetime=10, clock=lambda: now[0])
    first, other = (DecisionRef(None, number, ["item 1"], "v000001", "hash", ANSWER) for number in range(2))

    async def tell() -> None:
        await store.remember_decision("a", first)
        now[0] = 9
        assert await store.remember_decision("a", other) == first  # not kept for longer
        assert await store.claim_decision("a") == await store.recall_decision("a") == first
        size = store.used_bytes
        now[0] = 11
        assert await store.recall_decision("a") is None
        assert await store.claim_decision("a") is True
        await store.remember_decision("b", other)
        assert store.used_bytes == size  # what has expired is freed by the next write
        assert await store.remember_decision("a", other) == other

    asyncio.run(tell())


def test_a_full_redis_is_an_outage_that_names_no_session(redis_address: str) -> None:
    events: list[str] = []

    async def tell() -> None:
        store = RedisStore(redis_address, on_event=lambda event, **values: events.append(f"{event} {values}"))
        await store.begin("s", BEGIN)
        await store._redis.config_set("maxmemory", "1")
        try:
            with pytest.raises(StateAwayError):
                await store.add("s", STEPS[0])
        finally:
            await store._redis.config_set("maxmemory", "0")
            await store.close()

    asyncio.run(tell())
    assert "OOM" in events[0] or "memory" in events[0]
    assert "item" not in events[0]
    assert "session:" not in events[0]


def test_what_a_process_keeps_in_redis_is_bounded_and_its_largest_client_loses_first(redis_address: str) -> None:
    async def tell() -> None:
        store = RedisStore(redis_address, max_bytes=100_000)
        current_client.set("small")
        await store.begin("kept", BEGIN)
        current_client.set("large")
        for number in range(40):
            await store.remember_decision(f"{number}", DecisionRef("kept", number, ["x" * 5_000], "v"))
        await store.begin("also large", BEGIN)
        assert await store.get("kept") == BEGIN
        assert await store.get("also large") == BEGIN
        keys = await store._redis.keys("mbcal:decision:*")
        assert 10 < len(keys) < 20
        assert b"mbcal:decision:39" in keys
        await store.close()

    asyncio.run(tell())


def test_keys_that_expired_are_not_deleted_when_another_process_has_written_them_since(redis_address: str) -> None:
    async def tell() -> None:
        store, other = (RedisStore(redis_address, lifetime=1, max_bytes=30_000) for _ in range(2))
        names = [f"again {number}" for number in range(20)]
        for name in names:
            await store.begin(name, BEGIN)
        await asyncio.sleep(1.2)
        for name in names:
            await other.begin(name, BEGIN)
        for number in range(20):  # as much in a lifetime as it may keep, but not with what it kept before
            await store.remember_decision(f"later {number}", DecisionRef("s", number, ["x" * 500], "v"))
        assert [await other.get(name) for name in names] == [BEGIN] * 20
        assert len(store._kept) == 20
        await store.close()
        await other.close()

    asyncio.run(tell())


def test_keys_count_for_a_lifetime_after_they_were_last_used(redis_address: str) -> None:
    now = [0.0]
    keys = KeptKeys(10_000, 10.0, lambda: now[0])
    for moment, key in ((0, "a"), (5, "b"), (8, "a"), (16, "c")):
        now[0] = moment
        keys.keep(key, 10)
    assert ("a" in keys, "b" in keys, "c" in keys, keys.dropped) == (True, False, True, [])

    async def tell() -> None:
        store, other = RedisStore(redis_address), RedisStore(redis_address)
        await store.begin("kept by the other", BEGIN)
        assert await other.get("kept by the other") == BEGIN
        assert "mbcal:session:kept by the other" in other._kept  # which has made it live longer
        assert await other.get("nobody began it") is None
        assert len(other._kept) == 1
        await store.close()
        await other.close()

    asyncio.run(tell())


def test_a_session_that_others_change_all_the_time_is_no_outage(redis_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell() -> None:
        store, other = RedisStore(redis_address), RedisStore(redis_address)
        await store.begin("s", BEGIN)
        read, times = store._stored, itertools.count()

        async def read_and_lose(key: str) -> bytes | None:
            found = await read(key)
            await other.add("s", Step(0, 0, f"x{next(times)}", "item 3", "skip"))
            return found

        monkeypatch.setattr(store, "_stored", read_and_lose)
        with pytest.raises(StateAwayError, match="too many requests change this session"):
            await store.add("s", STEPS[1])
        assert store.available
        await store.close()
        await other.close()

    asyncio.run(tell())


def test_a_value_of_another_kind_in_redis_counts_as_none_and_is_no_outage(redis_address: str) -> None:
    events: list[str] = []

    async def tell() -> None:
        store = RedisStore(redis_address, on_event=lambda event, **_: events.append(event))
        for name in ("list", "junk"):
            for kind in ("session", "decision", "claim"):
                key = f"mbcal:{kind}:{name}"
                await (store._redis.lpush(key, "x") if name == "list" else store._redis.set(key, b"\x93junk"))
            assert await store.get(name) is None
            assert await store.add(name, STEPS[0]) is None
            assert await store.begin(name, BEGIN) == BEGIN
            assert await store.get(name) == BEGIN  # the value was replaced
            assert await store.begin(name, Session("other", ())) == BEGIN
            assert await store.add(name, STEPS[0]) == BEGIN.after(STEPS[0])
            assert await store.recall_decision(name) is None
            assert await store.claim_decision(name) is True  # what would never end is no claim
            assert await store.claim_decision(name) is False
            await store._redis.set(f"mbcal:claim:other {name}", b"\x93junk", px=60_000)
            assert await store.claim_decision(f"other {name}") is False  # a claim may hold any text
            await store.remember_decision(name, DecisionRef("s", 1, ["item 1"], "v1", "hash", b"\x93junk"))
            assert await store.claim_decision(name) is False  # it is stored, and its answer is none
            answered = DecisionRef("s", 1, ["item 1"], "v1", "hash", ANSWER)
            assert await store.remember_decision(name, answered) == answered
            assert await store.recall_decision(name) == answered
        assert (store.available, events) == (True, [])
        await store.close()

    asyncio.run(tell())


@pytest.mark.parametrize("standstill", [0.05, 0.3])
def test_an_event_loop_that_stands_still_makes_no_outage(redis_address: str, standstill: float) -> None:
    events: list[str] = []

    async def tell() -> None:
        store = RedisStore(redis_address, on_event=lambda event, **_: events.append(event))
        asking = asyncio.create_task(store.begin("still", BEGIN))
        for _ in range(8):  # the answer lies in the socket when the time is over
            await asyncio.sleep(0)
            time.sleep(standstill)
        assert await asking == BEGIN
        assert (store.available, events) == (True, [])
        await store.close()

    asyncio.run(tell())


def test_no_call_waits_for_a_redis_that_freezes_in_the_middle_of_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)

    async def tell() -> int:
        store = RedisStore(server.address)

        async def add_forever(name: str) -> None:
            await store.begin(name, BEGIN)
            for moment in itertools.count():
                await store.add(name, Step(moment, 0, f"d{moment}", "item 2", "like"))

        adding = [asyncio.create_task(add_forever(f"s{number}")) for number in range(40)]
        await asyncio.sleep(0.5)
        server.pause()
        _, waiting = await asyncio.wait(adding, timeout=5)
        server.resume()
        failures = await asyncio.gather(*adding, return_exceptions=True)
        assert {type(failure) for failure in failures} == {StateAwayError}
        await store.close()
        return len(waiting)

    try:
        assert asyncio.run(tell()) == 0
    finally:
        server.kill()


@pytest.mark.parametrize("fault", [RecursionError(), NotImplementedError(), KeyError("x")])
def test_a_fault_of_this_program_is_no_outage_and_ends_none(redis_address: str, fault: Exception) -> None:
    async def tell() -> None:
        store = RedisStore(redis_address)
        write, faults = store._redis.set, [fault]

        async def faulty(*values: Any, **options: Any) -> Any:
            if faults:
                raise faults.pop()
            return await write(*values, **options)

        store._redis.set = faulty
        with pytest.raises(type(fault)):
            await store.begin("fault", BEGIN)
        assert store.available
        faults.append(fault)  # of the first ping
        store._begin_outage(ConnectionError("away"))
        async with asyncio.timeout(5):
            while not store.available:
                await asyncio.sleep(0.01)
        await store.close()

    asyncio.run(tell())


@pytest.mark.parametrize("moment", [-1, 2**62, 2**63 - 1, 2**64 - 1])
def test_times_in_redis_that_no_clock_shows_count_as_no_value(redis_address: str, moment: int) -> None:
    async def tell() -> None:
        store = RedisStore(redis_address)
        await store._redis.set("mbcal:session:moment", msgspec.msgpack.encode(BEGIN.after(Step(moment, 0, "d", "i", "b"))))
        await store._redis.set("mbcal:decision:moment", msgspec.msgpack.encode(DecisionRef("s", moment, ["i"], "v1")))
        assert await store.get("moment") is None
        assert await store.recall_decision("moment") is None
        await store.close()

    asyncio.run(tell())


def test_fields_in_redis_that_are_no_objects_are_missing(redis_address: str) -> None:
    async def tell() -> None:
        store = RedisStore(redis_address)
        for number, text in enumerate(("[1]", "{not json", "3", '{"hour": {"a": 1}}', "null", f'{{"hour": {10**400}}}')):
            step = Step(1, 0, "d", "item 1", "click", text)
            stored = Session("u", (), (step, Step(2, 0, "e", "item 2", "click", '{"hour": 3}')), "", text)
            await store._redis.set(f"mbcal:session:f{number}", msgspec.msgpack.encode(stored))
            session = await store.get(f"f{number}")
            assert session is not None
            assert (session.shown_context, session.user_features) == (("", '{"hour": 3}'), "")
            reference = DecisionRef("s", 1, ["item 1"], "v1", context=text)
            await store._redis.set(f"mbcal:decision:f{number}", msgspec.msgpack.encode(reference))
            recalled = await store.recall_decision(f"f{number}")
            assert recalled == msgspec.structs.replace(reference, context="")
        await store.close()

    asyncio.run(tell())


def test_a_recalled_session_is_kept_for_another_lifetime_in_redis(redis_address: str) -> None:
    async def tell() -> None:
        store = RedisStore(redis_address, lifetime=100)
        await store.begin("renewed", BEGIN)
        await store._redis.expire("mbcal:session:renewed", 5)
        assert await store.get("renewed") == BEGIN
        assert await store._redis.ttl("mbcal:session:renewed") > 90
        await store.close()

    asyncio.run(tell())


def test_sessions_expire_in_redis(redis_address: str) -> None:
    async def tell() -> None:
        store = RedisStore(redis_address, lifetime=1)
        await store.begin("short", BEGIN)
        await asyncio.sleep(1.2)
        assert await store.get("short") is None
        await store.close()

    asyncio.run(tell())


def test_addresses_of_session_stores() -> None:
    with pytest.raises(OptionError, match=r"state: 'postgres' is neither memory nor a redis:// address"):
        session_store("postgres://x", 10)
    assert isinstance(session_store("memory", 10), MemoryStore)


def test_a_clock_set_back_does_not_reorder_what_was_shown(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(5_000_000_000, 0, -1_000_000_000))  # every decision a second before the one before it
    monkeypatch.setattr("mbcal.serving.service.time.time_ns", lambda: next(times, 1))

    async def story() -> None:
        service = Service(registry, MemoryStore(), None, 0.0)
        await service.refresh_version()
        expected: list[tuple[str, str]] = []
        for item in ITEMS[:3]:
            answer = await service.rank(RankRequest(candidates=[item], k=1, session="s"))
            await service.feedback(FeedbackRequest(answer.decision, "click"))
            expected.append((item, "click"))
        session = await service.sessions.get("s")
        assert session is not None
        assert list(session.shown) == expected

    asyncio.run(story())
