"""The benchmark of estimated advantages: its statistics by hand, and its identities in a small world."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from mbcal import MBCAL, MCPE, NetConfig, NewsfeedConfig, Store, TrainingConfig, prepare_newsfeed
from mbcal.evaluation.judges import true_environment

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import advantages

NET, QUICK = NetConfig(hidden=8, embedding=8), TrainingConfig(epochs=1)


def test_systematic_errors_leave_chance_out() -> None:
    errors = np.array([[[1.0]], [[3.0]]])  # two draws of one item: mean 2, variance 2
    assert advantages.systematic(errors) == pytest.approx((4.0 - 2.0 / 2) ** 0.5)
    assert advantages.systematic(np.array([[[1.0]], [[-1.0]]])) == 0.0  # nothing but chance
    draws = np.random.default_rng(0).normal(0.5, 3.0, (16, 4000, 1))
    assert advantages.systematic(draws) == pytest.approx(0.5, abs=0.05)


def test_ranks_are_compared_within_a_state() -> None:
    truth = np.array([[1.0, 2.0, 3.0], [10.0, 30.0, 20.0]])
    assert advantages.rank_correlation(truth, truth**3 + np.array([[5.0], [-5.0]])) == pytest.approx(1.0)
    assert advantages.rank_correlation(truth, -truth) == pytest.approx(-1.0)
    assert advantages.rank_correlation(truth, np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])) == pytest.approx(0.75)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[advantages.Truth, Store]:
    store = prepare_newsfeed(tmp_path_factory.mktemp("world") / "feed", NewsfeedConfig(200, 100))
    world = true_environment(store, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advantages, "DRAWS", 3)
        patch.setattr(advantages, "ORACLE_DRAWS", 1)
        states = advantages.choose_states(world, store.sessions("test").tensors("cpu"), 12, 3)
        return advantages.Truth.of(states), store


def test_states_compare_different_items_under_the_same_past(truth: tuple[advantages.Truth, Store]) -> None:
    states, logged = truth[0].states, truth[0].logged
    assert states.items.shape == (12, 3)
    assert all(len(set(row)) == 3 for row in states.items.tolist())
    for column, batch in enumerate(logged[0]):
        for row, step in enumerate(states.step.tolist()):
            assert batch.items[row, :step].tolist() == states.sessions.items[row, :step].tolist()
            assert int(batch.items[row, step]) == int(states.items[row, column])


def test_returns_are_unbiased_and_the_bias_of_the_label_has_two_terms(truth: tuple[advantages.Truth, Store]) -> None:
    known, store = truth
    agent = MBCAL(net=NET, training=QUICK, device="cpu").fit(store.sessions("train"))
    labels, unmasked = known.labels(agent), known.predicted_futures(agent)
    assert labels is not None
    bias, error, masked = (
        advantages.centred(x) for x in (labels - known.futures, unmasked - known.futures, unmasked - labels)
    )
    assert np.allclose(bias, error - masked, atol=1e-6)
    row = known.measure(agent)
    assert row["label bias"] * row["advantage"] == pytest.approx(advantages.systematic(bias))
    assert set(row) == set(advantages.COLUMNS)
    returns = known.labels(MCPE(net=NET, training=QUICK, gamma=1.0, device="cpu").fit(store.sessions("train")))
    assert returns is not None
    later = np.asarray([[(b.rewards * known.states.is_later).sum(1).numpy() for b in batches] for batches in known.logged])
    step = known.states.step.unsqueeze(1)
    now = np.asarray([[b.rewards.gather(1, step).squeeze(1).numpy() for b in batches] for batches in known.logged])
    assert np.allclose(returns + known.states.instant(), (later + now).transpose(0, 2, 1), atol=1e-4)
