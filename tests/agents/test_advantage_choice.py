"""The advantage from data: what is chosen, on which users, and that it is chosen once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mbcal import NetConfig, Sessions, TrainingConfig, load
from mbcal.agents import MBCALPlan, PlanConfig, advantage_choice, cross_fitting
from mbcal.agents.advantage_choice import CANDIDATES
from mbcal.agents.config import AgentConfig
from mbcal.agents.cross_fitting import Fold, choose_best, mean_gain, resample_users
from mbcal.agents.fit_context import FitContext
from mbcal.distributed.group import Group
from mbcal.errors import ModelError, TrainingError
from mbcal.progress import SILENT
from mbcal.scoring.scorers import UNKNOWN_USER
from mbcal.storage.checkpoints import Checkpoints
from mbcal.types import FIRST_ITEM_ROW, UNKNOWN_ROW
from tests.support.batches import sessions
from tests.support.progress import Interrupt
from tests.support.toys import logged
from tests.support.workers import together

QUICK = TrainingConfig(epochs=2, batch=64, validation=0.2)
SMALL = NetConfig(hidden=8, embedding=8)


@pytest.fixture(autouse=True)
def few_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advantage_choice, "JUDGES", 2)


def agent(**more: Any) -> MBCALPlan:
    settings = {"net": SMALL, "training": QUICK, "iterations": 1, "branches": 60, "models": 1}
    return MBCALPlan(PlanConfig(**{**settings, **more}), "cpu")


def refuse(*_: Any) -> Any:
    raise AssertionError("the advantage was chosen")


def test_ties_and_doubt_go_to_the_earlier() -> None:
    users, base = np.arange(100), np.zeros((4, 100))
    better = base + 1 + 0.01 * (users % 2)
    doubtful = base + np.array([3.0, -2.0, 2.0, -1.0])[:, None]  # judges disagree
    for rewards, chosen in (
        ((base, base, base), 0),
        ((base, doubtful, doubtful), 0),
        ((base, base - 1, better), 2),
        ((base, better, better), 1),
        ((base, better, better + base + 0.5), 2),
    ):
        folds = [Fold(np.stack(rewards), users), Fold(np.stack(rewards) + 7, users)]
        best, trials = choose_best(folds, 0.9)
        assert best == chosen
        assert [trial.reward for trial in trials] == pytest.approx([one.mean() + 3.5 for one in rewards])
    first, second = (Fold(np.stack([base, base + gain]), users) for gain in (2.0, -1.9))  # the folds disagree
    assert choose_best([first], 0.9)[0] == 1
    assert choose_best([first, second], 0.9)[1][1].gain == pytest.approx(0.05)


def test_the_interval_covers_sessions_judges_and_folds() -> None:
    gains = np.array([[1.0, 3.0], [3.0, 5.0]])  # judges say 2 and 4; sessions say 2 and 4
    gain = mean_gain([(gains, np.array([0, 1]))], 0.95)
    assert gain.mean == 3.0
    assert gain.stderr == pytest.approx((1.0 + 2.0) ** 0.5)  # variance of the mean of sessions, 2 / 2, and of judges, 2
    assert gain.high - gain.mean == pytest.approx(12.706 * 3**0.5, rel=1e-3)  # t with one degree of freedom
    both = mean_gain([(gains, np.array([0, 1])), (gains - 1, np.array([2, 3]))], 0.95)
    assert both.mean == 2.5
    assert both.stderr == pytest.approx((3.0 / 2) ** 0.5)  # that of a mean of two
    assert both.high - both.mean == pytest.approx(4.303 * 1.5**0.5, rel=1e-3)  # two degrees of freedom


@pytest.mark.parametrize(("gain", "kind"), [(0.45, "counterfactual"), (0.55, "planned")])
def test_a_candidate_is_taken_if_it_is_better_with_95_percent_confidence(
    gain: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judges differ by a standard deviation of 0.365 in both folds, with six degrees of freedom: the limit is 0.502."""
    by_judge = np.array([-0.4, -0.2, 0.2, 0.4])[:, None] + np.zeros((4, 50))
    base = np.zeros((4, 50))
    fold = Fold(np.stack([base, base - 5, base + gain + by_judge]), np.arange(50, dtype=np.int32))
    monkeypatch.setattr(advantage_choice, "cross_fit", lambda *_: [fold, fold])
    chosen = agent().fit(sessions(count=60, seed=2))
    assert chosen.choices["advantage"]["kind"] == chosen.config.advantage == kind


def test_users_are_resampled_whole() -> None:
    users = np.repeat(np.arange(300, dtype=np.int32), 2)
    rows = resample_users(users, seed=5)
    counts = np.bincount(users[rows], minlength=300)
    assert (np.diff(rows) >= 0).all()
    assert counts.sum() == len(users)
    assert (counts % 2 == 0).all()
    assert 0.3 < (counts == 0).mean() < 0.44  # exp(-1) of the users are left out
    assert not np.array_equal(rows, resample_users(users, seed=6))


def test_whole_users_are_sampled_by_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_fitting, "MAX_SESSIONS", 50)
    users = np.repeat(np.arange(100, dtype=np.int32), 3)
    rows = cross_fitting.sample_users(users, 0, "advantage")
    assert len(rows) == 51  # 17 users
    assert np.array_equal(rows, np.flatnonzero(np.isin(users, users[rows])))
    with_unknown = np.concatenate([users, np.full(40, UNKNOWN_USER, np.int32)])
    assert np.array_equal(cross_fitting.sample_users(with_unknown, 0, "advantage"), rows)
    assert not np.array_equal(cross_fitting.sample_users(users, 1, "advantage"), rows)


@pytest.mark.parametrize(("noise", "kinds"), [(False, {"planned", "counterfactual"}), (True, {"counterfactual"})])
def test_looking_ahead_is_chosen_where_it_pays(noise: bool, kinds: set[str]) -> None:
    """Where keys open prizes, no advantage must lose; where behaviours are noise, no gain is beyond chance."""
    training = TrainingConfig(epochs=8, batch=16, warmup=10, learning_rate=1e-2, validation=0.0)
    model = agent(training=training, iterations=2, branches=300).fit(logged(300, noise=noise))
    record = model.choices["advantage"]
    assert record["kind"] in kinds
    assert model.config.advantage == record["kind"]
    assert [trial["kind"] for trial in record["trials"]] == list(CANDIDATES)
    if not noise:
        assert record["trials"][1]["high"] < -1  # without an advantage, sweets alone


def test_a_choice_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = agent(models=2)
    with pytest.raises(ModelError, match="has not been fitted"):
        fitted.build_scorer()
    fitted.fit(sessions(count=100, seed=2))
    choice = fitted.choices["advantage"]
    assert [trial["kind"] for trial in choice["trials"]] == list(CANDIDATES)
    assert choice["sessions"] == 100  # both halves are served
    fitted.save(tmp_path / "model")
    monkeypatch.setattr("mbcal.agents.plan.choose_advantage", refuse)
    loaded = load(tmp_path / "model", "cpu")
    assert isinstance(loaded, MBCALPlan)
    assert (loaded.config, loaded.choices) == (fitted.config, fitted.choices)
    assert loaded.fit(sessions(count=100, seed=3)).config.advantage == fitted.config.advantage


def test_what_is_chosen_is_fitted_as_if_it_had_been_given() -> None:
    known = sessions(count=200, seed=2)
    chosen = agent(iterations=2).fit(known)
    assert chosen.choices["advantage"]["trials"]
    given = agent(iterations=2, advantage=chosen.config.advantage).fit(known)
    for name, net in chosen.nets.items():
        assert all(torch.equal(*pair) for pair in zip(net.parameters(), given.nets[name].parameters(), strict=True))


def test_a_planned_candidate_is_planned_as_often_as_it_would_be_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer iterations it would earn less than what is chosen in the end, and lose where it should win."""
    iterations: list[int] = []

    def count(self: MBCALPlan, context: FitContext, policy: Any, iteration: int) -> None:
        iterations.append(iteration)

    monkeypatch.setattr(MBCALPlan, "_fit_branches", count)
    agent(iterations=3).fit(sessions(count=200, seed=2))
    assert iterations[:6] == [1, 2, 3, 1, 2, 3]  # two folds


def test_every_candidate_is_fitted_as_if_it_were_alone() -> None:
    """Also where the log lacks an item, whose row is filled in when a fit ends."""
    known = sessions(count=200, seed=2)
    lacking = (UNKNOWN_ROW, known.catalog.n_rows - 1)
    rows = {"items": known.items, "history_items": known.history_items}
    kept = {name: np.where(np.isin(values, lacking), FIRST_ITEM_ROW, values) for name, values in rows.items()}
    offered = np.tile(np.arange(FIRST_ITEM_ROW, known.catalog.n_rows, dtype=np.int32), (len(known), 1))
    known = replace(known, **kept, candidates=offered)
    policies = agent()._fit_policies(known.tensors(), AgentConfig(SMALL, QUICK, 0), SILENT)
    batch = sessions(count=20, seed=3).tensors()
    begun = (batch.user, batch.history_items, batch.history_behaviours, batch.history_length)
    candidates = torch.arange(FIRST_ITEM_ROW, known.catalog.n_rows).expand(len(batch), -1)
    for kind, policy in zip(CANDIDATES, policies, strict=True):
        alone = agent(advantage=kind).fit(known)
        scores = [found.score(found.begin(*begun), candidates) for found in (policy, alone.fitted_scorer)]
        assert torch.equal(*scores), kind


def test_what_is_given_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.agents.plan.choose_advantage", refuse)
    fitted = agent(advantage="none").fit(sessions(count=100, seed=2))
    assert (fitted.config.advantage, fitted.choices) == ("none", {})


def test_growing_rounds_choose_again_when_the_log_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, shrunk = agent().fit(sessions(count=100, seed=2)), TrainingConfig(epochs=1, shrink=0.5)
    fitted.fit(sessions(count=120, seed=2), training=shrunk)
    assert fitted.choices["advantage"]["sessions"] == 100
    fitted.fit(sessions(count=200, seed=2), training=shrunk)
    assert fitted.choices["advantage"]["sessions"] == 200
    monkeypatch.setattr("mbcal.agents.plan.choose_advantage", refuse)
    fitted.fit(sessions(count=400, seed=2), training=replace(shrunk, shrink=1.0))  # labels keep their scale
    assert not cross_fitting.should_choose_again(100_000, 10**9)  # all that may take part already did


def test_a_choice_survives_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = sessions(count=100, seed=2)
    straight, interrupted = agent().fit(known), agent()
    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(
            known,
            progress=Interrupt("environment: epoch 2"),
            checkpoints=Checkpoints(tmp_path / "checkpoints", {}, every=-1),
        )
    assert (interrupted.config.advantage, interrupted.choices) == ("auto", {})
    monkeypatch.setattr(advantage_choice, "cross_fit", refuse)
    resumed = agent().fit(known, checkpoints=Checkpoints(tmp_path / "checkpoints", {}))
    assert resumed.choices == straight.choices


def test_a_failed_fit_forgets_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = advantage_choice.AdvantageChoice("none", 100, ())
    monkeypatch.setattr("mbcal.agents.plan.choose_advantage", lambda *_: chosen)
    failing = agent()
    with pytest.raises(TrainingError, match="loss became"):
        failing.fit(sessions(count=100, seed=2), training=TrainingConfig(epochs=2, learning_rate=1e30, clip=None))
    assert (failing.config.advantage, failing.choices) == ("auto", {})


def test_workers_agree_with_one_worker() -> None:
    known = sessions(count=120, seed=2)

    def job(group: Group) -> Any:
        return agent().fit(known[:50] if group.rank == 0 else known[50:], group=group).choices

    alone = agent().fit(known).choices
    assert together(2, job) == [alone, alone]


def test_users_by_id_are_served_as_unknown() -> None:
    fitted = agent(net=NetConfig(hidden=8, embedding=8, user="id")).fit(sessions(count=200, seed=2))
    assert fitted.config.advantage in CANDIDATES


def test_too_few_users_choose_the_paper() -> None:
    known = sessions(count=60, seed=2)
    one_user = Sessions(known.catalog, known.behaviour_set, **{**dict(known.arrays()), "user": known.user * 0})
    fitted = agent().fit(one_user)
    assert fitted.config.advantage == "counterfactual"
    assert fitted.choices["advantage"] == {"kind": "counterfactual", "sessions": 0, "trials": []}
