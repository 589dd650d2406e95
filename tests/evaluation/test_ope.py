"""Off-policy estimators and intervals against a world small enough to enumerate, and by hand."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from mbcal.errors import InputError, OptionError
from mbcal.evaluation.ope.estimators import (
    ESTIMATORS,
    LoggedData,
    contribution_range,
    direct,
    doubly_robust,
    effective_size,
    logged_return,
    overlap,
    per_decision,
    self_normalised_ips,
    trajectory_ips,
    weighted_per_decision,
    weights,
)
from mbcal.evaluation.ope.intervals import bootstrap, empirical_bernstein

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class TwoSteps:
    """Two states, two actions, two steps; rewards are Bernoulli, the second state is drawn.

    A session begins in either state with probability 1/2; `value` is enumerated, never estimated.
    """

    gamma: float = 0.9
    log: Array = dataclasses.field(default_factory=lambda: np.array([[0.7, 0.3], [0.4, 0.6]]))  # mu(a | s)
    policy: Array = dataclasses.field(default_factory=lambda: np.array([[0.2, 0.8], [0.5, 0.5]]))  # pi(a | s)
    reward: Array = dataclasses.field(default_factory=lambda: np.array([[0.1, 0.6], [0.3, 0.9]]))  # P(r = 1 | s, a)
    stay: Array = dataclasses.field(default_factory=lambda: np.array([[0.9, 0.2], [0.5, 0.3]]))  # P(s' = s | s, a)

    @property
    def q(self) -> tuple[Array, Array]:
        """Q of the first and of the second step, (s, a) each."""
        later = (self.policy * self.reward).sum(1)
        moved = self.stay * later[:, None] + (1 - self.stay) * later[::-1, None]
        return self.reward + self.gamma * moved, self.reward

    @property
    def value(self) -> float:
        return float((self.policy * self.q[0]).sum(1).mean())

    def evidence(self, states: Array, actions: Array, rewards: Array, user: Array | None = None) -> LoggedData:
        """Of sessions (N, 2), with the true values as model."""
        q = np.stack([table[states[:, t], actions[:, t]] for t, table in enumerate(self.q)], 1)
        v = np.stack([(self.policy * table).sum(1)[states[:, t]] for t, table in enumerate(self.q)], 1)
        propensities = (table[states, actions] for table in (self.log, self.policy))
        mask = np.ones(states.shape, bool)
        return LoggedData(rewards, mask, *propensities, np.arange(len(states)) if user is None else user, q, v)

    def everything(self) -> tuple[LoggedData, Array]:
        """All 64 sessions there can be, and the probability of each under the logging policy."""
        paths = np.array(list(itertools.product((0, 1), repeat=6)))
        states, actions, rewards = paths[:, :2], paths[:, 2:4], paths[:, 4:]
        probability = 0.5 * self.log[states, actions].prod(1)
        probability *= np.where(rewards, self.reward[states, actions], 1 - self.reward[states, actions]).prod(1)
        stay = self.stay[states[:, 0], actions[:, 0]]
        return self.evidence(states, actions, rewards), probability * np.where(states[:, 0] == states[:, 1], stay, 1 - stay)

    def sample(self, users: int, sessions: int, seed: int) -> LoggedData:
        """A log: users who always begin in the same state, so that their sessions are alike, with `sessions` each."""
        draw = np.random.default_rng(seed)
        count = users * sessions
        states, actions, rewards = (np.zeros((count, 2), np.int64) for _ in range(3))
        states[:, 0] = np.repeat(draw.integers(0, 2, users), sessions)
        for t in range(2):
            actions[:, t] = draw.random(count) < self.log[states[:, t], 1]
            rewards[:, t] = draw.random(count) < self.reward[states[:, t], actions[:, t]]
            if t == 0:
                stays = draw.random(count) < self.stay[states[:, 0], actions[:, 0]]
                states[:, 1] = np.where(stays, states[:, 0], 1 - states[:, 0])
        return self.evidence(states, actions, rewards, np.repeat(np.arange(users), sessions))


WORLD = TwoSteps()


def exact(estimator: Any, evidence: LoggedData, probability: Array) -> float:
    """The expectation of a contribution over everything that can happen."""
    return float(probability @ estimator(evidence, WORLD.gamma))


# (a) expectations over the exact distribution


@pytest.mark.parametrize("estimator", [trajectory_ips, per_decision, doubly_robust, direct])
def test_unbiased_over_all_sessions_there_can_be(estimator: Any) -> None:
    evidence, probability = WORLD.everything()
    assert probability.sum() == pytest.approx(1, abs=1e-12)
    assert exact(estimator, evidence, probability) == pytest.approx(WORLD.value, abs=1e-9)


def test_doubly_robust_is_unbiased_when_either_half_is_wrong() -> None:
    evidence, probability = WORLD.everything()
    draw = np.random.default_rng(0)
    # any q of (state, action) and any v of the state will do: neither looks at the reward
    wrong_q = draw.normal(size=(2, 2, 2))
    paths = np.array(list(itertools.product((0, 1), repeat=6)))
    at = (np.arange(2), paths[:, :2], paths[:, 2:4])
    v = (WORLD.policy * wrong_q).sum(2)
    wrong_model = dataclasses.replace(evidence, q=wrong_q[at], v=v[at[0], at[1]])
    assert exact(direct, wrong_model, probability) != pytest.approx(WORLD.value, abs=0.1)
    assert exact(doubly_robust, wrong_model, probability) == pytest.approx(WORLD.value, abs=1e-9)
    wrong_log = dataclasses.replace(evidence, logged=np.clip(evidence.logged * 0.6 + 0.1, 0, 1))
    assert exact(trajectory_ips, wrong_log, probability) != pytest.approx(WORLD.value, abs=0.1)
    assert exact(doubly_robust, wrong_log, probability) == pytest.approx(WORLD.value, abs=1e-9)


def test_the_sum_is_the_recursion() -> None:
    evidence = WORLD.sample(50, 2, seed=1)
    ratio, (q, v) = evidence.target / evidence.logged, evidence.values
    later = v[:, 1] + ratio[:, 1] * (evidence.rewards[:, 1] - q[:, 1])
    first = v[:, 0] + ratio[:, 0] * (evidence.rewards[:, 0] + WORLD.gamma * later - q[:, 0])
    np.testing.assert_allclose(doubly_robust(evidence, WORLD.gamma), first, atol=1e-12)


@pytest.mark.parametrize("estimator", [self_normalised_ips, weighted_per_decision])
def test_self_normalised_estimates_are_consistent_and_stay_in_range(estimator: Any) -> None:
    evidence, probability = WORLD.everything()
    # each session as often as its probability says: the limit of an endless log
    often = np.repeat(np.arange(len(probability)), np.rint(probability * 1e6).astype(int))
    endless = LoggedData(*(getattr(evidence, name)[often] for name in ("rewards", "mask", "logged", "target", "user")))
    assert estimator(endless, WORLD.gamma).mean() == pytest.approx(WORLD.value, abs=1e-3)
    few = WORLD.sample(5, 1, seed=2)
    assert 0 <= estimator(few, WORLD.gamma).mean() <= 1 + WORLD.gamma


def test_self_normalised_contributions_average_to_the_ratio() -> None:
    evidence = WORLD.sample(40, 1, seed=3)
    weight, earned = weights(evidence)[:, -1], logged_return(evidence)
    assert self_normalised_ips(evidence).mean() == pytest.approx((weight * earned).sum() / weight.sum())
    each = (weights(evidence) * evidence.rewards).sum(0) / weights(evidence).sum(0)
    assert weighted_per_decision(evidence).mean() == pytest.approx(each.sum())


def test_padding_changes_nothing() -> None:
    evidence = WORLD.sample(30, 1, seed=4)
    wider = {
        name: np.pad(getattr(evidence, name), ((0, 0), (0, 1)), constant_values=np.nan) for name in ("rewards", "q", "v")
    }
    wider |= {name: np.pad(getattr(evidence, name), ((0, 0), (0, 1))) for name in ("mask", "logged", "target")}
    padded = dataclasses.replace(evidence, **wider)
    for estimator in ESTIMATORS.values():
        np.testing.assert_allclose(estimator(padded, 0.9), estimator(evidence, 0.9))


# (b) coverage


LOGS, USERS = 1000, 200
"""Logs of so many users, two sessions each; of these 400 sessions some 177 are effective."""


def interval(contributions: Any, user: Any, **options: Any) -> tuple[float, float]:
    """The bootstrap interval of one estimator."""
    low, high = bootstrap(contributions[None], user, **options)[0]
    return float(low), float(high)


def test_bootstrap_intervals_cover_as_often_as_they_say() -> None:
    names = ["ips", "snips", "pdis", "wpdis", "dr"]
    held = np.zeros(len(names))
    for seed in range(LOGS):
        evidence = WORLD.sample(USERS, 2, seed)
        every = np.stack([ESTIMATORS[name](evidence, WORLD.gamma) for name in names])
        low, high = bootstrap(every, evidence.user, seed=seed).T
        held += (low <= WORLD.value) & (high >= WORLD.value)
    share = dict(zip(names, (held / LOGS).tolist(), strict=True))
    assert all(0.93 <= covered <= 0.97 for covered in share.values()), share


@pytest.mark.parametrize("estimator", [trajectory_ips, per_decision])
def test_empirical_bernstein_covers_at_least_as_often_as_it_says(estimator: Any) -> None:
    clip = float((WORLD.policy / WORLD.log).max()) ** 2  # nothing is cut off, so the value is the value itself
    bounds = contribution_range((0, 1), 2, WORLD.gamma, (0, clip))
    held = 0
    for seed in range(LOGS):
        evidence = WORLD.sample(USERS, 2, seed)
        low, high = empirical_bernstein(estimator(evidence, WORLD.gamma, clip), evidence.user, *bounds)
        held += low <= WORLD.value <= high
    assert held / LOGS >= 0.95


def test_intervals_of_paired_differences_cover() -> None:
    evidence, probability = WORLD.everything()
    gap = WORLD.value - float(probability @ logged_return(evidence, WORLD.gamma))
    clip = float((WORLD.policy / WORLD.log).max()) ** 2
    bounds = contribution_range((0, 1), 2, WORLD.gamma, (-1, clip - 1))
    held = np.zeros(2)
    for seed in range(LOGS):
        evidence = WORLD.sample(USERS, 2, seed)
        each = per_decision(evidence, WORLD.gamma) - logged_return(evidence, WORLD.gamma)
        sure = empirical_bernstein(each, evidence.user, *bounds)
        held += [low <= gap <= high for low, high in (interval(each, evidence.user, seed=seed), sure)]
    assert 0.93 <= held[0] / LOGS <= 0.97
    assert held[1] / LOGS >= 0.95


def test_ignoring_that_sessions_of_a_user_are_alike_is_too_sure() -> None:
    evidence = WORLD.sample(100, 20, seed=0)
    each = direct(evidence)
    wide, narrow = (interval(each, user) for user in (evidence.user, np.arange(len(evidence))))
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])


def test_intervals_by_hand() -> None:
    each, user = np.array([0.0, 1.0, 1.0, 0.0]), np.array([0, 0, 1, 1])  # two users alike: no variance at all
    assert interval(each, user) == (0.5, 0.5)
    assert interval(each, np.zeros(4)) == (-np.inf, np.inf)
    many, users = np.tile(each, 500), np.arange(2000)
    low, high = empirical_bernstein(many, users, 0, 1, level=0.9)
    margin = np.sqrt(2 * many.var(ddof=1) * np.log(2 / 0.05) / 2000) + 7 * np.log(2 / 0.05) / (3 * 1999)
    assert (low, high) == pytest.approx((0.5 - margin, 0.5 + margin))
    # the first user has three sessions of two on average, so it can be 1.5 apart
    uneven = np.array([0, 0, 0, 1])
    assert empirical_bernstein(each, uneven, 0, 1) == (0, 1)
    drawn = np.random.default_rng(0).normal(size=50)
    assert interval(drawn, np.arange(50), seed=1) == interval(drawn, np.arange(50), seed=1)
    width = 1.96 * drawn.std() / np.sqrt(50)
    assert interval(drawn, np.arange(50)) == pytest.approx((drawn.mean() - width, drawn.mean() + width), abs=0.05)
    assert interval(drawn, np.arange(50), seed=1) != interval(drawn, np.arange(50), seed=2)
    with pytest.raises(InputError, match="must lie in"):
        empirical_bernstein(each, user, 0, 0.5)
    with pytest.raises(InputError, match="finite"):
        interval(np.array([np.nan]), np.array([0]))
    with pytest.raises(OptionError, match="level"):
        interval(each, user, level=1.0)


# (e) overlap, clipping, hostile inputs


def test_effective_size_by_hand() -> None:
    assert effective_size(np.array([1.0, 1.0, 1.0])) == pytest.approx(3)
    assert effective_size(np.array([3.0, 1.0])) == pytest.approx(1.6)
    assert effective_size(np.array([5.0, 0.0])) == 1
    assert effective_size(np.zeros(3)) == 0


def hand() -> LoggedData:
    """Weights 2, 2·2 = 4 in the first session; 0.5 and then over in the second; 0 from the first step on in the third."""
    logged_propensity = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    target = np.array([[1.0, 1.0], [0.5, 0.0], [0.0, 1.0]])
    return LoggedData(np.ones((3, 2)), np.array([[1, 1], [1, 0], [1, 1]], bool), logged_propensity, target, np.arange(3))


def test_clipping_and_overlap_are_reported() -> None:
    np.testing.assert_allclose(weights(hand()), [[2, 4], [0.5, 0.5], [0, 0]])
    np.testing.assert_allclose(weights(hand(), 3), [[2, 3], [0.5, 0.5], [0, 0]])
    np.testing.assert_allclose(per_decision(hand(), 1.0, 3), [5, 0.5, 0])
    seen = overlap(hand(), 3)
    assert (seen.ess, seen.zero, seen.clipped, seen.largest) == pytest.approx((3.5**2 / 9.25, 1 / 5, 1 / 3, 4))
    np.testing.assert_allclose(seen.steps, [2.5**2 / 4.25, 1])
    assert seen.mean_weight == pytest.approx(1.5)
    with pytest.raises(OptionError, match="clip"):
        weights(hand(), 0.5)


def test_ranges_hold_every_contribution() -> None:
    assert contribution_range((0, 3), 2, 1.0, (0, 10)) == (0, 60)
    assert contribution_range((-1, 3), 1, 1.0, (-1, 9)) == (-9, 27)
    assert contribution_range((1, 2), 2, 0.5, (-4, 4)) == (-12, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logged": np.zeros((3, 2))}, "logged propensities"),
        ({"logged": np.full((3, 2), np.nan)}, "logged must be finite"),
        ({"target": np.full((3, 2), 1.5)}, "target propensities"),
        ({"target": np.full((3, 2), -0.1)}, "target propensities"),
        ({"rewards": np.full((3, 2), np.nan)}, "rewards must be finite"),
        ({"rewards": np.zeros((3, 3))}, "must be"),
        ({"rewards": np.zeros((0, 2))}, "rewards must be"),
        ({"mask": np.array([[1, 1], [0, 1], [1, 1]], bool)}, "no gaps"),
        ({"q": np.zeros((3, 2))}, "q and v come together"),
        ({"user": np.zeros(2)}, "user"),
    ],
)
def test_invalid_logged_data_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(hand(), **change)


def test_missing_values_zero_overlap_and_a_wrong_discount_are_refused() -> None:
    with pytest.raises(InputError, match="needs the values"):
        doubly_robust(hand())
    with pytest.raises(InputError, match="raise its epsilon"):
        self_normalised_ips(dataclasses.replace(hand(), target=np.zeros((3, 2))))
    with pytest.raises(OptionError, match="gamma"):
        logged_return(hand(), 2.0)
