"""Metrics against scikit-learn, scipy and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from mbcal.metrics import accuracy, confusion, f1_scores, mean_interval, reliability, t_quantile


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 6, 12])
def test_f1_and_accuracy_equal_scikit_learn(classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, classes, 500).astype(np.uint8)
    predicted = np.where(draw.random(500) < 0.4, truth, draw.integers(0, classes, 500))
    if seed == 0:
        predicted[predicted == 1] = 0  # a class that is never predicted
    if seed == 1:
        truth[truth == 1], predicted[predicted == 1] = 0, 0  # one that is not there at all
    table = confusion(truth, predicted, classes)
    assert np.array_equal(table, confusion_matrix(truth, predicted, labels=range(classes)))
    macro, weighted = f1_scores(table)
    assert macro == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0))
    assert weighted == pytest.approx(f1_score(truth, predicted, average="weighted", zero_division=0))
    assert accuracy(table) == pytest.approx(accuracy_score(truth, predicted))


def test_calibration_by_hand() -> None:
    sure = np.array([0.55, 0.55, 0.95, 0.95, 1.0])
    right = np.array([True, False, True, True, False])
    found = reliability(sure, right, bins=10)
    assert found.count.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 0, 3]
    assert found.confidence[5] == pytest.approx(0.55)
    assert found.accuracy[9] == pytest.approx(2 / 3)
    assert found.error == pytest.approx((2 * 0.05 + 3 * abs(2.9 / 3 - 2 / 3)) / 5)


def test_a_calibrated_model_has_no_error() -> None:
    draw = np.random.default_rng(0)
    sure = draw.uniform(0.2, 1, 200_000)
    assert reliability(sure, draw.random(200_000) < sure).error < 0.01
    assert reliability(sure, draw.random(200_000) < sure - 0.15).error == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 30, 1000])
def test_student_quantiles(freedom: int) -> None:
    for probability in (0.95, 0.975):
        assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=0.01)


def test_intervals_cover_the_truth_when_users_are_alike() -> None:
    """Sessions of one user share a taste: only the clustered interval keeps its promise."""
    draw = np.random.default_rng(0)
    clustered, plain = 0, 0
    for _ in range(1000):
        taste = draw.normal(size=40)
        users = np.repeat(np.arange(40), 5)
        values = taste[users] + draw.normal(size=200)
        for groups in (users, None):
            found = mean_interval(values, groups)
            inside = found.low <= 0 <= found.high
            clustered, plain = clustered + (inside and groups is not None), plain + (inside and groups is None)
    assert 930 <= clustered <= 970
    assert plain < 800


def test_interval_without_groups_is_the_textbook_one() -> None:
    values = np.random.default_rng(1).normal(3, 2, 50)
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 49, values.mean(), stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high), rel=1e-3)
    assert found.count == 50


def test_one_user_alone_says_nothing() -> None:
    found = mean_interval(np.array([1.0, 2.0]), np.array([7, 7]))
    assert (found.mean, found.low, found.high) == (1.5, -np.inf, np.inf)
