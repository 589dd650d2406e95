"""Users who leave: survival-weighted labels against slow references, and completed sessions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from mbcal import Behaviours
from mbcal.agents.mbcal import counterfactual_labels, simulated_futures
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.completion import complete_sessions
from mbcal.training.labels import counterfactual_future_advantage, simulated_future_reward
from mbcal.types import MASK_ROW, SessionTensors
from tests.support.batches import LABELS, REWARDS, net, sessions

GAMMA = 0.9
ENDING = dataclasses.replace(LABELS, terminal=("like",))
TERMINAL = torch.tensor([0.0, 0.0, 1.0])


def ending(batch: SessionTensors, terminal: tuple[str, ...] = ("like",)) -> SessionTensors:
    """The same sessions, `like` terminal; before the last step it becomes `click`."""
    last = torch.arange(batch.horizon, device=batch.device) == batch.length.unsqueeze(1) - 1
    behaviours = torch.where(last, batch.behaviours, batch.behaviours.clamp(max=1))
    return dataclasses.replace(
        batch, behaviour_set=dataclasses.replace(LABELS, terminal=terminal), behaviours=behaviours.to(torch.uint8)
    )


def slow_future(predicted: Tensor, hazard: Tensor, length: int, t: int) -> float:
    """Sum over tau > t of gamma^(tau - t) prod_{t <= k < tau} (1 - h_k) r_tau, written as the equation is."""
    return sum(
        GAMMA ** (tau - t) * float(torch.prod(1 - hazard[t:tau])) * float(predicted[tau]) for tau in range(t + 1, length)
    )


@torch.no_grad()
def slow_advantage(model: RecurrentNet, batch: SessionTensors) -> Tensor:
    """For every t one whole masked copy of the session, run from its start, with its own survival."""
    size, horizon = batch.items.shape
    logits, advantage = model.forward_batch(batch), torch.zeros(size, horizon)
    for t in range(horizon):
        items = batch.items.clone()
        items[:, t] = MASK_ROW
        masked = model.forward_batch(dataclasses.replace(batch, items=items))
        for n in range(size):
            length = int(batch.length[n])
            branches = [(expected_reward(part[n], REWARDS), expected_reward(part[n], TERMINAL)) for part in (logits, masked)]
            if t < length:
                advantage[n, t] = slow_future(*branches[0], length, t) - slow_future(*branches[1], length, t)
    return advantage


def test_survival_by_hand() -> None:
    rewards, mask = torch.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 99.0]]), torch.tensor([[True] * 3, [True, True, False]])
    stay = torch.tensor([[0.5, 0.25, 0.1], [0.8, 0.7, 0.6]])
    future = simulated_future_reward(rewards, mask, 0.5, stay)
    assert future.tolist() == [
        [pytest.approx(0.5 * 0.5 * 2 + 0.25 * 0.5 * 0.25 * 4), pytest.approx(0.5 * 0.25 * 4), 0],
        [pytest.approx(0.5 * 0.8 * 5), 0, 0],
    ]
    certain = simulated_future_reward(rewards, mask, 0.5, torch.ones_like(stay))
    assert torch.allclose(certain, simulated_future_reward(rewards, mask, 0.5))


@pytest.mark.parametrize("config", [{}, {"cell": "lstm"}, {"user": "none", "features": ("kind",)}], ids=str)
def test_advantage_with_leaving_equals_masked_copies(config: dict[str, object]) -> None:
    model, batch = net(**config), ending(sessions(count=20, horizon=8).tensors())
    fast, slow = counterfactual_future_advantage(model, REWARDS, batch, GAMMA), slow_advantage(model, batch)
    assert torch.allclose(fast, slow, atol=1e-4)
    assert float(slow.abs().max()) > 0.1
    plain = counterfactual_future_advantage(model, REWARDS, ending(batch, ()), GAMMA)
    assert not torch.allclose(fast, plain, atol=0.1)


def test_sessions_that_ended_are_completed_by_others() -> None:
    batch = ending(sessions(count=60, horizon=6, seed=3).tensors())
    completed = complete_sessions(batch)
    longest = int(batch.length.max())
    assert completed.length.tolist() == [longest] * 60  # a donor of a donor is one, too
    is_terminal = torch.tensor([False, False, True])
    for n, length in enumerate(batch.length.tolist()):
        assert torch.equal(completed.items[n, :length], batch.items[n, :length])
        assert torch.equal(completed.behaviours[n, : length - 1], batch.behaviours[n, : length - 1])
        before, after = int(batch.behaviours[n, length - 1]), int(completed.behaviours[n, length - 1])
        assert after == before or (before == 2 and length < longest)
        assert not is_terminal[completed.behaviours[n, : longest - 1].long()].any()
        rest = completed.items[n, length:longest].tolist()
        assert not rest or any(rest == completed.items[m, length:longest].tolist() for m in range(60) if m != n)
    assert complete_sessions(ending(batch, ())).items is batch.items


def test_labels_of_steps_that_were_logged_only() -> None:
    batch, model = ending(sessions(count=60, horizon=6, seed=3).tensors()), net()
    for labels_of in (counterfactual_labels, simulated_futures):
        labels = labels_of(model, REWARDS, batch, GAMMA)
        assert torch.equal(labels != 0, (labels != 0) & batch.mask)
        left = (batch.behaviours == 2) & batch.mask & (torch.arange(6) < int(batch.length.max()) - 1)
        assert bool((labels[left] != 0).all())  # leaving has a price, although nothing was logged after it


def test_leaving_inside_a_session_is_refused() -> None:
    from mbcal.errors import InputError, OptionError

    logged = sessions(count=20)
    with pytest.raises(InputError, match=r"terminal behaviours \(skip\) must come last; cut sessions after them"):
        dataclasses.replace(logged, behaviour_set=dataclasses.replace(LABELS, terminal=("skip",)))
    with pytest.raises(OptionError, match=r"'lik' is no behaviour.*[Dd]id you mean 'like'"):
        dataclasses.replace(LABELS, terminal=("lik",))
    with pytest.raises(OptionError, match="with every behaviour the user would leave"):
        dataclasses.replace(LABELS, terminal=LABELS.names)


def test_terminal_variants() -> None:
    levels = Behaviours.from_cuts((1.0, 3.0)).with_leaving()
    assert levels.names == ("<1", "1..3", ">=3", "<1+left", "1..3+left", ">=3+left")
    assert levels.rewards == (1, 2, 3, 1, 2, 3)
    assert (levels.n_observed, levels.is_terminal.tolist()) == (3, [False] * 3 + [True] * 3)
    assert levels.level(np.asarray([0.0, 1.0, 9.0])).tolist() == [0, 1, 2]
    assert Behaviours.from_dict(levels.as_dict()) == levels
    assert "terminal" not in LABELS.as_dict()
    assert (LABELS.n_observed, ENDING.n_observed) == (3, 3)
