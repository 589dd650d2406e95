"""gamma from data: what is chosen, on which users, and that it is chosen once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mbcal import MBCAL, MBCALConfig, NetConfig, Sessions, TrainingConfig, load
from mbcal.agents import MBCALWithoutVarianceReduction, cross_fitting, gamma_choice
from mbcal.agents.fit_context import FitContext
from mbcal.agents.gamma_choice import GAMMAS, Candidate, GammaChoice, choose_gamma, largest_better
from mbcal.distributed.group import Group
from mbcal.errors import ModelError, OptionError, TrainingError
from mbcal.scoring.scorers import UNKNOWN_USER
from mbcal.storage.checkpoints import Checkpoints
from tests.support.batches import sessions
from tests.support.toys import logged
from tests.support.workers import together

QUICK = TrainingConfig(epochs=2, batch=64, validation=0.2)
SMALL = NetConfig(hidden=8, embedding=8)


def agent(**more: Any) -> MBCAL:
    return MBCAL(MBCALConfig(**{"net": SMALL, "training": QUICK, **more}), "cpu")


def refuse(*_: Any) -> Any:
    raise AssertionError("gamma was chosen")


def weights(model: MBCAL) -> dict[str, torch.Tensor]:
    return {f"{name}/{key}": value for name, net in model.nets.items() for key, value in net.state_dict().items()}


def test_ties_go_to_the_smaller() -> None:
    users, base = np.arange(100), np.zeros(100)
    better, noisy = base + 1 + 0.01 * (users % 2), base + np.where(users % 2, 5.0, -4.0)
    for rewards, chosen in (
        ((base, base, base), 0.8),  # equal
        ((base, noisy, noisy), 0.8),  # a higher mean, but within the interval
        ((base, better, better), 0.95),
        ((base, better, 2 * better), 1.0),
        ((base, base, better), 1.0),  # the best smaller one is compared with, not the next
        ((base, better, base + 0.5), 0.95),
        ((better, base, base), 0.8),
    ):
        assert largest_better((0.8, 0.95, 1.0), np.stack(rewards)[:, None], users).gamma == chosen


def test_the_evidence_by_hand() -> None:
    rewards = np.array([[[1.0, 2.0, 3.0, 4.0]], [[2.0, 4.0, 4.0, 6.0]]])
    choice = largest_better((0.5, 1.0), rewards, np.array([0, 0, 1, 1]))  # gains 1, 2, 1, 2: both users gain 1.5 on average
    assert choice == GammaChoice(1.0, 4, (Candidate(2.5, gamma=0.5), Candidate(4.0, 1.5, 1.5, 1.5, gamma=1.0)))


class ChoiceAlone(MBCAL):
    """Chooses gamma and learns nothing else."""

    def learn(self, context: FitContext) -> None:
        self.choices["gamma"] = choose_gamma(context, self.config, self.config.mask_rate, self.labels)


@pytest.mark.parametrize(("noise", "chosen"), [(False, 0.8), (True, 0.3)])
def test_looking_ahead_is_chosen_where_it_pays(noise: bool, chosen: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 0.3 sweets rank above keys; with 0.8 keys rank first, and 1 cannot do better. Noise favours the smallest."""
    monkeypatch.setattr(gamma_choice, "GAMMAS", (0.3, 0.8, 1.0))
    training = TrainingConfig(epochs=8, batch=16, warmup=10, learning_rate=1e-2, validation=0.0)
    model = ChoiceAlone(MBCALConfig(net=SMALL, training=training), "cpu").fit(logged(300, noise=noise))
    choice = model.choices["gamma"]
    assert choice.gamma == chosen
    assert (choice.candidates[1].low > 2) == (not noise)


def test_without_variance_reduction_it_is_chosen_by_that_methods_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.agents.mbcal.counterfactual_future_advantages", refuse)
    fitted = MBCALWithoutVarianceReduction(MBCALConfig(net=SMALL, training=QUICK), "cpu").fit(sessions(count=60, seed=2))
    assert fitted.gamma in GAMMAS


def test_a_number_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.agents.mbcal.choose_gamma", refuse)
    fitted = agent(gamma=0.9).fit(sessions(count=100, seed=2))
    assert (fitted.gamma, fitted.choices) == (0.9, {})


def test_a_choice_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = agent()
    with pytest.raises(ModelError, match="has not been fitted"):
        _ = fitted.gamma
    fitted.fit(sessions(count=100, seed=2))
    assert fitted.gamma in GAMMAS
    choice = fitted.choices["gamma"]
    assert [candidate["gamma"] for candidate in choice["candidates"]] == list(GAMMAS)
    assert 20 < choice["sessions"] < 80  # one half is served
    fitted.save(tmp_path / "model")
    monkeypatch.setattr("mbcal.agents.mbcal.choose_gamma", refuse)
    loaded = load(tmp_path / "model", "cpu")
    assert isinstance(loaded, MBCAL)
    assert (loaded.gamma, loaded.choices) == (fitted.gamma, fitted.choices)
    for again in (fitted, loaded):
        again.fit(sessions(count=100, seed=3))
        assert again.gamma == choice["gamma"]


def test_growing_rounds_choose_again_when_the_log_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, shrunk = agent().fit(sessions(count=100, seed=2)), TrainingConfig(epochs=1, shrink=0.5)
    before = fitted.choices["gamma"]["sessions"]
    fitted.fit(sessions(count=120, seed=2), training=shrunk)
    assert fitted.choices["gamma"]["sessions"] == before
    fitted.fit(sessions(count=260, seed=2), training=shrunk)
    assert fitted.choices["gamma"]["sessions"] > 1.5 * before
    monkeypatch.setattr("mbcal.agents.mbcal.choose_gamma", refuse)
    fitted.fit(sessions(count=2_000, seed=2), training=replace(shrunk, shrink=1.0))  # labels keep their scale
    given = agent(gamma=0.9).fit(sessions(count=100, seed=2))
    assert given.fit(sessions(count=400, seed=2), training=shrunk).gamma == 0.9
    assert not cross_fitting.has_outgrown(10_000, 10**9)  # all that may take part already did


def test_a_choice_survives_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupt:
        def phase(self, title: str, total: int | None = None) -> None:
            if title.startswith("environment: epoch 2"):
                raise KeyboardInterrupt

        def advance(self, amount: int) -> None:
            pass

    known = sessions(count=100, seed=2)
    straight, interrupted = agent().fit(known), agent()
    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(known, progress=Interrupt(), checkpoints=Checkpoints(tmp_path / "checkpoints", {}, every=-1))
    assert (interrupted.config.gamma, interrupted.choices) == ("auto", {})
    monkeypatch.setattr(gamma_choice, "cross_fit", refuse)
    resumed = agent().fit(known, checkpoints=Checkpoints(tmp_path / "checkpoints", {}))
    assert resumed.choices == straight.choices
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(straight).items())


def test_a_failed_fit_forgets_its_choice() -> None:
    failing = agent()
    with pytest.raises(TrainingError, match="loss became"):
        failing.fit(sessions(count=100, seed=2), training=TrainingConfig(epochs=2, learning_rate=1e30, clip=None))
    assert (failing.config.gamma, failing.choices) == ("auto", {})


def test_workers_agree_with_one_worker() -> None:
    known = sessions(count=120, seed=2)

    def job(group: Group) -> Any:
        return agent().fit(known[:50] if group.rank == 0 else known[50:], group=group).choices

    alone = agent().fit(known).choices
    assert together(2, job) == [alone, alone]


def test_too_few_users_choose_the_smallest() -> None:
    known = sessions(count=100, seed=2)
    one_user = Sessions(known.catalog, known.behaviour_set, **{**dict(known.arrays()), "user": known.user * 0})
    fitted = agent().fit(one_user)
    assert fitted.gamma == GAMMAS[0]
    assert fitted.choices["gamma"] == {"gamma": GAMMAS[0], "sessions": 0, "candidates": []}


def test_whole_users_are_sampled_by_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_fitting, "MAX_SESSIONS", 50)
    users = np.repeat(np.arange(100, dtype=np.int32), 3)
    rows = cross_fitting.sample_users(users, 0, "gamma")
    assert len(rows) == 51  # 17 users
    assert np.array_equal(rows, np.flatnonzero(np.isin(users, users[rows])))
    with_unknown = np.concatenate([users, np.full(40, UNKNOWN_USER, np.int32)])
    assert np.array_equal(cross_fitting.sample_users(with_unknown, 0, "gamma"), rows)
    assert not np.array_equal(cross_fitting.sample_users(users, 1, "gamma"), rows)


def test_users_by_id_are_served_as_unknown() -> None:
    fitted = agent(net=NetConfig(hidden=8, embedding=8, user="id")).fit(sessions(count=200, seed=2))
    assert fitted.gamma in GAMMAS


@pytest.mark.parametrize("gamma", ["sometimes", -0.1, 1.5])
def test_discounts_out_of_range_are_refused(gamma: Any) -> None:
    with pytest.raises(OptionError, match=r"gamma: must be in \[0, 1\]"):
        MBCALConfig(gamma=gamma)
