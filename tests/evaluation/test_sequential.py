"""Comparison of two versions at every look: formulas on small cases, coverage and false promotions by replication."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mbcal.evaluation.sequential import TUNED_SESSIONS, UserSums, boundary, compare_means, sessions_needed
from mbcal.metrics import mean_interval
from mbcal.release.judge import CanaryConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trials() -> ModuleType:
    spec = importlib.util.spec_from_file_location("canary_benchmark", ROOT / "benchmarks/canary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sums_of(seed: int, sessions: int, users: int = 40, shift: float = 0.0) -> tuple[UserSums, UserSums]:
    rng = np.random.default_rng(seed)
    user, is_a = rng.integers(users, size=sessions), rng.random(sessions) < 0.3
    values = rng.normal(5, 2, sessions) + rng.normal(0, 1, users)[user] + shift * is_a
    a, b = (UserSums.of(values[chosen], user[chosen], users) for chosen in (is_a, ~is_a))
    return a, b


def test_means_are_those_of_the_sessions() -> None:
    rng = np.random.default_rng(0)
    user, values = rng.integers(20, size=300), rng.normal(5, 2, 300)
    expected, actual = mean_interval(values, user), UserSums.of(values, user, 25).mean()
    assert actual.count == 300
    assert (actual.mean, actual.low, actual.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert UserSums.of(values[:0], user[:0], 3).mean().count == 0


def test_the_jackknife_leaves_out_whole_users() -> None:
    a, b = sums_of(1, 600, shift=3.0)
    difference = compare_means(a, b)
    leave_out = []
    for user in range(40):
        keep = np.arange(40) != user
        leave_out.append(a.total[keep].sum() / a.sessions[keep].sum() - b.total[keep].sum() / b.sessions[keep].sum())
    value = a.total.sum() / a.sessions.sum() - b.total.sum() / b.sessions.sum()
    assert float(difference.value) == pytest.approx(value)
    assert float(difference.stderr) >= np.sqrt(39 / 40 * np.square(np.asarray(leave_out) - value).sum()) - 1e-12


def test_users_with_many_correlated_sessions_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    taste = rng.normal(0, 3, 30)
    user = np.repeat(np.arange(30), 20)
    values, is_a = taste[user] + rng.normal(0, 0.1, 600), np.repeat(np.arange(30) % 2 == 0, 20)  # one version per user
    a, b = (UserSums.of(values[chosen], user[chosen], 30) for chosen in (is_a, ~is_a))
    single = compare_means(*(UserSums.of(values[chosen], np.arange(600)[chosen], 600) for chosen in (is_a, ~is_a)))
    assert float(compare_means(a, b).stderr) > 3.5 * float(single.stderr)


def test_few_users_with_many_sessions_who_all_met_one_version_tell_of_no_difference() -> None:
    """18 bots earn nothing in a quarter of all sessions; a version with a tenth of users often has none of them."""
    rng = np.random.default_rng(7)
    users, bots = 2000, np.arange(2000) < 18
    sessions = np.where(bots, 80.0, 2.0)
    means = np.where(bots, 0.0, rng.normal(5, 1, (400, users)))
    is_a = rng.random((400, users)) < 0.1
    a, b = (
        UserSums(sessions * chosen, sessions * means * chosen, sessions * (means**2 + 1) * chosen)
        for chosen in (is_a, ~is_a)
    )
    difference = compare_means(a, b)
    assert np.mean(difference.lower(0.05) > 0) <= 0.05  # 0.165 by the jackknife alone
    assert np.mean(difference.upper(0.1) < 0) <= 0.1
    low, high = difference.interval()
    assert np.mean((low <= 0) & (high >= 0)) >= 0.93


def test_limits_are_infinite_where_nothing_can_be_said() -> None:
    few_users = sums_of(3, 500, users=5)
    few_sessions = sums_of(3, 30)
    one_user = UserSums(*(np.r_[array, np.zeros(40)] for array in ([50.0], [50.0], [50.0])))
    everyone = UserSums(*(np.ones(41) for _ in range(3)))
    for a, b in (few_users, few_sessions, (one_user, everyone)):
        difference = compare_means(a, b)
        assert difference.lower() == -np.inf
        assert difference.upper() == np.inf
        assert sessions_needed(difference, 500, 0.1) == np.inf


def test_the_limits_at_all_looks_contain_those_at_one() -> None:
    difference = compare_means(*sums_of(4, 2000))
    low, high = difference.interval()
    assert difference.lower(0.025) < low < difference.value < high < difference.upper(0.025)
    assert difference.lower(0.05) > difference.lower(0.025)


def test_a_brownian_motion_rarely_crosses_the_boundary() -> None:
    rng = np.random.default_rng(5)
    steps = np.diff(np.geomspace(1, 20_000, 500), prepend=0.0)
    path, crossed = np.zeros(4000), np.zeros(4000, np.bool_)
    for time, step in zip(np.cumsum(steps), steps, strict=True):
        path += rng.normal(0, np.sqrt(step), 4000)
        crossed |= path / np.sqrt(time) > boundary(np.asarray(time), 0.05)
    assert 0.02 < crossed.mean() <= 0.05
    best = boundary(np.asarray([TUNED_SESSIONS / 100, TUNED_SESSIONS]), 0.05)
    assert best[1] < 2.8 < best[0]


def test_rewards_that_were_not_met_keep_a_limit_low() -> None:
    a, b = sums_of(4, 2000, shift=1.0)
    known = compare_means(a, b)
    assert known.safe_lower(0.05) == known.lower(0.05) > 0
    margins = []
    for above in (100.0, 200.0):
        difference = compare_means(a, b, 0.0, above)
        assert difference.lower(0.05) == known.lower(0.05)
        margins.append(float(difference.lower(0.05) - difference.safe_lower(0.05)))
    assert margins[1] == pytest.approx(2 * margins[0])
    assert margins[0] >= np.log(1 / 0.05) * 100 / b.sessions.sum()  # as many as hide with a probability of 5%
    assert (
        compare_means(a, b, 100.0, 0.0).safe_lower() < compare_means(a, b, 0.0, 100.0).safe_lower()
    )  # a has fewer sessions


def test_weights_count_as_much_as_sessions() -> None:
    values, users = np.arange(6.0), np.array([0, 0, 1, 1, 2, 2])
    plain, alike = UserSums.of(values, users, 3), UserSums.of(values, users, 3, np.full(6, 0.2))
    for name in ("sessions", "total", "squares"):
        assert getattr(alike, name) == pytest.approx(getattr(plain, name))
    halved = UserSums.of(values, users, 3, np.array([1.0, 1, 1, 0, 0, 0]))
    assert halved.sessions.tolist() == [2.0, 1.0, 0.0]
    assert halved.mean().mean == 1.0


def test_a_canary_without_rare_purchases_is_not_promoted(trials: ModuleType) -> None:
    """It earns 20% more in every session and loses purchases worth 50% of the reward; by `lower` it would be promoted."""
    for purchases, share in (((0.005, 100.0), 0.5), ((0.001, 500.0), 0.5), ((0.005, 100.0), 0.9)):
        kind = trials.Trials(effect=0.2, share=share, purchases=purchases, users=300, sessions=2000)
        ends = trials.replicate(kind, 60, CanaryConfig(), growth=1.05)
        assert ends.promoted.mean() <= 0.05
        assert ends.withdrawn.mean() <= 0.5


def test_missing_sessions_are_about_right() -> None:
    shift = 0.5
    a, b = sums_of(6, 1500)
    needed = sessions_needed(compare_means(a, b), 1500, shift, alpha=0.05)
    seen = [float(compare_means(*sums_of(seed, int(needed), shift=shift)).lower(0.05)) > 0 for seed in range(100)]
    assert 0.6 <= np.mean(seen) <= 0.95


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rewards": "rare"},
        {"rewards": "rare", "share": 0.9},
        {"rewards": "zeros, heavy tail", "share": 0.5},
        {"rewards": "skewed", "users": 15, "activity": 1.0},
        {"disagreement": 0.5, "users": 60, "share": 0.5},
    ],
    ids=str,
)
def test_equal_versions_are_rarely_promoted_and_intervals_cover(trials: ModuleType, settings: dict[str, float]) -> None:
    """Hundreds of looks at each of 200 trials: zero-inflated, heavy-tailed, few users, users with many sessions."""
    kind = trials.Trials(**{"users": 200, "sessions": 2500, **settings})
    config = CanaryConfig(promote_after=1)
    assert len(trials.looks(2500, 1.004)) > 200
    ends = trials.replicate(kind, 200, config, growth=1.004)
    assert ends.promoted.mean() <= 0.05
    assert ends.withdrawn.mean() <= 0.1
    assert ends.wrong.mean() <= 0.05


def test_better_ones_are_promoted_and_worse_ones_withdrawn(trials: ModuleType) -> None:
    config = CanaryConfig(promote_after=100)
    better, worse = (
        trials.replicate(trials.Trials(effect=effect, share=0.5, users=3000, sessions=4000), 100, config)
        for effect in (0.15, -0.15)
    )
    assert better.promoted.mean() >= 0.95
    assert worse.withdrawn.mean() >= 0.95
    assert better.withdrawn.mean() + worse.promoted.mean() <= 0.02
    assert np.median(worse.sessions) < np.median(better.sessions) < 2000
    assert better.sessions.min() * 0.5 >= 70  # 100 sessions of the canary, or nearly as many by chance
