"""Does it pay here? The verdict, and the share of the future that the present item moves."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mbcal import MBCAL, MBCALConfig, NetConfig, NewsfeedConfig, TrainingConfig, prepare, prepare_newsfeed
from mbcal.cli.diagnose import print_diagnosis
from mbcal.data.cutting import SessionConfig
from mbcal.evaluation.diagnose import Diagnosis, dependence, diagnose, effective_share, length_share
from mbcal.metrics import Mean
from mbcal.training.selection import ShownEvidence
from tests.support.logs import Row, table, write_rows
from tests.support.toys import logged


def mean(value: float, width: float = 0.1) -> Mean:
    return Mean(value, value - width, value + width, 100, width / 2)


FOUND = Diagnosis(0.3, 0.1, mean(50.0), mean(52.0), mean(2.0), 0.99, 40.0, None, ShownEvidence(0.02, 0.01))


def test_what_is_printed_names_no_behaviour_that_a_log_may_lack(capsys: pytest.CaptureFixture[str]) -> None:
    print_diagnosis(FOUND)
    printed = " ".join(capsys.readouterr().out.split())
    assert "being shown counts for 2% of the best response" in printed
    assert "like" not in printed


def test_the_verdict_in_words() -> None:
    assert FOUND.pays
    interval = "+4.0% [+3.8, +4.2] in simulation (interval of sampling only)"
    assert FOUND.verdict == f"Long-term optimisation is worth trying: {interval}."
    for trusted, ending in ((1.5, " Trust."), (2.5, " Trust. The difference, +2, is within that.")):
        judged = dataclasses.replace(FOUND, trusted=trusted, trust="Trust.")
        assert judged.verdict == f"{FOUND.verdict}{ending}"
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


def test_the_whole_of_it_on_a_small_store(tmp_path: Path) -> None:
    store = prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=300, items=100), SessionConfig(horizon=5, history=5))
    found = diagnose(store, training=TrainingConfig(epochs=1), sessions=40, device="cpu")
    assert 0 < found.coverage <= 1
    assert found.effective is not None
    assert 0 < found.effective <= 1
    assert found.gap.mean == pytest.approx(found.far_sighted.mean - found.myopic.mean, abs=1e-4)
    assert found.unseen < 0.05
    assert found.trust.startswith("The simulator ")  # which was fitted and tested here
    assert f" {found.trust}" in found.verdict
    assert found.length_share == 0.0  # all sessions of the newsfeed are full
    assert sum(outcome["sessions"] for outcome in found.length_by_outcome) == 300


def test_reward_due_to_length_by_hand(tmp_path: Path) -> None:
    rows = [Row(f"u{k}", f"i{step}", 1_700_000_000 + step, "click") for k in range(30) for step in range(1 + k % 5)]
    store = prepare(table(write_rows(tmp_path / "log.csv", rows)), tmp_path / "store", SessionConfig(split=(0, 1, 0)))
    sessions = store.sessions("train")
    assert length_share(sessions) == pytest.approx(1.0)  # a click is worth 1, so that reward is length
    mixed = replace(sessions, behaviours=np.where(sessions.mask, (sessions.user[:, None] % 2).astype(np.uint8), 0))
    expected = np.corrcoef(mixed.length, mixed.rewards.sum(1))[0, 1] ** 2
    assert 0.05 < expected < 0.9
    assert length_share(mixed) == pytest.approx(expected)
    assert length_share(sessions[sessions.length == 3]) == 0.0


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
