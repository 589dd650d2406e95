"""The kernels of `fused`. Rows of a tile are sessions, or pairs of session and candidate; columns are hidden units.

Products use three passes of TF32 on the matrix units, which is float32 up to rounding. A GRU's gates lie as reset, update,
new, an LSTM's as in, forget, cell, out: blocks of H columns, as torch has them. What each launch computes is told in
`fused`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mbcal.types import MASK_ROW

if TYPE_CHECKING:
    from mbcal.scoring.tables import CellTables, Tables
    from mbcal.types import SessionTensors

PRECISION = tl.constexpr("tf32x3")
MASKED = tl.constexpr(MASK_ROW)


@triton.jit
def sigmoid(x):
    """By the fast exponential: within a few units in the last place."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Likewise; small values lose relative precision, not absolute."""
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def columns_of(matrix, wide, begin, rows: tl.constexpr, columns: tl.constexpr):
    """The transpose (columns, rows) of rows `begin` … of a matrix with `wide` columns, ready to be multiplied by."""
    down, across = tl.arange(0, columns), tl.arange(0, rows)
    return tl.load(matrix + (begin + across)[None, :] * wide + down[:, None])


@triton.jit
def _gru(items, behaviours, weight, bias, hidden, item, previous, H: tl.constexpr):
    """h_t (M, H) from h_{t-1} (M, H), item and previous behaviour (M,)."""
    unit = tl.arange(0, H)
    told = items + item[:, None].to(tl.int64) * (3 * H) + unit[None, :]
    said = behaviours + previous[:, None] * (3 * H) + unit[None, :]
    reset = tl.dot(hidden, columns_of(weight, H, 0, H, H), input_precision=PRECISION) + tl.load(bias + unit)[None, :]
    reset = sigmoid(reset + tl.load(told) + tl.load(said))
    update = tl.dot(hidden, columns_of(weight, H, H, H, H), input_precision=PRECISION) + tl.load(bias + H + unit)[None, :]
    update = sigmoid(update + tl.load(told + H) + tl.load(said + H))
    new = tl.dot(hidden, columns_of(weight, H, 2 * H, H, H), input_precision=PRECISION)
    new += tl.load(bias + 2 * H + unit)[None, :]
    new = tanh(tl.load(told + 2 * H) + tl.load(said + 2 * H) + reset * new)
    return new + update * (hidden - new)


@triton.jit
def _lstm(items, behaviours, weight, bias, hidden, memory, item, previous, H: tl.constexpr):
    """h_t and c_t (M, H)."""
    unit = tl.arange(0, H)
    told = items + item[:, None].to(tl.int64) * (4 * H) + unit[None, :]
    said = behaviours + previous[:, None] * (4 * H) + unit[None, :]
    take = tl.dot(hidden, columns_of(weight, H, 0, H, H), input_precision=PRECISION) + tl.load(bias + unit)[None, :]
    take = sigmoid(take + tl.load(told) + tl.load(said))
    keep = tl.dot(hidden, columns_of(weight, H, H, H, H), input_precision=PRECISION) + tl.load(bias + H + unit)[None, :]
    keep = sigmoid(keep + tl.load(told + H) + tl.load(said + H))
    new = tl.dot(hidden, columns_of(weight, H, 2 * H, H, H), input_precision=PRECISION)
    new = tanh(new + tl.load(bias + 2 * H + unit)[None, :] + tl.load(told + 2 * H) + tl.load(said + 2 * H))
    out = tl.dot(hidden, columns_of(weight, H, 3 * H, H, H), input_precision=PRECISION)
    out = sigmoid(out + tl.load(bias + 3 * H + unit)[None, :] + tl.load(told + 3 * H) + tl.load(said + 3 * H))
    memory = keep * memory + take * new
    return out * tanh(memory), memory


@triton.jit
def _inner(hidden, first, first_bias, H: tl.constexpr, I: tl.constexpr):
    """The first layer of the head, (M, I)."""
    made = tl.dot(hidden, columns_of(first, H, 0, I, H), input_precision=PRECISION)
    return tl.maximum(made + tl.load(first_bias + tl.arange(0, I))[None, :], 0.0)


@triton.jit
def _chances(
    hidden, first, first_bias, second, second_bias, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr
):
    """softmax(MLP(h)) (M, N) over K behaviours, the columns beyond them zero."""
    inner = _inner(hidden, first, first_bias, H, I)
    down, across = tl.arange(0, I), tl.arange(0, N)
    weight = tl.load(second + across[None, :] * I + down[:, None], mask=across[None, :] < K, other=0.0)
    logits = tl.dot(inner, weight, input_precision=PRECISION)
    logits += tl.load(second_bias + across, mask=across < K, other=-float("inf"))[None, :]
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _reward(
    hidden,
    first,
    first_bias,
    second,
    second_bias,
    rewards,
    H: tl.constexpr,
    I: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
):
    """The reward (M,) expected of what a network of behaviours says at h."""
    chances = _chances(hidden, first, first_bias, second, second_bias, H, I, K, N)
    across = tl.arange(0, N)
    return tl.sum(chances * tl.load(rewards + across, mask=across < K, other=0.0)[None, :], 1)


@triton.jit
def _gates_kernel(behaviours, weight, bias, hidden, previous, gates, count, H: tl.constexpr, M: tl.constexpr):
    """What candidates of a session share: reset and update gates, and the new one's two halves (B, 4H)."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = (row < count)[:, None]
    place = row[:, None].to(tl.int64)
    state = tl.load(hidden + place * H + unit[None, :], mask=live, other=0.0)
    last = tl.load(previous + row, mask=row < count, other=0)
    said = behaviours + last[:, None] * (3 * H) + unit[None, :]
    out = gates + place * (4 * H) + unit[None, :]
    for part in tl.static_range(2):
        half = tl.dot(state, columns_of(weight, H, part * H, H, H), input_precision=PRECISION)
        half += tl.load(bias + part * H + unit)[None, :] + tl.load(said + part * H)
        tl.store(out + part * H, half, mask=live)
    tl.store(out + 2 * H, tl.load(said + 2 * H), mask=live)
    half = tl.dot(state, columns_of(weight, H, 2 * H, H, H), input_precision=PRECISION)
    tl.store(out + 3 * H, half + tl.load(bias + 2 * H + unit)[None, :], mask=live)


@triton.jit
def _score_kernel(
    items, gates, hidden, candidates, first, first_bias, second, second_bias, rewards, out, pairs, width,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """A tile of pairs (session, candidate); K is 0 for a network of values."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = row < pairs
    item = tl.load(candidates + row, mask=live, other=0).to(tl.int64)
    who = (row // width).to(tl.int64)
    told = items + item[:, None] * (3 * H) + unit[None, :]
    shared = gates + who[:, None] * (4 * H) + unit[None, :]
    some = live[:, None]
    reset = sigmoid(tl.load(told) + tl.load(shared, mask=some, other=0.0))
    update = sigmoid(tl.load(told + H) + tl.load(shared + H, mask=some, other=0.0))
    new = tl.load(told + 2 * H) + tl.load(shared + 2 * H, mask=some, other=0.0)
    new = tanh(new + reset * tl.load(shared + 3 * H, mask=some, other=0.0))
    state = tl.load(hidden + who[:, None] * H + unit[None, :], mask=some, other=0.0)
    after = new + update * (state - new)
    if K > 0:
        value = _reward(after, first, first_bias, second, second_bias, rewards, H, I, K, N)
    else:
        inner = _inner(after, first, first_bias, H, I)
        value = tl.sum(inner * tl.load(second + tl.arange(0, I))[None, :], 1) + tl.load(second_bias)
    tl.store(out + row, value, mask=live)


@triton.jit
def _read_kernel(
    items, behaviours, weight, bias, hidden, told, said, length, out, count, steps,
    COUNTED: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """A GRU over steps (B, L) of known items and behaviours."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = row < count
    place = row[:, None].to(tl.int64) * H + unit[None, :]
    state = tl.load(hidden + place, mask=live[:, None], other=0.0)
    lasts = tl.load(length + row, mask=live, other=0) if COUNTED else row * 0 + steps
    for step in range(steps):
        at = row.to(tl.int64) * steps + step
        item = tl.load(told + at, mask=live, other=0)
        previous = tl.load(said + at, mask=live, other=0).to(tl.int32)
        moved = _gru(items, behaviours, weight, bias, state, item, previous, H)
        state = tl.where((step < lasts)[:, None], moved, state)
    tl.store(out + place, state, mask=live[:, None])


@triton.jit
def _choose_kernel(
    scores, available, uniform, chosen, propensity, count, width, stride, epsilon,
    C: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """A tile of sessions, all their candidates."""
    row, place = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    live = row < count
    at = row[:, None].to(tl.int64) * width + place[None, :]
    some = live[:, None] & (place < width)[None, :]
    free = tl.load(available + at, mask=some, other=0).to(tl.int32)
    score = tl.maximum(tl.load(scores + at, mask=some, other=-3e38), -3e38)  # even a score of -inf beats what is gone
    score = tl.where(free > 0, score, -float("inf"))
    best = tl.argmax(score, 1, tie_break_left=True)
    number = tl.sum(free, 1)
    first = tl.load(uniform + row.to(tl.int64) * stride, mask=live, other=0.0)
    second = tl.load(uniform + row.to(tl.int64) * stride + 1, mask=live, other=0.0)
    nth = tl.minimum((second * number).to(tl.int32), number - 1)
    drawn = tl.sum((tl.cumsum(free, 1) <= nth[:, None]).to(tl.int32) * (place < width)[None, :].to(tl.int32), 1)
    taken = tl.where(first < epsilon, drawn, best)
    chance = epsilon / number + (1 - epsilon) * (taken == best).to(tl.float32)
    tl.store(chosen + row, taken.to(tl.int64), mask=live)
    tl.store(propensity + row, chance, mask=live)


@triton.jit
def _answer_kernel(
    items, behaviours, weight, bias, first, first_bias, second, second_bias,
    hidden, memory, item, previous, uniform, behaviour, next_hidden, next_memory, count, stride,
    LSTM: tl.constexpr, H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """One step of a network of behaviours, and a draw from what it says."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live = row < count
    place = row[:, None].to(tl.int64) * H + unit[None, :]
    some = live[:, None]
    state = tl.load(hidden + place, mask=some, other=0.0)
    shown = tl.load(item + row, mask=live, other=0)
    last = tl.load(previous + row, mask=live, other=0).to(tl.int32)
    if LSTM:
        kept = tl.load(memory + place, mask=some, other=0.0)
        state, kept = _lstm(items, behaviours, weight, bias, state, kept, shown, last, H)
        tl.store(next_memory + place, kept, mask=some)
    else:
        state = _gru(items, behaviours, weight, bias, state, shown, last, H)
    tl.store(next_hidden + place, state, mask=some)
    reach = tl.cumsum(_chances(state, first, first_bias, second, second_bias, H, I, K, N), 1)
    across = tl.arange(0, N)
    whole = tl.sum(tl.where((across == K - 1)[None, :], reach, 0.0), 1)
    draw = tl.load(uniform + row.to(tl.int64) * stride, mask=live, other=0.0) * whole
    came = tl.sum(((reach <= draw[:, None]) & (across < K)[None, :]).to(tl.int32), 1)
    tl.store(behaviour + row, tl.minimum(came, K - 1).to(tl.uint8), mask=live)


@triton.jit
def _prefix_kernel(
    items, behaviours, weight, bias, first, first_bias, second, second_bias, rewards,
    begin, told, said, standing, expected, count, horizon,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """h_{t-1} (B, T, H) before, and the reward (B, T) expected at, every logged step."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live, wide = row < count, row.to(tl.int64)
    some = live[:, None]
    state = tl.load(begin + wide[:, None] * H + unit[None, :], mask=some, other=0.0)
    for step in range(horizon):
        at = wide * horizon + step
        tl.store(standing + at[:, None] * H + unit[None, :], state, mask=some)
        item = tl.load(told + at, mask=live, other=0)
        previous = tl.load(said + at, mask=live, other=0).to(tl.int32)
        state = _gru(items, behaviours, weight, bias, state, item, previous, H)
        reward = _reward(state, first, first_bias, second, second_bias, rewards, H, I, K, N)
        tl.store(expected + at, reward, mask=live)


@triton.jit
def _branch_kernel(
    items, behaviours, weight, bias, first, first_bias, second, second_bias, rewards,
    standing, expected, told, said, length, out, count, horizon, gamma,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The sessions of a tile with the item of one step masked: what their later steps lose."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    begin = tl.program_id(1)
    live, wide = row < count, row.to(tl.int64)
    at = wide * horizon + begin
    state = tl.load(standing + at[:, None] * H + unit[None, :], mask=live[:, None], other=0.0)
    previous = tl.load(said + at, mask=live, other=0).to(tl.int32)
    state = _gru(items, behaviours, weight, bias, state, row * 0 + MASKED, previous, H)
    last = tl.load(length + row, mask=live, other=0)
    gain = tl.zeros((M,), tl.float32)
    discount = gamma
    for step in range(begin + 1, horizon):
        at = wide * horizon + step
        item = tl.load(told + at, mask=live, other=0)
        previous = tl.load(said + at, mask=live, other=0).to(tl.int32)
        state = _gru(items, behaviours, weight, bias, state, item, previous, H)
        reward = _reward(state, first, first_bias, second, second_bias, rewards, H, I, K, N)
        gain += tl.where(step < last, discount * (tl.load(expected + at, mask=live, other=0.0) - reward), 0.0)
        discount *= gamma
    tl.store(out + wide * horizon + begin, gain, mask=live)


def _wide(number: int, least: int = 16) -> int:
    return max(least, triton.next_power_of_2(number))


def score(tables: Tables, rewards: Tensor | None, hidden: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
    """See `fused.score`."""
    cell, head = tables.cell, tables.head
    (count, size), width = hidden.shape, candidates.shape[1]
    hidden, previous, candidates = hidden.contiguous(), previous.contiguous(), candidates.contiguous()
    gates = hidden.new_empty(count, 4 * size)
    tile = 64
    grid = (triton.cdiv(count, tile),)
    _gates_kernel[grid](cell.behaviours, cell.weight, cell.bias, hidden, previous, gates, count, size, tile)
    out = hidden.new_empty(candidates.shape)
    pairs = count * width
    kinds = 0 if rewards is None else len(rewards)
    given = hidden if rewards is None else rewards
    _score_kernel[(triton.cdiv(pairs, tile),)](
        cell.items, gates, hidden, candidates, *head, given, out, pairs, width,
        size, head[0].shape[0], kinds, _wide(kinds), tile,
    )  # fmt: skip
    return out


def read(cell: CellTables, hidden: Tensor, items: Tensor, behaviours: Tensor, length: Tensor | None) -> Tensor:
    """See `fused.read`."""
    (count, size), steps, tile = hidden.shape, items.shape[1], 64
    hidden, out = hidden.contiguous(), torch.empty_like(hidden)
    _read_kernel[(triton.cdiv(count, tile),)](
        *cell.arrays, hidden, items.contiguous(), behaviours.contiguous(), hidden if length is None else length, out,
        count, steps, length is not None, size, tile,
    )  # fmt: skip
    return out


def epsilon_greedy(scores: Tensor, available: Tensor, epsilon: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """See `fused.epsilon_greedy`."""
    count, width = scores.shape
    chosen = torch.empty(count, dtype=torch.int64, device=scores.device)
    propensity = torch.empty(count, device=scores.device)
    tile = 64
    _choose_kernel[(triton.cdiv(count, tile),)](
        scores.contiguous(), available.contiguous(), uniform, chosen, propensity, count, width, uniform.stride(0),
        epsilon, _wide(width), tile,
    )  # fmt: skip
    return chosen, propensity


def respond(
    tables: Tables, state: tuple[Tensor, ...], item: Tensor, previous: Tensor, uniform: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `fused.answer`."""
    head = tables.head
    (count, size), tile = state[0].shape, 64
    after = tuple(torch.empty_like(part) for part in state)
    behaviour = torch.empty(count, dtype=torch.uint8, device=item.device)
    kinds = len(head[3])
    _answer_kernel[(triton.cdiv(count, tile),)](
        *tables.cell.arrays, *head, *(part.contiguous() for part in (state[0], state[-1], item, previous)), uniform,
        behaviour, after[0], after[-1], count, uniform.stride(0),
        len(state) == 2, size, head[0].shape[0], kinds, _wide(kinds), tile,
    )  # fmt: skip
    return behaviour, after


def advantage(tables: Tables, rewards: Tensor, begin: Tensor, batch: SessionTensors, gamma: float) -> Tensor:
    """See `fused.advantage`."""
    (count, size), horizon = begin.shape, batch.horizon
    tile = 64 if size <= 32 else 16  # what the loops keep of wider states must fit a multiprocessor's memory
    start = len(rewards)  # the symbol after all behaviours
    previous = torch.nn.functional.pad(batch.behaviours[:, :-1], (1, 0), value=start)
    standing, expected = begin.new_empty(count, horizon, size), begin.new_empty(count, horizon)
    out = torch.empty_like(expected)
    network, kinds = (*tables.cell.arrays, *tables.head, rewards), len(rewards)
    sizes: tuple[Any, ...] = (size, tables.head[0].shape[0], kinds, _wide(kinds), tile)
    told = batch.items.contiguous()
    tiles = triton.cdiv(count, tile)
    _prefix_kernel[(tiles,)](*network, begin.contiguous(), told, previous, standing, expected, count, horizon, *sizes)
    _branch_kernel[(tiles, horizon)](
        *network, standing, expected, told, previous, batch.length, out, count, horizon, gamma, *sizes
    )
    return out
