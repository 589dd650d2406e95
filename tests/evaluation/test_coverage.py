"""Whether a policy stays within what the log covers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mbcal.environments.trust import Trust
from mbcal.evaluation.comparison import ModelComparison, ModelResult
from mbcal.evaluation.coverage import Coverage, coverage
from mbcal.metrics import mean_interval


def test_shares_by_hand() -> None:
    """Of 100 served steps, 10 show an item never logged, 40 one that is logged 100 times as rarely, 50 the usual one."""
    logged = np.array([0, 0, 0, 4, 996])
    served = np.array([0, 0, 10, 40, 50])
    found = coverage(served, logged)
    assert found == Coverage(rare=0.5, shifted=0.5)
    assert found.is_low


def test_the_log_itself_is_covered() -> None:
    logged = np.array([0, 0, 30, 40, 50])
    assert coverage(logged, logged) == Coverage(rare=0.0, shifted=0.0)
    assert not coverage(logged, logged).is_low


def test_a_policy_that_shows_one_item_to_all_leaves_the_log() -> None:
    logged = np.array([0, 0, *[10] * 100])
    served = np.zeros(102, np.int64)
    served[7] = 1_000
    found = coverage(served, logged)
    assert (found.rare, found.shifted) == (0.0, 1.0)
    assert "100% are items that it shows more than 10 times as often as the log" in found.warning("model")


def test_a_comparison_warns_of_the_models_that_leave_the_log_once_each() -> None:
    reward = mean_interval(np.array([1.0, 2.0]), np.arange(2))
    row = ModelResult("first judge", "bold", "mbcal", reward, reward)
    comparison = ModelComparison(
        [
            replace(row, coverage=Coverage(rare=0.0, shifted=0.6)),
            replace(row, coverage=Coverage(rare=0.0, shifted=0.8), judge="second judge"),
            replace(row, coverage=Coverage(rare=0.0, shifted=0.1), model="careful"),
            replace(row, coverage=None, model="in a world"),
            replace(row, coverage=Coverage(rare=0.0, shifted=0.9), judge="truth", model="judged by the truth"),
        ],
        logged=None,
        sessions=2,
        seed=0,
        trust={judge: Trust(0.1, 0.01, 0.0, "") for judge in ("first judge", "second judge")},
    )
    assert len(comparison.warnings) == 1
    assert comparison.warnings[0].startswith("bold leaves what the log covers: 0% ")
    assert "80% are items" in comparison.warnings[0]
    assert f"Warning: {comparison.warnings[0]}" in str(comparison)


def test_nothing_served_is_covered() -> None:
    assert coverage(np.zeros(4, np.int64), np.zeros(4, np.int64)) == Coverage(0.0, 0.0)
    assert coverage(np.array([0, 0, 1]), np.zeros(3, np.int64)).rare == pytest.approx(1.0)
