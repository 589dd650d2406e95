"""Device functions of the Triton kernels: recurrent cells and the head, on tiles of M rows and H hidden units.

Arguments named `items`, `behaviours`, `weight`, `bias` point to the arrays of `scoring.tables.CellTables`; `first`,
`first_bias`, `second`, `second_bias` to the head of `Tables`. A GRU's gates lie as reset, update, new, an LSTM's as input,
forget, cell, output: blocks of H columns, in torch's order.

Matrix products use three passes of TF32 on the tensor cores, which is float32 up to rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

PRECISION = tl.constexpr("tf32x3")


@triton.jit
def sigmoid(x):
    """By the fast exponential: within a few units in the last place."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """By the fast exponential: small results lose relative precision, not absolute."""
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def load_transposed(matrix, stride, begin, rows: tl.constexpr, columns: tl.constexpr):
    """Load `rows` rows of a matrix from row `begin` on, transposed: (columns, rows). `stride` is the matrix's width."""
    column, row = tl.arange(0, columns), tl.arange(0, rows)
    return tl.load(matrix + (begin + row)[None, :] * stride + column[:, None])


@triton.jit
def gru_step(items, behaviours, weight, bias, hidden, item, previous, H: tl.constexpr):
    """h_t (M, H) from h_{t-1} (M, H), item (M,) and previous behaviour (M,)."""
    unit = tl.arange(0, H)
    item_gates = items + item[:, None].to(tl.int64) * (3 * H) + unit[None, :]
    behaviour_gates = behaviours + previous[:, None] * (3 * H) + unit[None, :]
    reset = tl.dot(hidden, load_transposed(weight, H, 0, H, H), input_precision=PRECISION)
    reset += tl.load(bias + unit)[None, :]
    reset = sigmoid(reset + tl.load(item_gates) + tl.load(behaviour_gates))
    update = tl.dot(hidden, load_transposed(weight, H, H, H, H), input_precision=PRECISION)
    update += tl.load(bias + H + unit)[None, :]
    update = sigmoid(update + tl.load(item_gates + H) + tl.load(behaviour_gates + H))
    new = tl.dot(hidden, load_transposed(weight, H, 2 * H, H, H), input_precision=PRECISION)
    new += tl.load(bias + 2 * H + unit)[None, :]
    new = tanh(tl.load(item_gates + 2 * H) + tl.load(behaviour_gates + 2 * H) + reset * new)
    return new + update * (hidden - new)


@triton.jit
def lstm_step(items, behaviours, weight, bias, hidden, memory, item, previous, H: tl.constexpr):
    """h_t and c_t (M, H) from h_{t-1} and c_{t-1} (M, H), item (M,) and previous behaviour (M,)."""
    unit = tl.arange(0, H)
    item_gates = items + item[:, None].to(tl.int64) * (4 * H) + unit[None, :]
    behaviour_gates = behaviours + previous[:, None] * (4 * H) + unit[None, :]
    take = tl.dot(hidden, load_transposed(weight, H, 0, H, H), input_precision=PRECISION)
    take += tl.load(bias + unit)[None, :]
    take = sigmoid(take + tl.load(item_gates) + tl.load(behaviour_gates))
    keep = tl.dot(hidden, load_transposed(weight, H, H, H, H), input_precision=PRECISION)
    keep += tl.load(bias + H + unit)[None, :]
    keep = sigmoid(keep + tl.load(item_gates + H) + tl.load(behaviour_gates + H))
    new = tl.dot(hidden, load_transposed(weight, H, 2 * H, H, H), input_precision=PRECISION)
    new = tanh(new + tl.load(bias + 2 * H + unit)[None, :] + tl.load(item_gates + 2 * H) + tl.load(behaviour_gates + 2 * H))
    out = tl.dot(hidden, load_transposed(weight, H, 3 * H, H, H), input_precision=PRECISION)
    out = sigmoid(
        out + tl.load(bias + 3 * H + unit)[None, :] + tl.load(item_gates + 3 * H) + tl.load(behaviour_gates + 3 * H)
    )
    memory = keep * memory + take * new
    return out * tanh(memory), memory


@triton.jit
def head_layer(hidden, first, first_bias, H: tl.constexpr, I: tl.constexpr):
    """The head's first layer with ReLU: h (M, H) -> (M, I)."""
    inner = tl.dot(hidden, load_transposed(first, H, 0, I, H), input_precision=PRECISION)
    return tl.maximum(inner + tl.load(first_bias + tl.arange(0, I))[None, :], 0.0)


@triton.jit
def behaviour_probabilities(
    hidden, first, first_bias, second, second_bias,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """softmax(MLP(h)): h (M, H) -> (M, N), of which the first K columns are behaviours and the others zero."""
    inner = head_layer(hidden, first, first_bias, H, I)
    unit, behaviour = tl.arange(0, I), tl.arange(0, N)
    weight = tl.load(second + behaviour[None, :] * I + unit[:, None], mask=behaviour[None, :] < K, other=0.0)
    logits = tl.dot(inner, weight, input_precision=PRECISION)
    logits += tl.load(second_bias + behaviour, mask=behaviour < K, other=-float("inf"))[None, :]
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def expected_reward(
    hidden, first, first_bias, second, second_bias, rewards,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The expected reward (M,) in states h (M, H), by a network of K behaviours with rewards (K,)."""
    probabilities = behaviour_probabilities(hidden, first, first_bias, second, second_bias, H, I, K, N)
    behaviour = tl.arange(0, N)
    return tl.sum(probabilities * tl.load(rewards + behaviour, mask=behaviour < K, other=0.0)[None, :], 1)


@triton.jit
def reward_and_hazard(
    hidden, first, first_bias, second, second_bias, rewards, terminal,
    H: tl.constexpr, I: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The expected reward (M,) in states h (M, H), and the probability (M,) of a terminal behaviour, by `terminal` (K,)."""
    probabilities = behaviour_probabilities(hidden, first, first_bias, second, second_bias, H, I, K, N)
    behaviour = tl.arange(0, N)
    reward = tl.load(rewards + behaviour, mask=behaviour < K, other=0.0)
    is_terminal = tl.load(terminal + behaviour, mask=behaviour < K, other=0.0)
    return tl.sum(probabilities * reward[None, :], 1), tl.sum(probabilities * is_terminal[None, :], 1)


@triton.jit
def answer(probabilities, uniform, K: tl.constexpr, N: tl.constexpr):
    """The behaviours (M,) in whose intervals uniform numbers (M,) lie, by probabilities (M, N) up to a factor."""
    column, cumulative = tl.arange(0, N), tl.cumsum(probabilities, 1)
    total = tl.sum(tl.where((column == K - 1)[None, :], cumulative, 0.0), 1)
    is_before = (cumulative <= (uniform * total)[:, None]) & (column < K)[None, :]
    return tl.minimum(tl.sum(is_before.to(tl.int32), 1), K - 1)
