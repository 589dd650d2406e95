"""Simulators: fitted on their own users, judged on others, and never moved by it."""

from __future__ import annotations

import copy
import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, root_mean_squared_error

from mbcal import Newsfeed, Sessions, Simulator
from mbcal.data.cutting import SessionConfig
from mbcal.environments.newsfeed.log import generate_sessions
from mbcal.environments.report_card import ReportCard
from mbcal.environments.simulator import SimulatorConfig
from mbcal.errors import InputError, ModelError
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.report_card_files import draw_report_card
from mbcal.scoring.scorers import RandomScorer
from mbcal.training.config import TrainingConfig
from tests.support import batches

FAMILIES = ["lstm", "transformer"]


@cache
def feed() -> tuple[Sessions, Sessions]:
    """Sessions of different users: to fit and to judge."""
    world = Newsfeed(users=300, items=150, seed=2)
    known = generate_sessions(world, SessionConfig(horizon=8, history=8), 0)
    return known[known.user < 200], known[known.user >= 200]


@cache
def fitted(family: str) -> Simulator:
    config = SimulatorConfig(family, hidden=16, embedding=8, training=TrainingConfig(epochs=6, batch=32, learning_rate=3e-3))  # type: ignore[arg-type]
    return Simulator(config, "cpu").fit(feed()[0])


@cache
def card(family: str) -> ReportCard:
    return fitted(family).evaluate(feed()[1], seed=1)


families = pytest.mark.parametrize("family", FAMILIES)


@families
def test_it_knows_more_than_the_shares_of_behaviours(family: str) -> None:
    found = card(family)
    assert len(repr(found)) < 150
    assert found.nll < found.baseline_nll - 0.02
    assert found.ece < 0.1
    assert found.drift < 0.3


@families
def test_report_card_equals_scikit_learn(family: str) -> None:
    """Every number again, from probabilities asked step by step."""
    simulator, test = fitted(family), feed()[1]
    batch = test.tensors()
    state, chances = simulator.begin(*batch.history), []
    for step in range(test.horizon):
        chances.append(simulator.environment.probabilities(state, batch.items[:, step : step + 1]).squeeze(1))
        _, hidden = simulator.environment.net.forward_step(state.hidden, batch.items[:, step], state.previous)
        state = type(state)(hidden, batch.behaviours[:, step].to(state.previous.dtype))
    given = torch.stack(chances, 1).double().numpy()[test.mask]
    truth, likeliest = test.behaviours[test.mask], given.argmax(1)
    rewards = np.asarray(test.behaviour_set.rewards)
    found = card(family)
    assert found.steps == len(truth)
    assert found.nll == pytest.approx(log_loss(truth, given / given.sum(1, keepdims=True), labels=range(12)), rel=1e-4)
    assert found.accuracy == pytest.approx(accuracy_score(truth, likeliest), abs=1e-3)
    assert found.macro_f1 == pytest.approx(f1_score(truth, likeliest, average="macro", zero_division=0), abs=1e-3)
    assert found.weighted_f1 == pytest.approx(f1_score(truth, likeliest, average="weighted", zero_division=0), abs=1e-3)
    assert found.rmse == pytest.approx(root_mean_squared_error(rewards[truth], given @ rewards), rel=1e-4)
    assert found.real == pytest.approx(test.rewards.mean(0).tolist(), rel=1e-5)
    assert np.sum(found.confusion) == len(truth)
    assert np.sum(found.reliability["count"]) == len(truth)


@families
def test_it_refuses_users_it_was_fitted_on(family: str) -> None:
    fit, test = feed()
    with pytest.raises(InputError, match=r"fitted on 200 of these users; use others"):
        fitted(family).evaluate(fit)
    mixed = Sessions.concat([test, fit[:3]])
    with pytest.raises(InputError, match=r"fitted on 1 of these users"):
        fitted(family).require_unseen_users(mixed)
    fitted(family).require_unseen_users(test)


def test_no_judged_user_was_seen_in_fitting() -> None:
    """Fitting looks at no session but those given: others may hold anything."""
    fit, test = feed()
    assert not set(fitted("lstm").fitted_users.tolist()) & set(test.user.tolist())
    assert set(fitted("lstm").fitted_users.tolist()) == set(fit.user.tolist())


@families
def test_weights_do_not_move_in_evaluation(family: str) -> None:
    simulator, test = fitted(family), feed()[1]
    before = {name: value.clone() for name, value in simulator.environment.net.state_dict().items()}
    evaluate(RandomScorer(0), simulator, test)
    simulator.evaluate(test)
    after = simulator.environment.net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(parameter.requires_grad for parameter in simulator.environment.net.parameters())


@families
def test_saved_and_loaded_it_answers_the_same(family: str, tmp_path: Path) -> None:
    simulator, test = fitted(family), feed()[1]
    simulator.save(tmp_path / "sim", card=card(family))
    loaded = Simulator.load(tmp_path / "sim", "cpu")
    first, second = (evaluate(RandomScorer(0), one, test, seed=3).served for one in (simulator, loaded))
    assert np.array_equal(first.behaviours, second.behaviours)
    assert loaded.config == simulator.config
    assert np.array_equal(loaded.fitted_users, simulator.fitted_users)
    manifest = json.loads((tmp_path / "sim" / "manifest.json").read_text())
    assert manifest["report_card"]["nll"] == card(family).nll
    assert manifest["kind"] == "simulator"


def test_same_seed_same_simulator_other_seed_other() -> None:
    config = dataclasses.replace(fitted("lstm").config, training=TrainingConfig(epochs=1, batch=32))
    first, again, other = (Simulator(config, "cpu", seed=seed).fit(feed()[0]).evaluate(feed()[1]).nll for seed in (0, 0, 1))
    assert first == again != other


def test_drift_is_seen() -> None:
    """A simulator that answers always with the lowest level drifts by what it takes away."""
    simulator, test = fitted("lstm"), feed()[1]
    broken = copy.deepcopy(simulator)
    with torch.no_grad():
        broken.environment.net.head[2].weight.zero_()
        broken.environment.net.head[2].bias.copy_(torch.tensor([50.0] + [0.0] * 11))
    found = broken.evaluate(test)
    assert found.simulated == pytest.approx([1.0] * 8)
    assert found.drift == pytest.approx(max(real - 1 for real in found.real) / float(test.rewards.mean()), rel=1e-5)
    assert found.nll > 3


def test_other_behaviours_and_items_are_refused() -> None:
    with pytest.raises(ModelError, match="the simulator knows the behaviours dwell-01"):
        fitted("lstm").require_unseen_users(batches.sessions())
    other = generate_sessions(Newsfeed(users=20, items=160, seed=1), SessionConfig(horizon=8, history=8), 0)
    with pytest.raises(ModelError, match="knows 150 items, the data has 160"):
        fitted("lstm").require_unseen_users(other)


@pytest.mark.parametrize(
    "use",
    [
        lambda simulator: simulator.begin(*batches.sessions().history),
        lambda simulator: simulator.catalog,
        lambda simulator: simulator.save("nowhere"),
        lambda simulator: simulator.evaluate(batches.sessions()),
    ],
    ids=["begin", "catalog", "save", "evaluate"],
)
def test_an_unfitted_simulator_says_so(use: Any) -> None:
    with pytest.raises(ModelError, match=r"^this simulator has not been fitted; call fit\(store\) first$"):
        use(Simulator(device="cpu"))


def test_what_is_no_sessions_is_refused() -> None:
    with pytest.raises(InputError, match="fit: a simulator takes a store or sessions, got str"):
        Simulator(device="cpu").fit("feed")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^sessions: must be sessions, .* got list$"):
        fitted("lstm").require_unseen_users([])  # type: ignore[arg-type]


def test_the_figure_is_a_picture() -> None:
    picture = draw_report_card(card("lstm"), fitted("lstm").behaviours, "lstm")
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000
    assert picture == draw_report_card(card("lstm"), fitted("lstm").behaviours, "lstm")
