"""A GRU that learns in two kernels, one forward and one back through time; the twin of `torch.nn.GRU`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mbcal.kernels.triton.kernels import PRECISION, columns_of, sigmoid, tanh


@triton.jit
def _gru_forward_kernel(
    gates, weight, bias, begin, hidden, saved, count, steps,
    H: tl.constexpr, M: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """h_t (B, T, H) of a GRU whose inputs have been multiplied in: gates (B, T, 3H)."""
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    some, wide = (row < count)[:, None], row.to(tl.int64)
    state = tl.load(begin + wide[:, None] * H + unit[None, :], mask=some, other=0.0)
    to_reset, to_update, to_new = (
        columns_of(weight, H, 0, H, H),
        columns_of(weight, H, H, H, H),
        columns_of(weight, H, 2 * H, H, H),
    )
    reset_bias, update_bias = tl.load(bias + unit)[None, :], tl.load(bias + H + unit)[None, :]
    new_bias = tl.load(bias + 2 * H + unit)[None, :]
    for step in range(steps):
        at = (wide * steps + step)[:, None]
        told = gates + at * (3 * H) + unit[None, :]
        reset = tl.dot(state, to_reset, input_precision=PRECISION) + reset_bias
        reset = sigmoid(reset + tl.load(told, mask=some, other=0.0))
        update = tl.dot(state, to_update, input_precision=PRECISION) + update_bias
        update = sigmoid(update + tl.load(told + H, mask=some, other=0.0))
        past = tl.dot(state, to_new, input_precision=PRECISION) + new_bias
        new = tanh(tl.load(told + 2 * H, mask=some, other=0.0) + reset * past)
        state = new + update * (state - new)
        tl.store(hidden + at * H + unit[None, :], state, mask=some)
        if SAVE:
            kept = saved + at * (4 * H) + unit[None, :]
            tl.store(kept, reset, mask=some)
            tl.store(kept + H, update, mask=some)
            tl.store(kept + 2 * H, new, mask=some)
            tl.store(kept + 3 * H, past, mask=some)


@triton.jit
def _gru_backward_kernel(
    grad_hidden, weight, begin, hidden, saved, grad_gates, grad_begin, grad_weight, grad_bias, count, steps,
    H: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Backwards through time. Every tile writes what it adds to the gradients of weight (3H, H) and bias (3H,)."""
    tile = tl.program_id(0)
    row, unit = tile * M + tl.arange(0, M), tl.arange(0, H)
    some, wide = (row < count)[:, None], row.to(tl.int64)
    square = unit[:, None] * H + unit[None, :]
    from_reset, from_update, from_new = (
        tl.load(weight + square),
        tl.load(weight + H * H + square),
        tl.load(weight + 2 * H * H + square),
    )
    weight_reset, weight_update = tl.zeros((H, H), tl.float32), tl.zeros((H, H), tl.float32)
    weight_new = tl.zeros((H, H), tl.float32)
    bias_reset, bias_update, bias_new = tl.zeros((H,), tl.float32), tl.zeros((H,), tl.float32), tl.zeros((H,), tl.float32)
    grad = tl.zeros((M, H), tl.float32)
    first = tl.load(begin + wide[:, None] * H + unit[None, :], mask=some, other=0.0)
    for back in range(steps):
        step = steps - 1 - back
        at = (wide * steps + step)[:, None]
        kept = saved + at * (4 * H) + unit[None, :]
        reset, update = tl.load(kept, mask=some, other=0.0), tl.load(kept + H, mask=some, other=0.0)
        new, past = tl.load(kept + 2 * H, mask=some, other=0.0), tl.load(kept + 3 * H, mask=some, other=0.0)
        before = tl.load(hidden + (at - 1) * H + unit[None, :], mask=some & (step > 0), other=0.0)
        before = tl.where(step > 0, before, first)
        grad += tl.load(grad_hidden + at * H + unit[None, :], mask=some, other=0.0)
        grad_new = grad * (1 - update) * (1 - new * new)
        grad_update = grad * (before - new) * update * (1 - update)
        grad_reset = grad_new * past * reset * (1 - reset)
        grad_past = grad_new * reset
        out = grad_gates + at * (3 * H) + unit[None, :]
        tl.store(out, grad_reset, mask=some)
        tl.store(out + H, grad_update, mask=some)
        tl.store(out + 2 * H, grad_new, mask=some)
        weight_reset += tl.dot(tl.trans(grad_reset), before, input_precision=PRECISION)
        weight_update += tl.dot(tl.trans(grad_update), before, input_precision=PRECISION)
        weight_new += tl.dot(tl.trans(grad_past), before, input_precision=PRECISION)
        bias_reset += tl.sum(grad_reset, 0)
        bias_update += tl.sum(grad_update, 0)
        bias_new += tl.sum(grad_past, 0)
        grad = grad * update
        grad += tl.dot(grad_reset, from_reset, input_precision=PRECISION)
        grad += tl.dot(grad_update, from_update, input_precision=PRECISION)
        grad += tl.dot(grad_past, from_new, input_precision=PRECISION)
    tl.store(grad_begin + wide[:, None] * H + unit[None, :], grad, mask=some)
    mine = grad_weight + tile * (3 * H * H) + square
    tl.store(mine, weight_reset)
    tl.store(mine + H * H, weight_update)
    tl.store(mine + 2 * H * H, weight_new)
    tl.store(grad_bias + tile * (3 * H) + unit, bias_reset)
    tl.store(grad_bias + tile * (3 * H) + H + unit, bias_update)
    tl.store(grad_bias + tile * (3 * H) + 2 * H + unit, bias_new)


class GRU(torch.autograd.Function):
    """torch's GRU after its inputs have been multiplied in: (gates (B, T, 3H), h_0 (B, H), W_hh, b_hh) -> h (B, T, H)."""

    TILE = 16

    @staticmethod
    def forward(ctx: Any, gates: Tensor, begin: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        (count, steps, _), size, saves = gates.shape, begin.shape[1], any(ctx.needs_input_grad)
        gates, begin = gates.contiguous(), begin.contiguous()
        hidden = begin.new_empty(count, steps, size)
        saved = begin.new_empty(count, steps, 4 * size) if saves else hidden
        _gru_forward_kernel[(triton.cdiv(count, GRU.TILE),)](
            gates, weight, bias, begin, hidden, saved, count, steps, size, GRU.TILE, saves
        )
        ctx.save_for_backward(weight, begin, hidden, saved)
        return hidden

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight, begin, hidden, saved = ctx.saved_tensors
        count, steps, size = hidden.shape
        tiles = triton.cdiv(count, GRU.TILE)
        grad_gates, grad_begin = hidden.new_empty(count, steps, 3 * size), torch.empty_like(begin)
        grad_weight, grad_bias = hidden.new_empty(tiles, 3 * size, size), hidden.new_empty(tiles, 3 * size)
        _gru_backward_kernel[(tiles,)](
            grads[0].contiguous(), weight, begin, hidden, saved, grad_gates, grad_begin, grad_weight, grad_bias,
            count, steps, size, GRU.TILE,
        )  # fmt: skip
        return grad_gates, grad_begin, grad_weight.sum(0), grad_bias.sum(0)
