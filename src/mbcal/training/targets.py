"""What value networks learn: pure functions, one per equation, in the paper's symbols.

Rewards and predictions are (B, T); `mask` (B, T) is true where a step counts, and nothing depends on the others. Labels are
computed without gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mbcal.kernels import triton as fused
from mbcal.nn.base import State, expected_reward
from mbcal.nn.recurrent import RecurrentNet
from mbcal.types import MASK_ROW, SessionTensors


@torch.no_grad()
def discounted_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = sum_{tau >= t} gamma^{tau - t} r_tau."""
    _require(rewards, mask)
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for step in range(rewards.shape[1] - 1, -1, -1):
        following = torch.where(mask[:, step], rewards[:, step] + gamma * following, 0)
        returns[:, step] = following
    return returns


@torch.no_grad()
def temporal_difference_targets(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """y_t = r_t + gamma V_{t+1}, and r_t at a session's last step  # Eq. ValueIteration.

    `values` (B, T) is what the policy expects from each step on; that of the first step is not used.
    """
    _require(rewards, mask)
    following = torch.nn.functional.pad(torch.where(mask, values, 0)[:, 1:], (0, 1))
    return torch.where(mask, rewards + gamma * following, 0)


def simulated_future_reward(predicted: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """R_future(o, t) = sum_{tau > t} gamma^{tau - t} r_phi(o_[1:tau-1], a_tau)  # Eq. future_reward.

    `predicted` are the rewards r_phi the environment model expects at each step of the session as it was logged.
    """
    returns = discounted_returns(predicted, mask, gamma)
    return torch.where(mask, torch.nn.functional.pad(gamma * returns[:, 1:], (0, 1)), 0)


@torch.no_grad()
def counterfactual_future_advantage(net: RecurrentNet, rewards: Tensor, batch: SessionTensors, gamma: float) -> Tensor:
    """A_future(o, t) = R_future(o, t) - R_future(M(o, {t}, a_M), t)  # Eq. couterfactual_future_advantage.

    Both futures keep the logged items and behaviours; only the item at t is replaced by the masking item. A masked session
    equals the logged one until t, so branch t begins from h_{t-1} and all open branches take each later step together::

        logged     h_0  h_1  h_2  h_3  …
        branch 1         ·----·----·   …        item 1 masked
        branch 2              ·----·   …        item 2 masked

    T + T (T + 1) / 2 steps of the cell instead of the 2 T² of running masked copies from the start. `rewards` (behaviours,)
    is the reward of each behaviour; the result is (B, T), zero at a session's last step and in the padding.
    """
    size, horizon = batch.items.shape
    state = net.begin(*batch.history)
    if net.config.cell == "gru" and fused.runs_on(rewards):
        made: Tensor | None = fused.advantage(net.scoring_tables(), rewards, state[0], batch, gamma)
        if made is not None:
            return made
    mask, previous = batch.mask, net.previous(batch.behaviours)
    logged = net.gates(batch.items, previous)  # (B, T, G)
    masked = net.gates(torch.full_like(batch.items, MASK_ROW), previous)
    branches = tuple(part.new_zeros(size, horizon, part.shape[1]) for part in state)
    advantage = logged.new_zeros(size, horizon)
    for step in range(horizon):
        opened = net.cell_step(masked[:, step], state)
        state = net.cell_step(logged[:, step], state)
        if step:
            branched = net.cell_step(logged[:, step : step + 1], tuple(part[:, :step] for part in branches))
            _store(branches, slice(0, step), branched)
            gain = _reward(net, state, rewards).unsqueeze(1) - _reward(net, branched, rewards)  # (B, step)
            age = torch.arange(step, 0, -1, device=gain.device)
            advantage[:, :step] += gamma**age * gain * mask[:, step : step + 1]
        _store(branches, step, opened)
    return advantage


def mixed_advantage(advantage: Tensor, masked_future: Tensor, expected: Tensor, mix: float) -> Tensor:
    """A(lambda) = A_future + lambda (R_future(M(o, {t}, a_M), t) - V(s_t)), all (B, T).

    A_future leaves out whatever the rest of the session as it was logged gives away of the item at t: that a user clicked,
    that the next items were chosen otherwise. It is all in the future with the item masked, together with the noise of
    everything else; V is that future's mean in the state. lambda = 0 is MBCAL; lambda = 1 is the simulated future reward
    (without variance reduction) less a baseline that does not change the ranking.
    """
    return advantage + mix * (masked_future - expected)


def _reward(net: RecurrentNet, state: State, rewards: Tensor) -> Tensor:
    return expected_reward(net.head(state[0]), rewards)


def _store(branches: State, where: int | slice, states: State) -> None:
    for branch, part in zip(branches, states, strict=True):
        branch[:, where] = part


def _require(rewards: Tensor, mask: Tensor) -> None:
    if rewards.shape != mask.shape or rewards.dim() != 2:
        raise ValueError(f"rewards and mask must both be (B, T), got {tuple(rewards.shape)} and {tuple(mask.shape)}")
