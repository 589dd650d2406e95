"""Propensities and values of policies along logged sessions, and estimates against roll-outs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from mbcal import Sessions
from mbcal.agents.dqn import DQNConfig
from mbcal.environments.rollout import rollout
from mbcal.errors import InputError, OptionError
from mbcal.evaluation.ope.estimate import estimate_value, logged_data
from mbcal.evaluation.ope.estimators import (
    LoggedData,
    direct,
    doubly_robust,
    per_decision,
    step_means,
    trajectory_ips,
)
from mbcal.evaluation.ope.fitted import assign_folds, fit_q_values
from mbcal.evaluation.ope.intervals import bootstrap
from mbcal.evaluation.ope.propensity import policy_choices
from mbcal.nn.config import NetConfig
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.choice import available_by_step
from mbcal.scoring.scorers import ItemScorer, RandomScorer
from mbcal.training.config import TrainingConfig
from mbcal.types import FIRST_ITEM_ROW
from tests.support.toys import CATALOG, KEYS, STEPS, SWEETS, DelayedPrize, logged, starts

Array = np.ndarray[Any, Any]


# (c) target propensities


def small_log(candidates: Array, items: Array) -> Sessions:
    base = starts(len(items))
    length = (items > 0).sum(1).astype(np.int32)
    arrays = dict(base.arrays()) | {
        "items": items.astype(np.int32),
        "behaviours": np.zeros(items.shape, np.uint8),
        "length": length,
        "candidates": candidates.astype(np.int32),
    }
    return base.like(arrays)


BY_NUMBER = ItemScorer(torch.arange(CATALOG.n_rows, dtype=torch.float32))
"""The item with the highest row is the best."""


def target_propensities(policy: Any, sessions: Any, epsilon: float, **options: Any) -> Array:
    """The propensity of each logged item under the epsilon-greedy policy, (N, T); 1 in the padding."""
    return np.where(to_numpy(sessions.mask), policy_choices(policy, sessions, **options).propensities(epsilon), 1.0)


def test_target_propensities_by_hand() -> None:
    # best first, then second best; the second session shows the worst, then the best; a step of padding
    sessions = small_log(np.array([[2, 3, 4], [2, 3, 4]]), np.array([[4, 3, 2], [2, 4, 0]]))
    expected = [[0.7 + 0.1, 0.7 + 0.15, 1.0], [0.1, 0.7 + 0.15, 1.0]]
    np.testing.assert_allclose(target_propensities(BY_NUMBER, sessions, 0.3), expected)
    np.testing.assert_allclose(target_propensities(BY_NUMBER, sessions.tensors(), 0.3, block=1), expected)
    np.testing.assert_allclose(target_propensities(to_numpy(BY_NUMBER), sessions, 0.3, in_numpy=True), expected)
    tied = ItemScorer(torch.zeros(CATALOG.n_rows))  # all alike: the first
    np.testing.assert_allclose(target_propensities(tied, sessions, 0.0), [[0, 0, 1], [1, 0, 1]])


def test_each_step_may_have_candidates_of_its_own() -> None:
    offered = np.array([[[2, 3, 0], [2, 4, 5]], [[6, 3, 2], [0, 0, 0]]])
    sessions = small_log(offered, np.array([[3, 2], [6, 0]]))
    np.testing.assert_allclose(target_propensities(BY_NUMBER, sessions, 0.6), [[0.7, 0.2], [0.6, 1]])


def test_what_was_shown_opens_again_after_everything_was() -> None:
    sessions = small_log(np.array([[2, 3]]), np.array([[2, 3, 3, 2]]))
    np.testing.assert_allclose(target_propensities(BY_NUMBER, sessions, 0.5), [[0.25, 1, 0.75, 1]])


def test_propensities_sum_to_one_over_candidates() -> None:
    sessions = starts(20)
    policy = RandomScorer(3)
    for step in range(3):
        total = np.zeros(20)
        for place in range(12):
            other = sessions.items.copy()
            other[:, step] = sessions.candidates[:, place]  # type: ignore[index]
            open_here = to_numpy(available_by_step(sessions.candidates, sessions.items)[step])[:, place]
            sound = np.flatnonzero(open_here)
            cut = {name: array[sound] for name, array in sessions.arrays()}
            cut |= {"items": np.where(np.arange(STEPS) <= step, other[sound], 0).astype(np.int32)}
            cut |= {"length": np.full(len(sound), step + 1, np.int32)}
            if len(sound):
                total[sound] += target_propensities(policy, sessions.like(cut), 0.4)[:, step]
        np.testing.assert_allclose(total, 1)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_policy_on_its_own_sessions_has_the_propensities_it_was_rolled_out_with(epsilon: float) -> None:
    policy = RandomScorer(5)
    served = rollout(policy, DelayedPrize(), starts(300), epsilon=epsilon, seed=2)
    np.testing.assert_allclose(target_propensities(policy, served, epsilon), served.propensities, rtol=1e-6)


def test_an_item_that_was_not_available_is_refused() -> None:
    sessions = small_log(np.array([[2, 3, 4], [2, 3, 4]]), np.array([[4, 3], [2, 5]]))
    with pytest.raises(InputError, match="session 1 shows an item at step 2"):
        policy_choices(BY_NUMBER, sessions)
    with pytest.raises(InputError, match="no candidates"):
        policy_choices(BY_NUMBER, dataclasses.replace(sessions, candidates=None))


# (d) the toy world, with fitted values

KEY_FIRST = ItemScorer(torch.tensor([0.0] * FIRST_ITEM_ROW + [1.0] * KEYS + [0.5] * SWEETS + [0.0] * (24 - KEYS - SWEETS)))
"""Both keys, then sweets."""
SWEETS_ONLY = ItemScorer(torch.tensor([0.0] * (FIRST_ITEM_ROW + KEYS) + [1.0] * SWEETS + [0.5] * (24 - KEYS - SWEETS)))
QUICK = DQNConfig(
    net=NetConfig(hidden=16, embedding=16), training=TrainingConfig(epochs=25, batch=64, learning_rate=5e-3, warmup=10)
)
EPSILON = 0.5


def truth(policy: Any) -> float:
    served = rollout(policy, DelayedPrize(), starts(20_000, seed=9), epsilon=EPSILON, seed=9)
    return float(served.rewards.sum(1).mean())


@pytest.fixture(scope="module")
def random_log() -> Sessions:
    return logged(1500)


@pytest.fixture(scope="module")
def key_first(random_log: Sessions) -> LoggedData:
    return logged_data(KEY_FIRST, random_log, epsilon=EPSILON, config=QUICK)


def test_fitted_values_come_near_the_truth(key_first: LoggedData) -> None:
    assert direct(key_first).mean() == pytest.approx(truth(KEY_FIRST), rel=0.1)


def test_doubly_robust_is_less_noisy_and_right(key_first: LoggedData) -> None:
    robust = doubly_robust(key_first)
    assert robust.var() < per_decision(key_first).var() / 2 < trajectory_ips(key_first).var() / 2
    low, high = bootstrap(robust[None], key_first.user, level=0.999)[0]
    assert low <= truth(KEY_FIRST) <= high


def test_mean_values_help_a_little(random_log: Sessions) -> None:
    evidence = logged_data(KEY_FIRST, random_log, epsilon=EPSILON, values="means")
    assert doubly_robust(evidence).var() < trajectory_ips(evidence).var()
    other = random_log.user % 2
    first, second = np.where(other[:, None] == 0, 2.0, 5.0), np.ones((len(other), 1), bool)
    plain = LoggedData(first, second, second, second, random_log.user)
    np.testing.assert_array_equal(step_means(plain, other)[0], 7 - first)  # a fold sees the others alone


def test_all_estimators_with_intervals(random_log: Sessions) -> None:
    few = random_log[:400]
    estimates = estimate_value(KEY_FIRST, few, epsilon=EPSILON, clip=20.0, values="means", resamples=200)
    by_key = {(estimate.of, estimate.name, estimate.method): estimate for estimate in estimates}
    assert len(by_key) == len(estimates) == 7 + 1 + 7
    policy, log, gap = (
        by_key[key] for key in (("policy", "dr", "bca"), ("log", "mean", "bca"), ("difference", "dr", "bca"))
    )
    assert gap.value == pytest.approx(policy.value - log.value)
    assert log.value == pytest.approx(few.rewards.sum(1).mean())
    assert gap.low <= gap.value <= gap.high
    assert policy.ess < log.ess == policy.n == 400
    assert policy.clip == 20.0
    assert policy.weight == gap.weight != 1
    assert 0 < policy.clipped < 1
    sure = by_key["difference", "pdis", "empirical bernstein"]
    assert sure.low < by_key["difference", "pdis", "bca"].low
    assert "of 400 sessions effective" in str(policy)
    assert estimates == estimate_value(KEY_FIRST, few, epsilon=EPSILON, clip=20.0, values="means", resamples=200)


def test_two_policies_are_compared_session_by_session(random_log: Sessions) -> None:
    estimates = estimate_value(KEY_FIRST, random_log, baseline=SWEETS_ONLY, epsilon=EPSILON, values="means", resamples=300)
    by_key = {(estimate.of, estimate.name): estimate for estimate in estimates}
    gap = by_key["difference", "wpdis"]
    assert gap.value == pytest.approx(by_key["policy", "wpdis"].value - by_key["baseline", "wpdis"].value)
    same = estimate_value(KEY_FIRST, random_log, baseline=KEY_FIRST, epsilon=EPSILON, values="none", resamples=300)
    assert all(value.low == value.value == value.high == 0 for value in same if value.of == "difference")
    assert {value.name for value in same} == {"ips", "snips", "pdis", "wpdis", "mean"}


def test_no_fold_learns_from_its_own_users() -> None:
    users = np.repeat(np.arange(50, dtype=np.int32), 3)
    fold = assign_folds(users, 5, seed=1)
    assert np.array_equal(np.bincount(fold), [30] * 5)
    assert all(len(np.unique(fold[users == user])) == 1 for user in range(50))
    with pytest.raises(InputError, match="folds"):
        assign_folds(users, 51, seed=1)
    log = logged(60)
    half = assign_folds(log.user, 2, seed=0) == 0
    how = dataclasses.replace(QUICK, training=TrainingConfig(epochs=1, batch=16))
    before = fit_q_values(log, KEY_FIRST, epsilon=EPSILON, config=how, device="cpu")
    turned = {**dict(log.arrays()), "behaviours": np.where(half[:, None], 2, log.behaviours).astype(np.uint8)}
    after = fit_q_values(log.like(turned), KEY_FIRST, epsilon=EPSILON, config=how, device="cpu")
    # the first step's value knows nothing of the session yet: that of the first fold depends on the other fold alone
    np.testing.assert_array_equal(before.v[half, 0], after.v[half, 0])
    assert not np.allclose(before.v[~half, 0], after.v[~half, 0])


def test_candidates_of_each_step_give_the_values_of_the_same_candidates_given_once() -> None:
    log = logged(60)
    once = torch.from_numpy(log.candidates)
    each = torch.stack([once * left for left in available_by_step(once, torch.from_numpy(log.items))], 1).numpy()
    how = dataclasses.replace(QUICK, training=TrainingConfig(epochs=1, batch=16))
    one, other = (
        fit_q_values(sessions, KEY_FIRST, epsilon=EPSILON, config=how, device="cpu")
        for sessions in (log, log.like({**dict(log.arrays()), "candidates": each}))
    )
    np.testing.assert_allclose(one.q, other.q, atol=1e-5)
    np.testing.assert_allclose(one.v, other.v, atol=1e-5)


def test_sessions_and_options_that_do_not_fit_are_refused(random_log: Sessions) -> None:
    with pytest.raises(InputError, match="have no propensities"):
        estimate_value(KEY_FIRST, dataclasses.replace(random_log, propensities=None), epsilon=0.1)
    with pytest.raises(OptionError, match="epsilon"):
        target_propensities(KEY_FIRST, random_log, 2.0)
    with pytest.raises(OptionError, match="values"):
        estimate_value(KEY_FIRST, random_log, epsilon=0.1, values="guess")  # type: ignore[arg-type]
