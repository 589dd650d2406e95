"""Traffic of the last hour: counts, quantiles, intervals and bounded memory, by a clock of the test."""

from __future__ import annotations

import timeit

import msgspec
import numpy as np
import pytest

from mbcal.metrics import mean_interval
from mbcal.serving import traffic as module
from mbcal.serving.pool import Pool, Snapshot, TrafficPool
from mbcal.serving.stats import recent_traffic, reward_points, traffic_series
from mbcal.serving.traffic import BOUNDS, SLOT_SECONDS, SLOTS, Rewards, Traffic, VersionCounts, quantile


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_requests_are_counted_in_slots_of_ten_seconds() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    for second in range(30):
        clock.now = 1_000_000.0 + second
        traffic.request(200, 0.002)
    traffic.request(503, 5.0)
    series = traffic_series(traffic.slots())
    assert (series.begin, series.step, series.requests, series.refused) == (1_000_000.0, 10.0, [10, 10], [0, 0])
    assert series.p99[0] == pytest.approx(0.002, rel=0.2)
    clock.now += 20
    series = traffic_series(traffic.slots())
    assert (series.requests, series.refused) == ([10, 10, 11, 0], [0, 0, 1, 0])
    assert series.p50[3] is None  # nothing happened, which is not 0 seconds
    assert series.p99[2] == pytest.approx(0.002, rel=0.2)  # a refusal's duration is left out


def test_an_hour_is_kept_and_no_more() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    for _ in range(2 * SLOTS):
        traffic.request(200, 0.001)
        clock.now += SLOT_SECONDS
    slots = traffic.slots()
    assert len(slots) == SLOTS
    assert sum(slot.requests for slot in slots) == SLOTS - 1  # the slot of now is empty
    clock.now += 3600
    assert sum(slot.requests for slot in traffic.slots()) == 0


def test_quantiles_of_a_histogram() -> None:
    seconds = np.random.default_rng(0).lognormal(-6, 0.7, 20_000)
    counts = np.bincount(np.searchsorted(BOUNDS, seconds), minlength=len(BOUNDS) + 1).tolist()
    for share in (0.5, 0.9, 0.99):
        assert quantile(counts, BOUNDS, share) == pytest.approx(np.quantile(seconds, share), rel=0.05)
    assert quantile([0] * (len(BOUNDS) + 1), BOUNDS, 0.5) is None
    assert quantile([0] * len(BOUNDS) + [1], BOUNDS, 0.5) == BOUNDS[-1]


def test_feedback_counts_for_the_decision_it_is_about() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    for number in range(4):
        traffic.decision("v1", f"s{number}", True, 10, 3, clock.now)
    for number, delay in ((0, 20.0), (1, 40.0), (1, 41.0)):  # two items of decision 1
        traffic.feedback(f"s{number}", f"d{number}", clock.now, clock.now + delay, 1.0)
    clock.now += 60
    slots = traffic.slots()
    assert (slots[0].decisions, slots[0].with_feedback) == (4, 2)
    recent = recent_traffic(slots)
    assert (recent.decisions, recent.with_feedback, recent.candidates, recent.unknown) == (4, 2, 40, 12)
    assert recent.delay_p50 == pytest.approx(40, rel=0.5)
    assert (traffic.delays, traffic.delay_seconds) == (3, pytest.approx(101.0))


def test_rewards_whose_squares_no_float_can_hold_have_no_interval() -> None:
    for reward in (1e300, -1e300, 1e308):
        rewards = Rewards(sessions=3)
        for before in (0.0, reward):
            rewards.add(before, reward)
        assert rewards.interval() is None
    assert Rewards(sessions=2, total=2.0, squares=2.0).interval() == (1.0, 1.0)


def test_the_interval_of_the_reward_per_session_is_that_of_the_session_sums() -> None:
    clock = Clock()
    traffic, rng = Traffic(clock), np.random.default_rng(1)
    rewards = rng.normal(2.0, 3.0, (50, 4))
    for number in range(50):
        for _ in range(2):  # a session that is asked for twice counts once
            traffic.decision("v1", f"s{number}", True, 5, 0, clock.now)
    for step in range(4):  # sessions run at the same time
        for number in range(50):
            traffic.feedback(f"s{number}", f"d{number}-{step}", clock.now, clock.now, rewards[number, step])
    point = reward_points(traffic.rewards.slots)["v1"][0]
    expected = mean_interval(rewards.sum(1))
    assert (point.sessions, point.mean) == (50, pytest.approx(expected.mean))
    assert (point.low, point.high) == (pytest.approx(expected.low, abs=1e-3), pytest.approx(expected.high, abs=1e-3))


def test_versions_have_their_own_rewards_and_unknown_sessions_none() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    traffic.decision("v1", "a", True, 5, 0, clock.now)
    clock.now += 60
    traffic.decision("v2", "b", True, 5, 0, clock.now)
    traffic.decision("v2", "a", False, 5, 0, clock.now)  # the session goes on after a switch
    traffic.feedback("a", "d", clock.now, clock.now, 7.0)
    traffic.feedback("never seen here", "e", clock.now, clock.now, 9.0)
    traffic.feedback(None, "f", clock.now, clock.now, 9.0)
    points = reward_points(traffic.rewards.slots)
    assert [(point.mean, point.low) for point in points["v1"]] == [(7.0, None)]  # one session has no interval
    assert points["v2"][0].mean == 0.0
    assert traffic.rewards.elsewhere == 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 100)
    traffic = Traffic(Clock())
    for number in range(1000):
        traffic.decision("v1", f"s{number}", True, 5, 0, Clock.now)
        traffic.feedback(f"s{number}", f"d{number}", Clock.now, Clock.now, 1.0)
    assert len(traffic.rewards._open) == len(traffic._with_feedback) == 100
    assert reward_points(traffic.rewards.slots)["v1"][0].sessions == 1000


def test_counting_costs_next_to_nothing() -> None:
    traffic = Traffic()
    seconds = min(timeit.repeat(lambda: traffic.request(200, 0.002), number=2000, repeat=20)) / 2000
    assert seconds < 5e-6  # 0.5 microseconds on a quiet machine


def test_workers_share_the_rewards_of_sessions() -> None:
    """One worker decides, another gets the feedback: the pool counts as one process would."""
    clock, pool = Clock(), TrafficPool()
    workers = [Traffic(clock), Traffic(clock)]
    for worker in workers:
        worker.outbox = []
    for number in range(20):
        workers[0].decision("v1", f"s{number}", True, 5, 1, clock.now)
        if number == 9:
            pool.exchange("0", Snapshot(workers[0].slots(), {}, None, workers[0].take_events()))
    workers[0].request(200, 0.002)
    for number in range(20):  # of half of the sessions the pool hears before it hears of their begin
        workers[1].feedback(f"s{number}", f"d{number}", clock.now, clock.now, float(number))
    workers[1].request(503, 0.002)
    half = pool.exchange(
        "1", Snapshot(workers[1].slots(), {"v1": VersionCounts(0, 0, 20, 190.0)}, None, workers[1].take_events())
    )
    assert half.elsewhere == 10
    shared = pool.exchange("0", Snapshot(workers[0].slots(), {"v1": VersionCounts(20, 20)}, None, workers[0].take_events()))
    shared = msgspec.msgpack.decode(msgspec.msgpack.encode(shared), type=Pool)  # as it is sent
    expected = mean_interval(np.arange(20.0))
    point = reward_points(shared.rewards)["v1"][0]
    assert (point.sessions, point.mean, point.low) == (20, 9.5, pytest.approx(expected.low))
    assert (shared.counts["v1"], shared.elsewhere) == (VersionCounts(20, 20, 20, 190.0), 0)
    recent = recent_traffic(shared.slots)
    assert (recent.requests, recent.refusals, recent.decisions, recent.unknown) == (2, {"503": 1}, 20, 20)
    assert workers[0].take_events() == []


def test_what_workers_counted_that_have_ended_is_kept() -> None:
    clock, pool = Clock(), TrafficPool()
    pool._started = clock.now - 100
    for _ in range(3):  # one after the other, under the same number
        worker = Traffic(clock)
        worker.request(200, 0.002)
        pool.exchange("0", Snapshot(worker.slots(), {"v1": VersionCounts(20, 10, 5, 2.0)}, None, []))
        pool.remove("0")
        pool.remove("0")  # it has never reported
    shared = pool.exchange("1", Snapshot(Traffic(clock).slots(), {"v1": VersionCounts(1)}, None, []))
    shared = msgspec.msgpack.decode(msgspec.msgpack.encode(shared), type=Pool)  # as it is sent
    assert shared.counts == {"v1": VersionCounts(61, 30, 15, 6.0)}
    assert recent_traffic(shared.slots).requests == 3
    assert (len(shared.snapshots), shared.started) == (1, clock.now - 100)


@pytest.mark.parametrize("step", [-400 * 86_400, 10 * 365 * 86_400])
def test_a_clock_that_is_set_is_survived(step: int) -> None:
    """The page broke until a clock that was set back had caught up; one set forward made slots for all the years between."""
    now = [1_700_000_000.0]
    workers = [Traffic(lambda: now[0]), Traffic(lambda: now[0])]
    for worker in workers:
        worker.request(200, 0.001)
    before = [Snapshot(worker.slots(), {}, None, []) for worker in workers]
    now[0] += step
    workers[0].request(200, 0.001)
    slots = workers[0].slots()
    assert (slots[-1].number, slots[-1].requests) == (int(now[0] // SLOT_SECONDS), 1)
    assert recent_traffic(slots).requests == 1
    both = Pool([Snapshot(slots, {}, None, []), before[1]], {}, {}, 0).slots
    assert len(both) == SLOTS
    assert both[-1].requests == 1


def test_sessions_count_after_the_clock_was_set_back() -> None:
    now = [1_700_000_000.0]
    traffic = Traffic(lambda: now[0])
    for step in range(SLOTS):
        traffic.decision("v1", f"before {step}", True, 1, 0, now[0] + step * SLOT_SECONDS)
    traffic.decision("v1", "after", True, 1, 0, now[0] - 86_400)
    traffic.feedback("after", "d", now[0], now[0] - 86_400, 2.0)
    assert traffic.rewards.slots[int((now[0] - 86_400) // SLOT_SECONDS)]["v1"].total == 2.0
    assert (len(traffic.rewards.slots), traffic.delay_seconds) == (SLOTS, 0.0)


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_what_an_ended_worker_counted_by_another_clock_hides_nothing(ahead: float) -> None:
    pool, live, other = TrafficPool(), Traffic(lambda: 1e6), Traffic(lambda: 1e6 + ahead)
    for traffic in (other, live):
        traffic.request(200, 0.01)
    pool.exchange("0", Snapshot(other.slots(), {}, None, []))
    pool.remove("0")
    slots = pool.exchange("0", Snapshot(live.slots(), {}, None, [])).slots
    assert slots[-1].number == live.slots()[-1].number
    assert recent_traffic(slots).requests == 1
