"""Statistics against scipy, brute force and known truths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from mbcal.evaluation.significance import compare_to, holm, kendall_tau, paired_difference, rounds_to
from mbcal.metrics import mean_interval


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_keeps_the_family_wise_error() -> None:
    """Of families of ten true nulls, at most about one in twenty has any rejection."""
    draw = np.random.default_rng(0)
    wrong = sum(min(holm(draw.uniform(size=10).tolist())) < 0.05 for _ in range(2000))
    assert 60 <= wrong <= 140


def test_paired_test_on_known_shifts() -> None:
    draw = np.random.default_rng(1)
    users = np.repeat(np.arange(200), 3)
    base = draw.normal(10, 3, 600) + draw.normal(0, 2, 200)[users]
    better = base + 0.5 + draw.normal(0, 1, 600)
    gap, p = paired_difference(better, base, users)
    assert gap.low < 0.5 < gap.high
    assert p < 1e-6
    assert paired_difference(base, base, users)[1] == 1.0
    unpaired = stats.ttest_ind(better, base).pvalue
    assert p < unpaired / 100  # common noise makes it sharp


def test_paired_test_has_its_size() -> None:
    draw, rejected = np.random.default_rng(2), 0
    users = np.repeat(np.arange(50), 4)
    for _ in range(1000):
        shared = draw.normal(0, 1, 50)[users]  # the difference too is alike within a user
        rejected += paired_difference(draw.normal(size=200) + shared, draw.normal(size=200), users)[1] < 0.05
    assert 30 <= rejected <= 80


def test_seeds_are_averaged_session_by_session() -> None:
    draw = np.random.default_rng(3)
    first, second, users = draw.normal(size=(3, 40)), draw.normal(size=(3, 40)), np.arange(40)
    gap, _ = paired_difference(first, second, users)
    assert gap.mean == pytest.approx((first.mean(0) - second.mean(0)).mean())
    under_way, _ = paired_difference(first, second[:2], users)  # one method has a seed more than the other so far
    assert under_way.mean == pytest.approx((first.mean(0) - second[:2].mean(0)).mean())


def test_against_asks_one_family_of_questions() -> None:
    draw, users = np.random.default_rng(4), np.arange(300)
    base = draw.normal(size=300)
    rewards = {"base": base, "same": base + 0.01 * draw.normal(size=300), "more": base + 1}
    found = compare_to("base", rewards, users)
    assert set(found) == {"same", "more"}
    assert found["more"].adjusted < 1e-6
    assert found["same"].adjusted >= found["same"].p


def bootstrap(values: np.ndarray, users: np.ndarray, seed: int, draws: int = 400) -> tuple[float, float]:
    """The reference implementation: users resampled with all their sessions, percentiles of the mean."""
    _, index = np.unique(users, return_inverse=True)
    totals, counts = np.bincount(index, values), np.bincount(index)
    picked = np.random.default_rng(seed).integers(0, len(totals), (draws, len(totals)))
    low, high = np.quantile(totals[picked].sum(1) / counts[picked].sum(1), [0.025, 0.975])
    return float(low), float(high)


def test_intervals_cover_the_truth_and_agree_with_the_bootstrap() -> None:
    draw, inside, inside_twin, ratios = np.random.default_rng(5), 0, 0, []
    for trial in range(300):
        taste = draw.normal(size=60)
        users = np.repeat(np.arange(60), 4)
        values = taste[users] + draw.normal(size=240)
        found, (low, high) = mean_interval(values, users), bootstrap(values, users, trial)
        inside, inside_twin = inside + (found.low <= 0 <= found.high), inside_twin + (low <= 0 <= high)
        ratios.append((found.high - found.low) / (high - low))
    assert 270 <= inside <= 296
    assert 265 <= inside_twin <= 296
    assert np.mean(ratios) == pytest.approx(1, abs=0.07)


def test_tau_equals_scipy_and_brute_force() -> None:
    draw = np.random.default_rng(6)
    a, b = draw.normal(size=9), draw.normal(size=9)
    assert kendall_tau(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)
    pairs = [(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])) for i, j in itertools.combinations(range(9), 2)]
    assert kendall_tau(a, b) == pytest.approx(np.mean(pairs))
    assert kendall_tau([1, 2, 3], [1, 2, 3]) == 1
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1


def test_rounds_to_the_end_of_a_curve() -> None:
    assert rounds_to([50, 90, 99.5, 100]) == 3
    assert rounds_to([99.5, 90, 100]) == 3  # it must stay there
    assert rounds_to([100]) == 1
    assert rounds_to([]) is None
