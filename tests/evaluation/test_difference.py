"""Bounds of the difference between a policy and the log: by hand, against known truth, and where the log shows nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.evaluation.ope.difference import LogDifference, bound_difference
from mbcal.evaluation.ope.intervals import betting_lower_bound
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.evaluation.sequential import UserSums, boundary, compare_means
from mbcal.release.gate import UNSHOWN, GateConfig, compare_by_log
from mbcal.types import Behaviours, Catalog, Sessions

BEHAVIOURS = Behaviours(("skip", "like"), (0.0, 1.0))
CATALOG = Catalog(tuple("abcdefghij"))


def sessions(
    items: NDArray[np.int32], liked: NDArray[np.bool_], propensities: NDArray[np.float64], **fields: object
) -> Sessions:
    count, horizon = items.shape
    values = {
        "items": items + 2,
        "behaviours": liked.astype(np.uint8),
        "length": np.full(count, horizon, np.int32),
        "user": np.arange(count, dtype=np.int32),
        "history_items": np.zeros((count, 0), np.int32),
        "history_behaviours": np.zeros((count, 0), np.uint8),
        "history_length": np.zeros(count, np.int32),
        "candidates": np.tile(np.arange(2, 12, dtype=np.int32), (count, 1)),
        "propensities": propensities.astype(np.float32),
    } | fields
    return Sessions(CATALOG, BEHAVIOURS, **values, origin="test")


def choices(best: NDArray[np.int64], logged: NDArray[np.int64], count: int = 10) -> PolicyChoices:
    return PolicyChoices(best, logged, np.full(best.shape, count))


def one_step(
    n: int, epsilon: float, chosen: NDArray[np.int64], liking: NDArray[np.float64], seed: int
) -> tuple[Sessions, PolicyChoices, PolicyChoices]:
    """A log of a live policy that prefers item 0, and a candidate that prefers `chosen` (n,); liking is by item, (10,)."""
    generator = np.random.default_rng(seed)
    explored = generator.random(n) < epsilon
    item = np.where(explored, generator.integers(0, 10, n), 0)
    liked = generator.random(n) < liking[item]
    propensity = np.where(item == 0, 1 - epsilon, 0.0) + epsilon / 10
    log = sessions(item[:, None].astype(np.int32), liked[:, None], propensity[:, None])
    zeros = np.zeros((n, 1), np.int64)
    return log, choices(chosen[:, None], item[:, None]), choices(zeros, item[:, None])


def test_contributions_by_hand() -> None:
    """Two steps, candidate differs at the first. Logged: its choice once (weight 0.91 / 0.01), otherwise the live one."""
    items = np.array([[1, 2], [0, 2]], np.int32)
    liked = np.array([[True, True], [True, False]])
    propensities = np.array([[0.01, 0.91], [0.91, 0.91]])
    log = sessions(items, liked, propensities)
    live, policy = (
        choices(np.array([[0, 2], [0, 2]]), items.astype(np.int64)),
        choices(np.array([[1, 2], [1, 2]]), items.astype(np.int64)),
    )
    found = bound_difference(log, policy, live, epsilon=0.1)
    assert (found.steps, found.differing, found.n_observed) == (4, 2, 1)
    assert found.reward == pytest.approx(1.5)
    assert found.range == 2.0
    # session 1: weight 91 at both steps, rewards 1 and 1; session 2: weight 0.01 / 0.91 at both, rewards 1 and 0
    low_values = np.array([90 * 2, (0.01 / 0.91 - 1) * 1])
    high_values = np.array([0.0, (0.01 / 0.91 - 1) * -1])
    assert found.low == pytest.approx(betting_lower_bound(low_values, -2.0, level=0.975), rel=1e-4)
    assert found.high == pytest.approx(-betting_lower_bound(-high_values, -2.0, level=0.975), rel=1e-4)
    assert "at 50.0% of the logged steps, and the log shows that item at 1 of these 2" in found.support


def test_the_live_policy_itself_is_level_whatever_it_earned() -> None:
    log, _, live = one_step(4000, 0.1, np.zeros(4000, np.int64), np.linspace(0.9, 0, 10), 0)
    found = bound_difference(log, live, live, epsilon=0.1)
    assert found.value == pytest.approx(0, abs=1e-6)
    assert -0.004 < found.low < 0 < found.high < 0.004
    assert found.support == "the candidate chooses as the live version does at all 4,000 logged steps"


def test_every_step_may_have_an_exploration_of_its_own() -> None:
    """Half of the log explores little and half much: with the same exploration, the live policy is level with itself."""
    parts = [one_step(1000, epsilon, np.zeros(1000, np.int64), np.linspace(0.9, 0, 10), 0) for epsilon in (0.1, 0.6)]
    items, liked, propensities = (
        np.concatenate([getattr(part[0], name) for part in parts]) for name in ("items", "behaviours", "propensities")
    )
    log = sessions(items - 2, liked == 1, propensities)
    live = choices(np.zeros((2000, 1), np.int64), items.astype(np.int64) - 2)
    own = np.repeat([0.1, 0.6], 1000)[:, None]
    found = bound_difference(log, live, live, epsilon=own)
    assert found.value == pytest.approx(0, abs=1e-6)
    assert not found.is_contradicted
    assert bound_difference(log, live, live, epsilon=0.1).value > 0.05  # as if it went live with less exploration


def test_a_loss_where_much_was_explored_does_not_hide_behind_a_gain_where_little_was() -> None:
    """Nine tenths of the sessions gain 0.1 and the others lose 0.4; in these, more exploration shows less of it."""

    def found(epsilons: tuple[float, float]) -> tuple[LogDifference, str]:
        parts = [
            one_step(n, epsilon, np.ones(n, np.int64), np.array([0.5, 0.5 + gain, *[0.5] * 8]), seed)
            for seed, (n, epsilon, gain) in enumerate(zip((180_000, 20_000), epsilons, (0.1, -0.4), strict=True))
        ]
        items, liked, propensities = (
            np.concatenate([getattr(part[0], name) for part in parts]) for name in ("items", "behaviours", "propensities")
        )
        log, epsilon = sessions(items - 2, liked == 1, propensities), np.repeat(epsilons, (180_000, 20_000))[:, None]
        policy, live = (choices(np.full_like(items, best, np.int64), items.astype(np.int64) - 2) for best in (1, 0))
        check, difference = compare_by_log(policy, live, log, GateConfig(), epsilon=epsilon)
        return difference, check.answer

    even, answer = found((0.3, 0.3))
    assert (even.hidden, answer) == (0, "no worse")
    assert even.value == pytest.approx(0.7 * (0.9 * 0.1 - 0.1 * 0.4), abs=0.01)
    uneven, answer = found((0.3, 0.6))  # weighed as if both had explored alike
    assert uneven.greedy_share == pytest.approx(0.67)
    assert uneven.value == pytest.approx(0.67 * (0.9 * 0.1 - 0.1 * 0.4), abs=0.01)
    assert uneven.hidden == 0
    extreme, answer = found((0.3, 0.9))
    assert extreme.hidden == pytest.approx(0.1, abs=0.02)
    assert answer == "cannot tell"


def test_sessions_whose_exploration_changes_before_a_differing_step_hide_what_it_costs() -> None:
    """The candidate differs at the second step of the first session, which explored more there."""
    items = np.zeros((2, 2), np.int32)
    log = sessions(items, np.ones((2, 2), np.bool_), np.array([[0.91, 0.19], [0.91, 0.91]]))
    live = choices(np.zeros((2, 2), np.int64), items.astype(np.int64))
    policy = choices(np.array([[0, 1], [0, 0]]), items.astype(np.int64))
    assert bound_difference(log, policy, live, epsilon=np.array([[0.1, 0.9], [0.1, 0.1]])).hidden == pytest.approx(0.5)
    assert bound_difference(log, policy, live, epsilon=np.array([[0.1, 0.1], [0.1, 0.9]])).hidden == 0


def test_the_tolerance_is_that_of_users_or_of_sessions_whichever_is_less() -> None:
    """Two users with three sessions each that earn nothing beside two who earn 1 in one session."""
    log, policy, live = one_step(8, 0.5, np.zeros(8, np.int64), np.ones(10), 0)
    user = np.array([0, 0, 0, 1, 1, 1, 2, 3], np.int32)
    log = replace(log, user=user, behaviours=(user >= 2)[:, None].astype(np.uint8))
    assert bound_difference(log, policy, live, epsilon=0.5).reward == pytest.approx(0.25)  # 0.5 over users


@pytest.mark.parametrize("fault", ["propensities", "feedback"])
def test_a_log_that_is_not_what_it_says_is_found_out(fault: str) -> None:
    """Propensities that are too small; or feedback on the live policy's item that mostly does not come."""
    chosen = np.ones(4000, np.int64)
    log, policy, live = one_step(4000, 0.5, chosen, np.array([0.6, 0.2, *[0.4] * 8]), 0)
    honest = bound_difference(log, policy, live, epsilon=0.5)
    assert not honest.is_contradicted
    assert honest.least_weight < 1
    assert log.propensities is not None
    if fault == "propensities":
        log = replace(log, propensities=log.propensities * np.float32(0.8))
    else:
        kept = (policy.logged[:, 0] != 0) | (np.random.default_rng(1).random(4000) < 0.3)
        log = log[kept]
        policy, live = (PolicyChoices(one.best[kept], one.logged[kept], one.count[kept]) for one in (policy, live))
    found = bound_difference(log, policy, live, epsilon=0.5)
    assert found.is_contradicted
    assert found.least_weight > 1.1


def test_what_the_log_never_shows_counts_as_the_worst() -> None:
    """A fifth of users would get an item that was never explored: they may lose all they earn, or gain all they lack."""
    chosen = (np.arange(2000) % 5 == 0).astype(np.int64)
    log, policy, live = one_step(2000, 0.0, chosen, np.full(10, 0.5), 1)
    found = bound_difference(log, policy, live, epsilon=0.0)
    assert found.n_observed == 0
    assert found.low <= -0.2 * 0.5
    assert found.high >= 0.2 * 0.5
    assert found.low > -0.2
    assert found.log_sessions_needed(0.05) == np.inf
    once = 0.25 / (0.05 * found.reward) ** 2
    limit = float(boundary(np.asarray(7877.0), 0.025))
    assert found.canary_sessions_needed(0.05) == pytest.approx((limit + 0.8416) ** 2 * once, rel=1e-3)


def test_a_canary_shows_a_difference_with_the_sessions_that_were_said_to_be_needed() -> None:
    """As watchers look at it: ten times, with limits that hold at all looks together."""
    log, policy, live = one_step(2000, 0.5, np.ones(2000, np.int64), np.full(10, 0.5), 1)
    needed = round(bound_difference(log, policy, live, epsilon=0.5).canary_sessions_needed(0.2))
    assert 100 < needed < 500

    def shown(seed: int) -> bool:
        generator, n = np.random.default_rng(seed), 10 * needed
        has_canary = generator.random(n) < 0.1
        earned = (generator.random(n) < np.where(has_canary, 0.4, 0.5)).astype(np.float64)

        def of(chosen: NDArray[np.bool_], end: int) -> UserSums:
            rows = np.flatnonzero(chosen[:end])
            return UserSums.of(earned[rows], rows, n)

        looks = [compare_means(of(has_canary, end), of(~has_canary, end)) for end in range(n // 10, n + 1, n // 10)]
        return any(float(look.upper(0.025)) < 0 for look in looks)

    assert np.mean([shown(seed) for seed in range(40)]) >= 0.6


@pytest.mark.parametrize(("epsilon", "share"), [(0.1, 0.05), (0.1, 1.0), (0.5, 0.2), (1.0, 1.0)])
def test_bounds_cover_the_truth_also_of_a_minority(epsilon: float, share: float) -> None:
    """300 logs each; the bounds may miss in 5%, and being valid for any weights they miss in fewer."""
    liking = np.array([0.6, 0.2, *[0.4] * 8])
    missed = 0
    for seed in range(300):
        chosen = (np.random.default_rng(10_000 + seed).random(400) < share).astype(np.int64)
        log, policy, live = one_step(400, epsilon, chosen, liking, seed)
        found = bound_difference(log, policy, live, epsilon=epsilon)
        missed += not found.low <= (1 - epsilon) * share * -0.4 <= found.high
    assert missed <= 300 * 0.05


@pytest.mark.parametrize(("share", "rate", "least"), [(0.5, 0.1, 500), (0.1, 0.0, 5000)])
def test_a_difference_is_seen_with_the_sessions_that_were_said_to_be_needed(share: float, rate: float, least: int) -> None:
    """Half of the users lose most of what they earn, or a tenth of them all of it."""
    liking = np.array([0.5, rate, *[0.4] * 8])

    def found_in(n: int, seed: int) -> LogDifference:
        chosen = (np.random.default_rng(10_000 + seed).random(n) < share).astype(np.int64)
        return bound_difference(*one_step(n, 0.5, chosen, liking, seed), epsilon=0.5)

    first = found_in(2000, 0)
    truth = 0.5 * share * (rate - 0.5)
    assert first.greedy_share == 0.5
    needed = int(first.log_sessions_needed(-truth / first.greedy_share / first.reward))
    assert least < needed < 20_000
    seen = np.mean([found_in(needed, seed).high < 0 for seed in range(40)])
    assert seen >= 0.8
    fewer = np.mean([found_in(needed // 8, seed).high < 0 for seed in range(40)])
    assert fewer < 0.25


def test_what_exploration_hides_is_not_tolerated() -> None:
    """Where all choices were random, any candidate earns as much as the log, and with less exploration much less."""
    log, policy, live = one_step(6000, 1.0, np.ones(6000, np.int64), np.array([0.9, 0.1, *[0.5] * 8]), 0)
    epsilons = np.ones((6000, 1))
    check, found = compare_by_log(policy, live, log, GateConfig(), epsilon=epsilons)
    assert (found.value, found.greedy_share) == (pytest.approx(0, abs=1e-6), 0.0)
    assert found.low > -0.01 * found.reward
    assert check.answer == "cannot tell"
    assert found.log_sessions_needed(0.1) == np.inf
    same, as_before = compare_by_log(live, live, log, GateConfig(), epsilon=epsilons)
    assert (same.answer, as_before.greedy_share) == ("no worse", 1.0)


def test_what_a_log_does_not_show_may_be_a_gain() -> None:
    """A candidate that is surely worse by the log is not found worse if the log hides a part of what its choices lead to."""
    log, policy, live = one_step(6000, 0.5, np.ones(6000, np.int64), np.array([0.9, 0.1, *[0.5] * 8]), 0)
    epsilons = np.full((6000, 1), 0.5)
    assert compare_by_log(policy, live, log, GateConfig(), epsilon=epsilons)[0].answer == "worse"
    check, _ = compare_by_log(policy, live, log, GateConfig(), epsilon=epsilons, n_unshown=1)
    assert check.answer == "cannot tell"
    assert check.detail.endswith(UNSHOWN)


def test_sessions_that_end_early_count_their_missing_steps() -> None:
    """A candidate whose choice ends sessions: the lost steps are rewards of 0 under a weight that stays."""
    n = 3000
    generator = np.random.default_rng(0)
    item = generator.integers(0, 10, n)
    length = np.where(item == 1, 1, 3).astype(np.int32)
    steps = np.arange(3) < length[:, None]
    items = np.where(steps, np.column_stack([item, np.full(n, 2), np.full(n, 3)]), -2).astype(np.int32)
    log = sessions(items, steps, np.where(steps, [0.1, 1.0, 1.0], 0.0), length=length)
    logged = np.where(steps, items, 0).astype(np.int64)
    live = PolicyChoices(logged, logged, np.tile([10, 1, 1], (n, 1)))
    policy = replace(live, best=np.column_stack([np.ones(n, np.int64), logged[:, 1:]]))
    found = bound_difference(log, policy, live, epsilon=0.0)
    truth = 1 - (0.1 * 1 + 0.9 * 3)
    assert found.low <= truth <= found.high < 0
    assert found.value == pytest.approx(truth, abs=0.35)


def test_several_sessions_of_a_user_are_one_unit() -> None:
    chosen = np.ones(400, np.int64)
    log, policy, live = one_step(400, 1.0, chosen, np.array([0.2, 0.9, *[0.5] * 8]), 3)
    alone = bound_difference(log, policy, live, epsilon=0.5)
    doubled = replace(log[np.repeat(np.arange(400), 2)], user=np.repeat(np.arange(400), 2).astype(np.int32))
    twice = [
        PolicyChoices(*(np.repeat(array, 2, 0) for array in (one.best, one.logged, one.count))) for one in (policy, live)
    ]
    together = bound_difference(doubled, *twice, epsilon=0.5)
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high))
    assert (together.sessions, together.users) == (800, 400)
    assert (alone.range, together.range) == (1.0, 2.0)  # all sessions of a user may fail together


def test_users_with_many_sessions_may_not_lose_what_others_gain() -> None:
    """A tenth of 2,000 users has three quarters of the sessions, and the candidate is worse for them alone."""
    often = np.arange(2000) % 10 == 0
    user = np.repeat(np.arange(2000), np.where(often, 27, 1)).astype(np.int32)
    loses = often[user]
    generator = np.random.default_rng(0)
    item = np.where(generator.random(len(user)) < 0.5, generator.integers(0, 10, len(user)), 0)
    liked = generator.random(len(user)) < np.where(loses, np.where(item == 1, 0.1, 0.6), np.where(item == 1, 0.9, 0.1))
    propensity = np.where(item == 0, 0.5, 0.0) + 0.05
    log = sessions(item[:, None].astype(np.int32), liked[:, None], propensity[:, None], user=user)
    logged = item[:, None]
    found = bound_difference(log, choices(np.ones_like(logged), logged), choices(np.zeros_like(logged), logged), epsilon=0.5)
    by_user, by_session = (0.5 * (share * -0.5 + (1 - share) * 0.8) for share in (0.1, 0.75))
    assert by_user > 0.3
    assert by_session < -0.08
    assert found.low <= by_session
    assert found.high >= by_user


def test_an_item_that_takes_the_reward_of_the_one_above_it() -> None:
    """Lists of two: the candidate has another second item, with which users like neither, instead of the first alone."""
    n, generator = 4000, np.random.default_rng(0)
    second = np.where(generator.random(n) < 0.5, generator.integers(0, 10, n), 0)
    items = np.stack([np.full(n, 5), second], 1)
    liked = np.stack([second != 1, np.zeros(n, np.bool_)], 1)
    propensities = np.stack([np.full(n, 0.55), np.where(second == 0, 0.55, 0.05)], 1)
    log = sessions(items.astype(np.int32), liked, propensities)
    live, policy = (choices(np.tile([5, best], (n, 1)), items) for best in (0, 1))
    apart = bound_difference(log, policy, live, epsilon=0.5)
    together = bound_difference(log, policy, live, epsilon=0.5, last_served=np.ones((n, 2), np.int64))
    assert apart.low == pytest.approx(0, abs=0.02)
    assert together.low < -0.5 < together.high < -0.2


def test_betting_bound_by_hand_and_its_limits() -> None:
    assert betting_lower_bound(np.zeros(5), 0.0) == 0.0
    # one value: the capital at m is 1 + mean of stakes times (x / m - 1), which must exceed 20
    from mbcal.evaluation.ope.intervals import STAKES

    stake = STAKES.mean()
    assert betting_lower_bound(np.array([100.0]), 0.0, level=0.95) == pytest.approx(100 * stake / (19 + stake), rel=1e-6)
    assert betting_lower_bound(np.full(1000, 3.0), -1.0) == pytest.approx(3.0, abs=0.03)
    with pytest.raises(InputError, match="must be at least 0, got -1"):
        betting_lower_bound(np.array([-1.0, 2.0]), 0.0)


@pytest.mark.filterwarnings("error")
def test_very_many_differing_steps_need_more_sessions_than_can_be_counted() -> None:
    items, ones = np.zeros((3, 200), np.int32), np.ones((3, 200))
    log = sessions(items, ones > 0, ones)
    logged = np.zeros((3, 200), np.int64)
    found = bound_difference(log, choices(logged + 1, logged), choices(logged, logged), epsilon=1e-6)
    assert found.weight_variance == np.inf
    assert found.log_sessions_needed(0.1) == np.inf
