"""Does it pay here? The verdict, and the share of the future that the present item moves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mbcal import MBCAL, MBCALConfig, NetConfig, NewsfeedConfig, TrainingConfig, prepare_newsfeed
from mbcal.data.cutting import SessionConfig
from mbcal.evaluation.diagnose import Diagnosis, dependence, diagnose, effective_share
from mbcal.metrics import Mean
from mbcal.training.selection import ShownEvidence
from tests.support.toys import logged


def mean(value: float, width: float = 0.1) -> Mean:
    return Mean(value, value - width, value + width, 100, width / 2)


FOUND = Diagnosis(0.3, 0.1, mean(50.0), mean(52.0), mean(2.0), 0.99, 40.0, None, ShownEvidence(0.02, 0.01))


def test_the_verdict_in_words() -> None:
    assert FOUND.pays
    assert FOUND.verdict == "Long-term optimisation is worth trying: +4.0% [+3.8, +4.2] in simulation."
    for changes, said in (
        ({"gap": mean(0.0)}, "The present item hardly changes the future here"),
        ({"gap": mean(-1.0)}, "Not worth trying: a far-sighted policy earns less"),
        ({"share": 0.05}, "Undecided"),
        ({"coverage": 0.5}, "Only 50% of what is shown is well covered"),
    ):
        other = dataclasses.replace(FOUND, **changes)  # type: ignore[arg-type]
        assert said in other.verdict
        assert other.pays == (list(changes) == ["coverage"])


def test_dependence_is_found_where_it_is_and_not_where_it_is_not() -> None:
    training = TrainingConfig(epochs=20, batch=64, learning_rate=3e-3)
    config = MBCALConfig(gamma=0.95, net=NetConfig(hidden=16, embedding=16), training=training)
    for noise in (False, True):
        agent = MBCAL(config, "cpu").fit(logged(1200, noise=noise))
        found, chance = dependence(agent, logged(1200, seed=9, noise=noise), seed=0)
        if noise:
            assert found < 0.005
        else:
            assert found > 0.9
            assert chance < 0.01


def test_the_whole_of_it_on_a_small_store(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    store = prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=300, items=100), SessionConfig(horizon=5, history=5))
    found = diagnose(store, training=TrainingConfig(epochs=1), sessions=40, device="cpu")
    assert 0 < found.coverage <= 1
    assert found.effective is not None
    assert 0 < found.effective <= 1
    assert found.gap.mean == pytest.approx(found.far_sighted.mean - found.myopic.mean, abs=1e-4)


def test_effective_share_by_hand() -> None:
    known = logged(2)
    assert known.propensities is not None
    assert effective_share(known) == pytest.approx(1)  # logged by chance: every weight is 1
    chances = known.propensities.copy()
    chances[0] /= 2
    weights = np.concatenate([np.full(6, 2.0), np.ones(6)])
    other = dataclasses.replace(known, propensities=chances)
    assert effective_share(other) == pytest.approx(weights.sum() ** 2 / (12 * (weights**2).sum()))
    assert effective_share(dataclasses.replace(known, propensities=None)) is None
