"""Counterfactual labels that keep the noise of a session and not its answers.

In the masked branch of `labels.counterfactual_future_advantage` the logged behaviours stay. They may give the masked item
away: if only one item is ever skipped, "skipped" says which item it was, and masking it changes nothing. Here the user
answers again under the same noise (abduction, action, prediction)::

    abduct    u_tau ~ uniform on the interval of the logged behaviour in the cumulative distribution of the environment model
    act       the item at t is masked
    predict   from t on, the behaviour is the one in whose interval u_tau lies, in the distribution of the masked branch

The logged branch answers as it did, since u_tau lies in the interval of what was logged. Labels are means over several draws
of the noise. Where some behaviours are terminal, branches are weighted by survival, as in `labels`, and answers are drawn
among those that go on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mbcal.kernels import triton
from mbcal.nn.base import sample_behaviour
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.tables import Tables
from mbcal.training.labels import Survival
from mbcal.training.random import Noise, derive_seed
from mbcal.types import MASK_ROW, SessionTensors

SEED = derive_seed(0, "abducted noise")
"""Seed of the noise, which needs no other: it depends on the session alone."""


@torch.no_grad()
def noise_counterfactual_advantage(
    net: RecurrentNet, rewards: Tensor, batch: SessionTensors, gamma: float, draws: int
) -> Tensor:
    """A(o, t) = R_future(o, t) - E_u[R_future of the same session with the item at t masked and behaviours answered by u].

    It takes `draws` times T + T (T + 1) / 2 steps of the cell, a GRU.

    Args:
        net: The environment model, a network of K behaviours.
        rewards: (K,) the reward of each behaviour.
        batch: B logged sessions.
        gamma: Discount.
        draws: Draws of the noise.

    Returns:
        (B, T), 0 at a session's last step and in the padding.
    """
    batch = batch.encoded_by(net.fields)
    probabilities = torch.softmax(net.forward_batch(batch), -1)
    intervals = _answers(probabilities, batch).cumsum(-1)
    logged = batch.behaviours.long().unsqueeze(-1)
    high = intervals.gather(-1, logged).squeeze(-1)
    low = torch.where(logged.squeeze(-1) > 0, intervals.gather(-1, (logged - 1).clamp(min=0)).squeeze(-1), 0)
    noise = Noise(torch.tensor(SEED, device=batch.device), session_numbers(batch))
    position = noise.uniform((*batch.items.shape, draws))
    uniform = [low + position[..., draw] * (high - low) for draw in range(draws)]
    if net.config.cell == "gru" and batch.context is None and triton.runs_on(rewards):
        terminal = batch.behaviour_set.terminal_table(rewards.device) if batch.behaviour_set.terminal else None
        begin = net.begin_batch(batch)[0]
        fast: Tensor | None = triton.advantage(net.scoring_tables(), rewards, begin, batch, gamma, terminal, uniform=uniform)
        if fast is not None:
            return fast
    states, tables = net.states_before(batch), net.scoring_tables()
    advantages = [_advantages(net, tables, rewards, batch, gamma, probabilities, states, numbers) for numbers in uniform]
    return torch.stack(advantages).mean(0)


def _advantages(
    net: RecurrentNet,
    tables: Tables,
    rewards: Tensor,
    batch: SessionTensors,
    gamma: float,
    probabilities: Tensor,
    states: Tensor,
    uniform: Tensor,
) -> Tensor:
    """The advantages (B, T) for one draw of noise (B, T), by the logged branch's probabilities (B, T, K) and states."""
    size, horizon = batch.items.shape
    before = net.previous(batch.behaviours)
    hidden, previous = torch.zeros_like(states), torch.zeros_like(batch.behaviours)  # column t: the branch masked at t
    advantages = states.new_zeros(size, horizon)
    terminal, survival = batch.behaviour_set.terminal, None
    if terminal:
        survival = Survival(batch.behaviour_set.terminal_table(rewards.device), states.new_zeros(2, size, horizon))
    for step in range(horizon):
        if step:
            hidden[:, :step] = _observe(tables, batch, step, hidden[:, :step], batch.items[:, step], previous[:, :step])
            branch = torch.softmax(tables.outputs(hidden[:, :step]), -1)  # (B, step, K)
            logged_reward, masked_reward = (probabilities[:, step] @ rewards).unsqueeze(1), branch @ rewards
            if survival is not None:
                logged_reward, masked_reward = survival.weigh(step, logged_reward, masked_reward)
                survival.advance(step, probabilities[:, step], branch)
            gain = (logged_reward - masked_reward) * batch.mask[:, step : step + 1]
            age = torch.arange(step, 0, -1, device=gain.device)
            advantages[:, :step] += gamma**age * gain
            previous[:, :step] = _answer(branch, uniform[:, step : step + 1], batch)
        now = slice(step, step + 1)
        masked = torch.full_like(batch.items[:, step], MASK_ROW)
        hidden[:, now] = _observe(tables, batch, step, states[:, now], masked, before[:, now])
        opened = torch.softmax(tables.outputs(hidden[:, step]), -1)
        previous[:, step] = _answer(opened, uniform[:, step], batch)
        if survival is not None:
            survival.open(step, probabilities[:, step], opened)
    return advantages


def _observe(tables: Tables, batch: SessionTensors, step: int, hidden: Tensor, items: Tensor, previous: Tensor) -> Tensor:
    """Hidden states (B, n, H) of n branches per session after a step, by its items (B,) and behaviours before it (B, n)."""
    count = hidden.shape[1]
    gates = None if batch.context is None else tables.context_gates(batch.context[:, step])
    gates = None if gates is None else gates.repeat_interleave(count, 0)
    after: Tensor = tables.observe(hidden.flatten(0, 1), items.repeat_interleave(count), previous.flatten(), gates)
    return after.view_as(hidden)


def _answers(probabilities: Tensor, batch: SessionTensors) -> Tensor:
    """Probabilities (…, K) of behaviours, of those that go on if some are terminal."""
    if not batch.behaviour_set.terminal:
        return probabilities
    going_on = probabilities * (1 - batch.behaviour_set.terminal_table(probabilities.device))
    return going_on / going_on.sum(-1, keepdim=True)


def _answer(probabilities: Tensor, uniform: Tensor, batch: SessionTensors) -> Tensor:
    """The behaviours (…) in whose intervals uniform numbers (…) lie, by probabilities (…, K)."""
    return sample_behaviour(_answers(probabilities, batch), uniform).to(batch.behaviours.dtype)


def session_numbers(batch: SessionTensors) -> Tensor:
    """Return a number for every session, (B,) int64, by its user, items and behaviours: the same in any batch."""
    numbers = batch.user.long()
    for step in range(batch.horizon):
        answered = (batch.items[:, step].long() * 256 + batch.behaviours[:, step].long()) * batch.mask[:, step]
        numbers = numbers * 1_000_003 + answered
    return numbers & 0xFFFFFFFFFF
