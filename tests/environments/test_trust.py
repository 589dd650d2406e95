"""For what differences a simulator is trusted, by its report card."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mbcal import Simulator, TrainingConfig, evaluate
from mbcal.environments.report_card import ReportCard
from mbcal.environments.trust import NO_CARD, simulator_trust
from mbcal.evaluation.comparison import ModelComparison, ModelResult
from mbcal.metrics import Mean
from mbcal.scoring.scorers import RandomScorer
from tests.support.batches import sessions

CARD = ReportCard(
    sessions=100, steps=400, nll=1.0, baseline_nll=1.5, accuracy=0.5, macro_f1=0.4, weighted_f1=0.4, rmse=1.0, ece=0.01,
    reliability={"confidence": [0.5], "accuracy": [0.5], "count": [400]}, real=[2.0, 2.0, 2.0, 2.0],
    simulated=[2.0, 2.1, 1.95, 2.0], error=[0.01] * 4, reached=[1.0] * 4, size=2.0, confusion=[[1]],
)  # fmt: skip
REWARDS = (0.0, 1.0, 5.0)


def test_the_difference_is_drift_and_calibration_over_the_steps_of_a_session() -> None:
    trust = simulator_trust(CARD, REWARDS)
    assert trust.drift == pytest.approx(4 * 0.1)
    assert trust.difference == pytest.approx(4 * (0.1 + 0.01 * 5))
    assert trust.share == pytest.approx(0.6 / 8)
    assert trust.covers(-0.61)
    assert not trust.covers(0.59)
    assert trust.sentence.startswith("Can be trusted for differences of 0.6 per session (7.5% of the log's reward) or more")
    assert trust.sentence.endswith(
        " or more between methods, as a rule; smaller ones may be its own error, and gaps to the log may be further off."
    )


def test_a_warning_is_due_above_five_percent() -> None:
    meaning = "at some step its mean reward is 5.0% of a step's reward away from the logged one"
    drifting = simulator_trust(CARD, REWARDS).warning or ""
    assert drifting.startswith(f"Large drift: {meaning}. Can be trusted for differences of 0.6")
    uncalibrated = simulator_trust(replace(CARD, ece=0.1), REWARDS)
    assert (uncalibrated.warning or "").startswith(
        "Large calibration error: its probabilities are 10.0% away from the frequencies of behaviours. Can be trusted for"
    )
    staying = {"real": [1.0, 1.0], "simulated": [1.0, 0.5]}
    leaving = simulator_trust(replace(CARD, staying=staying), REWARDS)
    assert leaving.drift == pytest.approx(4 * 0.1 + 0.25 * 8)
    assert (leaving.warning or "").startswith("Large drift: its sessions are 25.0% shorter than the logged ones. Can be")
    good = simulator_trust(replace(CARD, ece=0.002, simulated=[2.0, 2.02, 2.0, 2.0]), REWARDS)
    assert good.share == pytest.approx(4 * (0.02 + 0.01) / 8)
    assert good.warning is None
    assert not good.is_low


def test_shorter_sessions_add_up_less() -> None:
    """Steps that few sessions reach count neither in the drift nor fully in the length."""
    short = replace(CARD, steps=210, reached=[1.0, 1.0, 0.09, 0.01], simulated=[2.0, 2.1, 2.0, 9.0])
    assert simulator_trust(short, REWARDS).difference == pytest.approx(2.1 * 0.15)


def test_a_simulator_that_knows_nothing_is_trusted_for_nothing() -> None:
    useless = simulator_trust(replace(CARD, nll=1.5), REWARDS)
    assert useless.difference == math.inf
    assert not useless.covers(1e9)
    assert "no better than the frequencies of behaviours (NLL 1.500, of the frequencies 1.500)" in (useless.warning or "")
    unknown = simulator_trust(None, REWARDS)
    assert unknown.is_low
    assert unknown.sentence.startswith("The simulator has no report card, so nothing says how far to trust it; `simulator.")


def test_a_difference_that_is_too_small_says_why() -> None:
    def mean(value: float) -> Mean:
        return Mean(value, value - 0.1, value + 0.1, 100, 0.05)

    rewards = {"first": 8.0, "close": 8.5, "far": 9.0}
    rows = [ModelResult("sim", name, name, mean(reward), mean(reward - 8)) for name, reward in rewards.items()]
    table = ModelComparison(rows, None, 100, 0, {"sim": simulator_trust(CARD, REWARDS)}).table("sim")
    said = {row[0]: row[3] for row in table}
    assert said["close"] == "+0.500 [+0.400, +0.600] too small for this judge (within its own error) (!)"
    assert said["far"] == "+1.000 [+0.900, +1.100]"
    assert {row[1] for row in table} == {"8.000", "8.500", "9.000"}
    nothing = ModelComparison(rows, None, 100, 0, {"sim": simulator_trust(None, REWARDS)}).table("sim")
    assert all(row[1].endswith(" (!)") and (not row[3] or row[3].endswith(" (!)")) for row in nothing)


def test_evaluations_by_a_simulator_say_how_far_to_trust_it() -> None:
    known = sessions(count=60, seed=2)
    training = TrainingConfig(epochs=1, validation=0.2)
    simulator = Simulator(hidden=4, embedding=4, training=training, device="cpu").fit(known[:30])
    others, policy = known[30:], RandomScorer(0)
    unknown = evaluate(policy, simulator, others)
    assert unknown.warning == NO_CARD
    assert repr(unknown).endswith(f"per session, 30 sessions. Warning: {NO_CARD}")
    card = simulator.evaluate(others)
    assert simulator.trust == simulator_trust(card, others.behaviour_set.rewards)
    assert evaluate(policy, simulator, others).warning == simulator.trust.warning
