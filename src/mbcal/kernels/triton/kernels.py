"""The Triton kernels; `launches.py` starts them.

Rows of a tile are sessions, or pairs of session and candidate; columns are hidden units. Arrays are row-major. In all
kernels `row` (M,) are the tile's rows, `live` is false beyond the last one, and offsets have 64 bits, since B · T · H may
not fit 32. Sizes known at compile time: H hidden units, I units inside the head, K behaviours padded to N columns, M rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mbcal.kernels.triton.cells import (
    PRECISION,
    answer,
    behaviour_probabilities,
    expected_reward,
    gru_step,
    head_layer,
    load_transposed,
    lstm_step,
    reward_and_hazard,
    sigmoid,
    tanh,
)
from mbcal.types import MASK_ROW

MASKED = tl.constexpr(MASK_ROW)


@triton.jit
def session_gates_kernel(behaviours, weight, bias, hidden, previous, gates, count, H: tl.constexpr, M: tl.constexpr):
    """The gates (B, 4H) that all candidates of a session share: reset, update, the new gate's behaviour and hidden parts."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = (row < count)[:, None]
    offset = row[:, None].to(tl.int64)
    state = tl.load(hidden + offset * H + unit[None, :], mask=live, other=0.0)
    last = tl.load(previous + row, mask=row < count, other=0).to(tl.int32)
    behaviour_gates = behaviours + last[:, None] * (3 * H) + unit[None, :]
    out = gates + offset * (4 * H) + unit[None, :]
    for part in tl.static_range(2):
        half = tl.dot(state, load_transposed(weight, H, part * H, H, H), input_precision=PRECISION)
        half += tl.load(bias + part * H + unit)[None, :] + tl.load(behaviour_gates + part * H)
        tl.store(out + part * H, half, mask=live)
    tl.store(out + 2 * H, tl.load(behaviour_gates + 2 * H), mask=live)
    half = tl.dot(state, load_transposed(weight, H, 2 * H, H, H), input_precision=PRECISION)
    tl.store(out + 3 * H, half + tl.load(bias + 2 * H + unit)[None, :], mask=live)


@triton.jit
def score_kernel(
    items, gates, hidden, candidates, first, first_bias, second, second_bias, rewards, out, pairs, width,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Scores (B, C) of candidates, a tile of (session, candidate) pairs at a time; K is 0 for a value network."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = row < pairs
    item = tl.load(candidates + row, mask=live, other=0).to(tl.int64)
    session = (row // width).to(tl.int64)
    item_gates = items + item[:, None] * (3 * H) + unit[None, :]
    session_gates = gates + session[:, None] * (4 * H) + unit[None, :]
    live_2d = live[:, None]
    reset = sigmoid(tl.load(item_gates) + tl.load(session_gates, mask=live_2d, other=0.0))
    update = sigmoid(tl.load(item_gates + H) + tl.load(session_gates + H, mask=live_2d, other=0.0))
    new = tl.load(item_gates + 2 * H) + tl.load(session_gates + 2 * H, mask=live_2d, other=0.0)
    new = tanh(new + reset * tl.load(session_gates + 3 * H, mask=live_2d, other=0.0))
    state = tl.load(hidden + session[:, None] * H + unit[None, :], mask=live_2d, other=0.0)
    after = new + update * (state - new)
    if K > 0:
        value = expected_reward(after, first, first_bias, second, second_bias, rewards, H, I, K, N)
    else:
        inner = head_layer(after, first, first_bias, H, I)
        value = tl.sum(inner * tl.load(second + tl.arange(0, I))[None, :], 1) + tl.load(second_bias)
    tl.store(out + row, value, mask=live)


@triton.jit
def read_kernel(
    items, behaviours, weight, bias, hidden, step_items, step_behaviours, length, out, count, steps,
    HAS_LENGTH: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The hidden states (B, H) after steps (B, L), of which the first `length` (B,) count."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = row < count
    offset = row[:, None].to(tl.int64) * H + unit[None, :]
    state = tl.load(hidden + offset, mask=live[:, None], other=0.0)
    n_steps = tl.load(length + row, mask=live, other=0) if HAS_LENGTH else row * 0 + steps
    for step in range(steps):
        at = row.to(tl.int64) * steps + step
        item = tl.load(step_items + at, mask=live, other=0)
        behaviour = tl.load(step_behaviours + at, mask=live, other=0).to(tl.int32)
        moved = gru_step(items, behaviours, weight, bias, state, item, behaviour, H)
        state = tl.where((step < n_steps)[:, None], moved, state)
    tl.store(out + offset, state, mask=live[:, None])


@triton.jit
def epsilon_greedy_kernel(
    scores, available, uniform, chosen, propensity, count, width, stride, epsilon,
    C: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Index and propensity (B,) of the chosen candidate; a tile of sessions with all their candidates, padded to C."""
    row, column = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    live = row < count
    offset = row[:, None].to(tl.int64) * width + column[None, :]
    inside = live[:, None] & (column < width)[None, :]
    is_available = tl.load(available + offset, mask=inside, other=0).to(tl.int32)
    # as in choice.greedy: even a score of minus infinity beats a candidate that is not available
    score = tl.maximum(tl.load(scores + offset, mask=inside, other=-3e38), -3e38)
    score = tl.where(is_available > 0, score, -float("inf"))
    best = tl.argmax(score, 1, tie_break_left=True)
    n_available = tl.sum(is_available, 1)
    explore = tl.load(uniform + row.to(tl.int64) * stride, mask=live, other=0.0)
    which = tl.load(uniform + row.to(tl.int64) * stride + 1, mask=live, other=0.0)
    nth = tl.minimum((which * n_available).to(tl.int32), n_available - 1)
    before = (tl.cumsum(is_available, 1) <= nth[:, None]).to(tl.int32)
    explored = tl.sum(before * (column < width)[None, :].to(tl.int32), 1)
    index = tl.where(explore < epsilon, explored, best)
    probability = epsilon / n_available + (1 - epsilon) * (index == best).to(tl.float32)
    tl.store(chosen + row, index.to(tl.int64), mask=live)
    tl.store(propensity + row, probability, mask=live)


@triton.jit
def respond_kernel(
    items, behaviours, weight, bias, first, first_bias, second, second_bias,
    hidden, memory, shown, previous, uniform, response, next_hidden, next_memory, count, stride,
    LSTM: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """One step of a network of behaviours, and a behaviour (B,) sampled from its prediction."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = row < count
    offset = row[:, None].to(tl.int64) * H + unit[None, :]
    live_2d = live[:, None]
    state = tl.load(hidden + offset, mask=live_2d, other=0.0)
    item = tl.load(shown + row, mask=live, other=0)
    last = tl.load(previous + row, mask=live, other=0).to(tl.int32)
    if LSTM:
        cell = tl.load(memory + offset, mask=live_2d, other=0.0)
        state, cell = lstm_step(items, behaviours, weight, bias, state, cell, item, last, H)
        tl.store(next_memory + offset, cell, mask=live_2d)
    else:
        state = gru_step(items, behaviours, weight, bias, state, item, last, H)
    tl.store(next_hidden + offset, state, mask=live_2d)
    probabilities = behaviour_probabilities(state, first, first_bias, second, second_bias, H, I, K, N)
    drawn = tl.load(uniform + row.to(tl.int64) * stride, mask=live, other=0.0)
    tl.store(response + row, answer(probabilities, drawn, K, N).to(tl.uint8), mask=live)


@triton.jit
def logged_kernel(
    items, behaviours, weight, bias, first, first_bias, second, second_bias, rewards, terminal,
    begin, step_items, step_previous, states, expected, leaving, count, horizon,
    LEAVING: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """h_{t-1} (B, T, H) before every logged step, and the reward (B, T) expected at it; if LEAVING, also h_t (B, T)."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live, offset = row < count, row.to(tl.int64)
    live_2d = live[:, None]
    state = tl.load(begin + offset[:, None] * H + unit[None, :], mask=live_2d, other=0.0)
    for step in range(horizon):
        at = offset * horizon + step
        tl.store(states + at[:, None] * H + unit[None, :], state, mask=live_2d)
        item = tl.load(step_items + at, mask=live, other=0)
        previous = tl.load(step_previous + at, mask=live, other=0).to(tl.int32)
        state = gru_step(items, behaviours, weight, bias, state, item, previous, H)
        if LEAVING:
            reward, hazard = reward_and_hazard(state, first, first_bias, second, second_bias, rewards, terminal, H, I, K, N)
            tl.store(leaving + at, hazard, mask=live)
        else:
            reward = expected_reward(state, first, first_bias, second, second_bias, rewards, H, I, K, N)
        tl.store(expected + at, reward, mask=live)


@triton.jit
def masked_kernel(
    items, behaviours, weight, bias, first, first_bias, second, second_bias, rewards, terminal,
    states, expected, leaving, step_items, step_previous, length, uniform, out, count, horizon, gamma,
    NOISE: tl.constexpr,
    LEAVING: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The advantage of one step (program axis 1) of a tile of sessions: its item masked, what do the later steps lose?

    The masked branch keeps the logged behaviours; if NOISE, it answers anew, by uniform numbers (B, T).
    """
    row, unit, behaviour = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H), tl.arange(0, N)
    masked_step = tl.program_id(1)
    live, offset = row < count, row.to(tl.int64)
    at = offset * horizon + masked_step
    state = tl.load(states + at[:, None] * H + unit[None, :], mask=live[:, None], other=0.0)
    previous = tl.load(step_previous + at, mask=live, other=0).to(tl.int32)
    state = gru_step(items, behaviours, weight, bias, state, row * 0 + MASKED, previous, H)
    n_steps = tl.load(length + row, mask=live, other=0)
    reward_of = tl.load(rewards + behaviour, mask=behaviour < K, other=0.0)[None, :]
    is_terminal = tl.load(terminal + behaviour, mask=behaviour < K, other=0.0)[None, :]
    advantage = tl.zeros((M,), tl.float32)
    discount = gamma
    logged_weight = tl.full((M,), 1.0, tl.float32)  # survival from the masked step on, in either branch
    masked_weight = tl.full((M,), 1.0, tl.float32)
    if LEAVING or NOISE:
        probabilities = behaviour_probabilities(state, first, first_bias, second, second_bias, H, I, K, N)
        if LEAVING:
            logged_weight = 1 - tl.load(leaving + at, mask=live, other=0.0)
            masked_weight = 1 - tl.sum(probabilities * is_terminal, 1)
            probabilities *= 1 - is_terminal  # answers are drawn among those that go on
        if NOISE:
            previous = answer(probabilities, tl.load(uniform + at, mask=live, other=0.0), K, N)
    for step in range(masked_step + 1, horizon):
        at = offset * horizon + step
        item = tl.load(step_items + at, mask=live, other=0)
        if not NOISE:
            previous = tl.load(step_previous + at, mask=live, other=0).to(tl.int32)
        state = gru_step(items, behaviours, weight, bias, state, item, previous, H)
        probabilities = behaviour_probabilities(state, first, first_bias, second, second_bias, H, I, K, N)
        logged, reward = tl.load(expected + at, mask=live, other=0.0), tl.sum(probabilities * reward_of, 1)
        gain = logged_weight * logged - masked_weight * reward
        advantage += tl.where(step < n_steps, discount * gain, 0.0)
        discount *= gamma
        if LEAVING:
            logged_weight *= 1 - tl.load(leaving + at, mask=live, other=0.0)
            masked_weight *= 1 - tl.sum(probabilities * is_terminal, 1)
            probabilities *= 1 - is_terminal
        if NOISE:
            previous = answer(probabilities, tl.load(uniform + at, mask=live, other=0.0), K, N)
    tl.store(out + offset * horizon + masked_step, advantage, mask=live)
