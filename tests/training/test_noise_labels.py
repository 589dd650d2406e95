"""Labels that keep the noise: against a slow reference that replays every masked session, answer by answer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mbcal
from mbcal import MBCAL, MBCALConfig
from mbcal.agents import MBCALPlan, MBCALWithoutVarianceReduction
from mbcal.agents.mbcal import noise_draws
from mbcal.errors import OptionError
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.context import ExperimentContext
from mbcal.evaluation.experiment.growing_batch import growing_batch
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.labels import counterfactual_future_advantage
from mbcal.training.noise_labels import SEED, noise_counterfactual_advantage, session_numbers
from mbcal.training.random import Noise
from mbcal.types import MASK_ROW, SessionTensors
from tests.support.batches import REWARDS, net, sessions
from tests.support.toys import BEST, DelayedPrize, logged, starts
from tests.training.test_leaving import ending

GAMMA, DRAWS = 0.9, 3


def answer(probabilities: Tensor, uniform: float) -> int:
    """The first behaviour whose cumulative probability exceeds the number."""
    return next((k for k, edge in enumerate(probabilities.cumsum(0).tolist()) if uniform < edge), len(probabilities) - 1)


def replay(model: RecurrentNet, one: SessionTensors, uniform: list[float], masked: int | None) -> tuple[Tensor, Tensor]:
    """Expected rewards, and probabilities to stay, of one session, answered again from the masked step on."""
    state, previous, rewards, stays = model.begin_batch(one), torch.tensor([model.start]), [], []
    terminal = one.behaviour_set.terminal_table("cpu")
    for step in range(int(one.length[0])):
        item = torch.tensor([MASK_ROW]) if step == masked else one.items[:, step]
        logits, state = model.forward_step(state, item, previous)
        probabilities = torch.softmax(logits[0], 0)
        rewards.append(probabilities @ REWARDS)
        stays.append(1 - probabilities @ terminal)
        is_past = masked is None or step < masked
        previous = (
            one.behaviours[:, step] if is_past else torch.tensor([answer(going_on(probabilities, one), uniform[step])])
        )
    return torch.stack(rewards), torch.stack(stays)


def going_on(probabilities: Tensor, one: SessionTensors) -> Tensor:
    """Probabilities (K,) of the behaviours with which a session goes on, which sum to 1."""
    kept = probabilities * (1 - one.behaviour_set.terminal_table("cpu"))
    return kept / kept.sum()


def future(rewards: Tensor, stays: Tensor, t: int) -> float:
    """Sum over tau > t of gamma^(tau - t) prod_{t <= k < tau} stay_k r_tau."""
    terms = (GAMMA ** (tau - t) * float(stays[t:tau].prod()) * float(rewards[tau]) for tau in range(t + 1, len(rewards)))
    return sum(terms)


@torch.no_grad()
def slow_advantages(model: RecurrentNet, batch: SessionTensors) -> Tensor:
    """Abduct, act, predict: one session, one step, one draw at a time."""
    position = Noise(torch.tensor(SEED), session_numbers(batch)).uniform((*batch.items.shape, DRAWS))
    result = torch.zeros(batch.items.shape)
    for n in range(len(batch)):
        one, length = batch[n : n + 1], int(batch.length[n])
        probabilities = torch.softmax(model.forward_batch(one)[0], -1)
        logged = replay(model, one, [], None)
        for draw in range(DRAWS):
            uniform = []
            for step in range(length):
                behaviour = int(batch.behaviours[n, step])
                edges = [0.0, *going_on(probabilities[step], one).cumsum(0).tolist()]
                low, high = edges[behaviour], edges[behaviour + 1]
                uniform.append(low + float(position[n, step, draw]) * (high - low))
            for t in range(length):
                result[n, t] += (future(*logged, t) - future(*replay(model, one, uniform, t), t)) / DRAWS
    return result


@pytest.mark.parametrize("config", [{}, {"features": ("kind", "tags")}])
@pytest.mark.parametrize("leaving", [False, True])
def test_labels_equal_a_replay_of_every_masked_session(config: dict[str, object], leaving: bool) -> None:
    model, batch = net(**config), sessions(count=12, horizon=6).tensors()
    if leaving:
        batch = ending(batch)
    fast = noise_counterfactual_advantage(model, REWARDS, batch, GAMMA, DRAWS)
    assert torch.allclose(fast, slow_advantages(model, batch), atol=1e-5)
    assert float(fast.abs().max()) > 1e-3


def test_the_noise_brings_the_logged_answers_back() -> None:
    """If masking changes nothing, the masked branch answers as was logged, and the label is 0."""
    model, batch = net(), sessions(count=12, horizon=6).tensors()
    blind = dataclasses.replace(batch, items=torch.where(batch.mask, MASK_ROW, 0).to(batch.items.dtype))
    labels = noise_counterfactual_advantage(model, REWARDS, blind, GAMMA, DRAWS)
    assert torch.allclose(labels, torch.zeros_like(labels), atol=1e-6)


def test_the_noise_is_that_of_the_session_not_of_the_batch() -> None:
    model, batch = net(), sessions(count=12, horizon=6).tensors()
    together = noise_counterfactual_advantage(model, REWARDS, batch, GAMMA, DRAWS)
    rows = torch.tensor([7, 2])
    assert torch.allclose(noise_counterfactual_advantage(model, REWARDS, batch[rows], GAMMA, DRAWS), together[rows])
    assert len(session_numbers(batch).unique()) == len(batch)


def test_nothing_counts_at_the_last_step_and_in_the_padding() -> None:
    batch = sessions(count=12, horizon=6).tensors()
    labels = noise_counterfactual_advantage(net(), REWARDS, batch, 1.0, DRAWS)
    last = torch.arange(6) >= batch.length.unsqueeze(1) - 1
    assert float(labels[last].abs().max()) == 0


SETTINGS = {"hidden": 8, "embedding": 8, "epochs": 2, "gamma": 0.9}


def test_mbcal_learns_from_them_if_told_so() -> None:
    known = sessions(count=100, horizon=6, seed=2)
    kept, abducted = (MBCAL(device="cpu", counterfactual=kind, **SETTINGS).fit(known) for kind in ("behaviours", "noise"))
    batch = known.tensors()
    labels, _ = abducted.value_regression(batch)
    wanted = noise_counterfactual_advantage(abducted.nets["environment"], REWARDS, batch, 0.9, 8)
    assert torch.allclose(labels, wanted)
    assert not torch.allclose(labels, kept.value_regression(batch)[0], atol=1e-3)
    for name, value in (("counterfactual", "rewards"), ("noise_draws", 0)):
        with pytest.raises(OptionError, match=name):
            MBCALConfig(**{name: value})


def test_labels_keep_the_behaviours_in_a_first_fit_and_the_noise_in_later_ones(tmp_path: Path) -> None:
    known = sessions(count=100, horizon=6, seed=2)
    agent, batch = MBCAL(device="cpu", **SETTINGS).fit(known), known.tensors()
    kept = counterfactual_future_advantage(agent.nets["environment"], REWARDS, batch, 0.9)
    assert torch.allclose(agent.value_regression(batch)[0], kept)
    agent.fit(known).save(tmp_path / "model")
    for fitted in (agent, mbcal.load(tmp_path / "model", "cpu")):
        abducted = noise_counterfactual_advantage(fitted.nets["environment"], REWARDS, batch, 0.9, 8)
        assert torch.allclose(fitted.value_regression(batch)[0], abducted)
    always = MBCAL(device="cpu", counterfactual="behaviours", **SETTINGS).fit(known).fit(known)
    kept = counterfactual_future_advantage(always.nets["environment"], REWARDS, batch, 0.9)
    assert torch.allclose(always.value_regression(batch)[0], kept)


def test_planning_does_the_same_where_it_takes_mbcals_advantage() -> None:
    known = sessions(count=100, horizon=6, seed=2)
    settings = {**SETTINGS, "advantage": "counterfactual", "models": 1}
    agent, batch = MBCALPlan(device="cpu", **settings).fit(known), known.tensors()
    kept = counterfactual_future_advantage(agent.nets["environment"], REWARDS, batch, 0.9)
    assert torch.allclose(agent.value_regression(batch)[0], kept)
    agent.fit(known)
    abducted = noise_counterfactual_advantage(agent.nets["environment"], REWARDS, batch, 0.9, 8)
    assert torch.allclose(agent.value_regression(batch)[0], abducted)


def test_labels_without_a_masked_branch_have_no_noise_to_keep() -> None:
    known = sessions(count=100, horizon=6, seed=2)
    agent = MBCALWithoutVarianceReduction(device="cpu", **SETTINGS).fit(known).fit(known)
    assert agent.choices == {}


@pytest.mark.parametrize(("count", "draws"), [(1, 8), (6_250, 8), (6_251, 7), (25_600, 1), (256_000, 1)])
def test_fewer_draws_are_made_where_there_are_many_sessions(count: int, draws: int) -> None:
    assert noise_draws(count) == draws


def test_the_advantage_does_not_fade_when_a_policy_learns_from_its_own_sessions() -> None:
    """With the behaviours kept in all rounds the third earns 6 of 15: its sessions hardly vary, so answers tell the item."""
    settings = experiment_config({"rounds": 3, "round_sessions": 1_200})
    context = ExperimentContext(settings, logged(1_200), starts(200, seed=5), {"toy": DelayedPrize()}, (), "cpu")
    rewards = {
        method: [entry["mean"] for entry in growing_batch(context, method, 0).record["rounds"]]
        for method in ("mbcal", "mbcal+counterfactual=behaviours")
    }
    assert min(rewards["mbcal"]) > 0.99 * BEST
    assert rewards["mbcal+counterfactual=behaviours"][-1] < 0.5 * BEST
