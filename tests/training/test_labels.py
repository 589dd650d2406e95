"""Labels against arrays worked by hand, and against slow references that run every masked copy from the start."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.labels import (
    bounded_targets,
    counterfactual_future_advantage,
    discounted_returns,
    return_bounds,
    simulated_future_reward,
)
from mbcal.types import MASK_ROW, SessionTensors
from tests.support.batches import REWARDS, net, sessions

GAMMA = 0.9


def mask_of(batch: SessionTensors) -> Tensor:
    return torch.arange(batch.items.shape[1]) < batch.length.unsqueeze(1)


def slow_future(predicted: Tensor, length: int, t: int) -> float:
    """Sum over tau > t, written as the equation is."""
    return sum(GAMMA ** (tau - t) * float(predicted[tau]) for tau in range(t + 1, length))


@torch.no_grad()
def slow_advantage(model: RecurrentNet, batch: SessionTensors) -> Tensor:
    """For every t one whole masked copy of the session, run from its start."""
    size, horizon = batch.items.shape
    logged = expected_reward(model.forward_batch(batch), REWARDS)
    advantage = torch.zeros(size, horizon)
    for t in range(horizon):
        items = batch.items.clone()
        items[:, t] = MASK_ROW
        masked = expected_reward(model.forward_batch(dataclasses.replace(batch, items=items)), REWARDS)
        for n in range(size):
            length = int(batch.length[n])
            if t < length:
                advantage[n, t] = slow_future(logged[n], length, t) - slow_future(masked[n], length, t)
    return advantage


def test_returns_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0], [3.0, 5.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    returns = discounted_returns(rewards, mask, 0.5)
    assert returns.tolist() == [[1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4], [3 + 0.5 * 5, 5, 0]]
    future = simulated_future_reward(rewards, mask, 0.5)
    assert future.tolist() == [[0.5 * 2 + 0.25 * 4, 0.5 * 4, 0], [0.5 * 5, 0, 0]]


def test_bounds_of_returns_by_hand() -> None:
    lowest, highest = return_bounds((-1.0, 0.0, 4.0), horizon=3, gamma=0.5)
    assert lowest.tolist() == [-1.75, -1.5, -1.0]
    assert highest.tolist() == [4 * (1 + 0.5 + 0.25), 4 * (1 + 0.5), 4]
    lowest, highest = return_bounds((1.0, 5.0), horizon=3, gamma=1.0)  # a session may end early: 0 is within the bounds
    assert lowest.tolist() == [0, 0, 0]
    assert highest.tolist() == [15, 10, 5]
    lowest, highest = return_bounds((-2.0, -1.0), horizon=2, gamma=0.0)
    assert lowest.tolist() == [-2, -2]
    assert highest.tolist() == [0, 0]


def test_bounded_targets_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 9.0]])
    values = torch.tensor([[9.0, 99.0, -99.0], [9.0, 0.75, 9.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    # at most 1 + 0.5 from the second step on and 1 from the third, at least 0; no value follows a session's last step
    targets = bounded_targets(rewards, values, mask, 0.5, (0.0, 1.0))
    assert targets.tolist() == [[1 + 0.5 * 1.5, 0, 1], [0.5 * 0.75, 1, 0]]


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_bounded_targets_lie_within_the_bounds(gamma: float) -> None:
    batch = sessions().tensors()
    rewards = batch.behaviour_set.rewards
    wild = 1e6 * torch.randn(batch.items.shape, generator=torch.Generator().manual_seed(0))
    targets = bounded_targets(batch.rewards, wild, batch.mask, gamma, rewards)
    lowest, highest = return_bounds(rewards, batch.horizon, gamma)
    assert bool(((targets >= lowest - 1e-4) & (targets <= highest + 1e-4)).all())


def test_future_reward_equals_the_sum_it_is() -> None:
    batch = sessions().tensors()
    predicted = torch.rand(batch.items.shape, generator=torch.Generator().manual_seed(0))
    future = simulated_future_reward(predicted, mask_of(batch), GAMMA)
    for n, length in enumerate(batch.length.tolist()):
        for t in range(batch.items.shape[1]):
            truth = slow_future(predicted[n], length, t) if t < length else 0.0
            assert float(future[n, t]) == pytest.approx(truth, abs=1e-5)


@pytest.mark.parametrize(
    "config", [{}, {"features": ("kind", "tags")}, {"user": "id"}, {"user": "none"}, {"cell": "lstm"}], ids=str
)
def test_advantage_equals_masked_copies_run_from_the_start(config: dict[str, object]) -> None:
    model, batch = net(**config), sessions(count=20, horizon=8).tensors()
    fast, slow = counterfactual_future_advantage(model, REWARDS, batch, GAMMA), slow_advantage(model, batch)
    assert torch.allclose(fast, slow, atol=1e-4)
    assert float(slow.abs().max()) > 0.1


def test_advantage_is_zero_at_the_last_step_and_in_the_padding() -> None:
    batch = sessions(count=20).tensors()
    advantage = counterfactual_future_advantage(net(), REWARDS, batch, GAMMA)
    for n, length in enumerate(batch.length.tolist()):
        assert bool((advantage[n, length - 1 :] == 0).all())
        assert bool((advantage[n, : length - 1] != 0).all())


def test_advantage_is_unchanged_by_padding() -> None:
    known = sessions(count=20)
    advantage = counterfactual_future_advantage(net(), REWARDS, known.tensors(), GAMMA)
    for length in range(1, 7):
        rows = known.length <= length
        batch = known[rows].tensors()
        shorter = dataclasses.replace(batch, items=batch.items[:, :length], behaviours=batch.behaviours[:, :length])
        short = counterfactual_future_advantage(net(), REWARDS, shorter, GAMMA)
        assert torch.allclose(short, advantage[torch.from_numpy(rows)][:, :length], atol=1e-5)


def test_advantage_is_zero_when_the_model_ignores_past_items() -> None:
    model = net()
    with torch.no_grad():  # the cell forgets everything: no hidden state reaches the next step
        model.cell.get_parameter("weight_hh_l0").zero_()
        model.cell.get_parameter("bias_ih_l0")[8:16] = -40.0  # update gate shut
        model.cell.get_parameter("weight_ih_l0")[8:16] = 0.0
        model.cell.get_parameter("bias_hh_l0")[8:16] = 0.0
    advantage = counterfactual_future_advantage(model, REWARDS, sessions(count=20).tensors(), GAMMA)
    assert float(advantage.abs().max()) < 1e-6


def test_labels_leave_no_gradient() -> None:
    model = net()
    assert not counterfactual_future_advantage(model, REWARDS, sessions().tensors(), GAMMA).requires_grad


def test_shapes_are_required() -> None:
    with pytest.raises(ValueError, match=r"must both be \(B, T\)"):
        discounted_returns(torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.bool), GAMMA)
