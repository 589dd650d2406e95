"""Labels and targets of value networks: pure functions, one per equation, in the paper's symbols.

Rewards and predictions are (B, T) float32. `mask` (B, T) bool is true where a step counts; no result depends on the other
steps, whose own results are 0. Everything is computed without gradients.

Where some behaviours are terminal, futures are weighted by survival. With h_k the predicted probability that the behaviour
at step k is terminal, the reward of step tau counts with prod_{t <= k < tau} (1 - h_k), in both branches of a counterfactual
difference: an item that drives users away is charged with all that they would have done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mbcal.kernels import triton
from mbcal.nn.base import State
from mbcal.nn.recurrent import RecurrentNet
from mbcal.types import MASK_ROW, SessionTensors


@torch.no_grad()
def discounted_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = sum_{tau >= t} gamma^{tau - t} r_tau.

    Args:
        rewards: (B, T) reward of every step.
        mask: (B, T) bool, true where a step counts.
        gamma: Discount, in [0, 1].

    Returns:
        (B, T) the return from each step on, its own reward included; 0 where no step counts.

    Raises:
        ValueError: If the shapes differ.
    """
    _require_same_shape(rewards, mask)
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for step in range(rewards.shape[1] - 1, -1, -1):
        following = torch.where(mask[:, step], rewards[:, step] + gamma * following, 0)
        returns[:, step] = following
    return returns


@torch.no_grad()
def temporal_difference_targets(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """y_t = r_t + gamma V_{t+1}, and r_t at a session's last step  # Eq. ValueIteration.

    Args:
        rewards: (B, T) reward of every step.
        values: (B, T) value of the state before each step, V_t. That of the first step is not used.
        mask: (B, T) bool, true where a step counts.
        gamma: Discount, in [0, 1].

    Returns:
        (B, T) one target per step; 0 where no step counts.

    Raises:
        ValueError: If the shapes differ.
    """
    _require_same_shape(rewards, mask)
    following = torch.nn.functional.pad(torch.where(mask, values, 0)[:, 1:], (0, 1))
    return torch.where(mask, rewards + gamma * following, 0)


def return_bounds(
    behaviour_rewards: Sequence[float], horizon: int, gamma: float, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Bounds on the return from each step on: sum_{k < T - t} gamma^k r for the lowest and the highest reward r.

    A session may end early, so that 0 always lies within the bounds.

    Args:
        behaviour_rewards: The reward of each behaviour.
        horizon: T, the most steps of a session.
        gamma: Discount.
        device: Where the bounds are wanted.

    Returns:
        The lowest and the highest return from step t on, (T,) each.
    """
    age = torch.arange(horizon, device=device, dtype=torch.float32)
    discounted_steps = torch.cumsum(gamma**age, 0).flip(0)  # step t: the discounted number of steps that can follow
    return min(0.0, *behaviour_rewards) * discounted_steps, max(0.0, *behaviour_rewards) * discounted_steps


@torch.no_grad()
def bounded_targets(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, behaviour_rewards: Sequence[float]
) -> Tensor:
    """Temporal-difference targets whose V_{t+1} is clamped to what the rest of a session can pay.

    So a target lies within `return_bounds` at its own step, however wrong the network is that predicts V, and errors cannot
    grow without limit by bootstrapping.

    Args:
        rewards: (B, T).
        values: (B, T) what the policy expects from each step on. That of the first step is not used.
        mask: (B, T).
        gamma: Discount.
        behaviour_rewards: The reward of each behaviour.

    Returns:
        (B, T).

    Raises:
        ValueError: If the shapes differ.
    """
    lowest, highest = return_bounds(behaviour_rewards, rewards.shape[1], gamma, rewards.device)
    return temporal_difference_targets(rewards, values.clamp(lowest, highest), mask, gamma)


@torch.no_grad()
def simulated_future_reward(predicted: Tensor, mask: Tensor, gamma: float, stay: Tensor | None = None) -> Tensor:
    """R_future(o, t) = sum_{tau > t} gamma^{tau - t} r_phi(o_[1:tau-1], a_tau)  # Eq. future_reward.

    Args:
        predicted: (B, T) the reward r_phi that the environment model expects at each logged step.
        mask: (B, T).
        gamma: Discount.
        stay: (B, T) 1 - h_t, the predicted probability that the user does not leave at the step; None for certainty. The
            reward at tau is then weighted by prod_{t <= k < tau} (1 - h_k).

    Returns:
        (B, T), 0 at a session's last step.
    """
    if stay is None:
        returns = discounted_returns(predicted, mask, gamma)
        return torch.where(mask, torch.nn.functional.pad(gamma * returns[:, 1:], (0, 1)), 0)
    futures = torch.zeros_like(predicted)
    following = torch.zeros_like(predicted[:, 0])  # r + the future of the step after
    for step in range(predicted.shape[1] - 1, -1, -1):
        futures[:, step] = torch.where(mask[:, step], gamma * stay[:, step] * following, 0)
        following = torch.where(mask[:, step], predicted[:, step] + futures[:, step], 0)
    return futures


@torch.no_grad()
def counterfactual_future_advantage(net: RecurrentNet, rewards: Tensor, batch: SessionTensors, gamma: float) -> Tensor:
    """A_future(o, t) = R_future(o, t) - R_future(M(o, {t}, a_M), t)  # Eq. couterfactual_future_advantage.

    Both futures keep the logged items and behaviours; only the item at t is replaced by the masking item. A masked session
    equals the logged one before t, so branch t begins from h_{t-1}, and all open branches take each later step together::

        logged     h_0  h_1  h_2  h_3  …
        branch 1         ·----·----·   …        item 1 masked
        branch 2              ·----·   …        item 2 masked

    This takes T + T (T + 1) / 2 steps of the cell, instead of 2 T² for masked copies that run from the start. Where some
    behaviours are terminal, each branch is weighted by its own survival.

    Args:
        net: The environment model, a network of K behaviours.
        rewards: (K,) the reward of each behaviour.
        batch: B logged sessions.
        gamma: Discount.

    Returns:
        (B, T), 0 at a session's last step and in the padding.
    """
    size, horizon = batch.items.shape
    batch = batch.encoded_by(net.fields)
    state = net.begin_batch(batch)
    terminal = batch.behaviour_set.terminal_table(rewards.device) if batch.behaviour_set.terminal else None
    if net.config.cell == "gru" and triton.runs_on(rewards):
        tables = net.scoring_tables()
        gates = None if batch.context is None else tables.context_gates(batch.context)
        fast: Tensor | None = triton.advantage(tables, rewards, state[0], batch, gamma, terminal, gates)
        if fast is not None:
            return fast
    mask, previous = batch.mask, net.previous(batch.behaviours)
    logged_gates = net.gates(batch.items, previous, batch.context)  # (B, T, G)
    masked_gates = net.gates(torch.full_like(batch.items, MASK_ROW), previous, batch.context)
    branches = tuple(part.new_zeros(size, horizon, part.shape[1]) for part in state)  # column t: the branch masked at t
    survival = None if terminal is None else Survival(terminal, logged_gates.new_zeros(2, size, horizon))
    advantages = logged_gates.new_zeros(size, horizon)
    for step in range(horizon):
        opened = net.cell_step(masked_gates[:, step], state)
        state = net.cell_step(logged_gates[:, step], state)
        if step:
            open_branches = tuple(part[:, :step] for part in branches)
            open_branches = net.cell_step(logged_gates[:, step : step + 1], open_branches)
            _store(branches, slice(0, step), open_branches)
        if step or survival is not None:
            logged = torch.softmax(net.head(state[0]), -1)  # (B, K) probabilities of behaviours
        if step:
            masked = torch.softmax(net.head(open_branches[0]), -1)  # (B, step, K)
            logged_reward, masked_reward = (logged @ rewards).unsqueeze(1), masked @ rewards
            if survival is not None:
                logged_reward, masked_reward = survival.weigh(step, logged_reward, masked_reward)
                survival.advance(step, logged, masked)
            gain = logged_reward - masked_reward
            age = torch.arange(step, 0, -1, device=gain.device)
            advantages[:, :step] += gamma**age * gain * mask[:, step : step + 1]
        _store(branches, step, opened)
        if survival is not None:
            survival.open(step, logged, torch.softmax(net.head(opened[0]), -1))
    return advantages


class Survival:
    """The probability that a user who was there at step t still is, by logged and masked branches: column t each.

    Args:
        terminal: (K,) 1.0 where a behaviour is terminal.
        weights: (2, B, T) zeros.
    """

    def __init__(self, terminal: Tensor, weights: Tensor) -> None:
        self.terminal, self.logged, self.masked = terminal, *weights

    def open(self, step: int, logged: Tensor, masked: Tensor) -> None:
        """Begin the branch masked at `step`, by the probabilities of behaviours (B, K) there, logged and masked."""
        self.logged[:, step], self.masked[:, step] = 1 - logged @ self.terminal, 1 - masked @ self.terminal

    def weigh(self, step: int, logged: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Weigh expected rewards at a step, logged (B, 1) and of the branches before it (B, step)."""
        return self.logged[:, :step] * logged, self.masked[:, :step] * masked

    def advance(self, step: int, logged: Tensor, masked: Tensor) -> None:
        """Take a step with all branches before it, by probabilities of behaviours (B, K) and (B, step, K)."""
        self.logged[:, :step] *= 1 - (logged @ self.terminal).unsqueeze(1)
        self.masked[:, :step] *= 1 - masked @ self.terminal


def mixed_advantage(advantage: Tensor, masked_future: Tensor, expected: Tensor, mix: float) -> Tensor:
    """A(lambda) = A_future + lambda (R_future(M(o, {t}, a_M), t) - V(s_t)).

    A_future leaves out what the rest of the logged session reveals about the item at t: that the user clicked, that the
    next items were chosen differently. All of that is part of the masked future, together with the noise of everything
    else, and V is the mean of that future in the state. lambda = 0 is MBCAL. lambda = 1 is the simulated future reward (no
    variance reduction) less a baseline that does not change the ranking.

    Args:
        advantage: (B, T) A_future.
        masked_future: (B, T) R_future with the item at t masked.
        expected: (B, T) V(s_t).
        mix: lambda.

    Returns:
        (B, T).
    """
    return advantage + mix * (masked_future - expected)


def _store(branches: State, columns: int | slice, states: State) -> None:
    for branch, part in zip(branches, states, strict=True):
        branch[:, columns] = part


def _require_same_shape(rewards: Tensor, mask: Tensor) -> None:
    if rewards.shape != mask.shape or rewards.dim() != 2:
        raise ValueError(f"rewards and mask must both be (B, T), got {tuple(rewards.shape)} and {tuple(mask.shape)}")
