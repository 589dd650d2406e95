"""A GRU with gradients in two kernels, one forward and one backward through time. The reference is `torch.nn.GRU`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mbcal.kernels.triton.cells import PRECISION, load_transposed, sigmoid, tanh


@triton.jit
def gru_forward_kernel(
    gates, weight, bias, begin, hidden, saved, count, steps,
    H: tl.constexpr, M: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """h_t (B, T, H) from gates (B, T, 3H) and h_0 (B, H).

    With SAVE, `saved` (B, T, 4H) gets reset, update, new and the hidden part of the new gate, for the backward pass.
    """
    row, unit = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, H)
    live, offset = (row < count)[:, None], row.to(tl.int64)
    state = tl.load(begin + offset[:, None] * H + unit[None, :], mask=live, other=0.0)
    to_reset, to_update, to_new = (
        load_transposed(weight, H, 0, H, H),
        load_transposed(weight, H, H, H, H),
        load_transposed(weight, H, 2 * H, H, H),
    )
    reset_bias, update_bias = tl.load(bias + unit)[None, :], tl.load(bias + H + unit)[None, :]
    new_bias = tl.load(bias + 2 * H + unit)[None, :]
    for step in range(steps):
        at = (offset * steps + step)[:, None]
        input_gates = gates + at * (3 * H) + unit[None, :]
        reset = tl.dot(state, to_reset, input_precision=PRECISION) + reset_bias
        reset = sigmoid(reset + tl.load(input_gates, mask=live, other=0.0))
        update = tl.dot(state, to_update, input_precision=PRECISION) + update_bias
        update = sigmoid(update + tl.load(input_gates + H, mask=live, other=0.0))
        hidden_new = tl.dot(state, to_new, input_precision=PRECISION) + new_bias
        new = tanh(tl.load(input_gates + 2 * H, mask=live, other=0.0) + reset * hidden_new)
        state = new + update * (state - new)
        tl.store(hidden + at * H + unit[None, :], state, mask=live)
        if SAVE:
            save_to = saved + at * (4 * H) + unit[None, :]
            tl.store(save_to, reset, mask=live)
            tl.store(save_to + H, update, mask=live)
            tl.store(save_to + 2 * H, new, mask=live)
            tl.store(save_to + 3 * H, hidden_new, mask=live)


@triton.jit
def gru_backward_kernel(
    grad_hidden, weight, begin, hidden, saved, grad_gates, grad_begin, grad_weight, grad_bias, count, steps,
    H: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Backward through time, from `grad_hidden` (B, T, H) to the gradients of gates, h_0, weight and bias.

    Every tile writes its own part of `grad_weight` (tiles, 3H, H) and `grad_bias` (tiles, 3H), to be summed afterwards.
    """
    tile = tl.program_id(0)
    row, unit = tile * M + tl.arange(0, M), tl.arange(0, H)
    live, offset = (row < count)[:, None], row.to(tl.int64)
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
    first = tl.load(begin + offset[:, None] * H + unit[None, :], mask=live, other=0.0)
    for step_from_end in range(steps):
        step = steps - 1 - step_from_end
        at = (offset * steps + step)[:, None]
        saved_at = saved + at * (4 * H) + unit[None, :]
        reset, update = tl.load(saved_at, mask=live, other=0.0), tl.load(saved_at + H, mask=live, other=0.0)
        new, hidden_new = tl.load(saved_at + 2 * H, mask=live, other=0.0), tl.load(saved_at + 3 * H, mask=live, other=0.0)
        before = tl.load(hidden + (at - 1) * H + unit[None, :], mask=live & (step > 0), other=0.0)
        before = tl.where(step > 0, before, first)
        grad += tl.load(grad_hidden + at * H + unit[None, :], mask=live, other=0.0)
        grad_new = grad * (1 - update) * (1 - new * new)
        grad_update = grad * (before - new) * update * (1 - update)
        grad_reset = grad_new * hidden_new * reset * (1 - reset)
        grad_hidden_new = grad_new * reset
        out = grad_gates + at * (3 * H) + unit[None, :]
        tl.store(out, grad_reset, mask=live)
        tl.store(out + H, grad_update, mask=live)
        tl.store(out + 2 * H, grad_new, mask=live)
        weight_reset += tl.dot(tl.trans(grad_reset), before, input_precision=PRECISION)
        weight_update += tl.dot(tl.trans(grad_update), before, input_precision=PRECISION)
        weight_new += tl.dot(tl.trans(grad_hidden_new), before, input_precision=PRECISION)
        bias_reset += tl.sum(grad_reset, 0)
        bias_update += tl.sum(grad_update, 0)
        bias_new += tl.sum(grad_hidden_new, 0)
        grad = grad * update
        grad += tl.dot(grad_reset, from_reset, input_precision=PRECISION)
        grad += tl.dot(grad_update, from_update, input_precision=PRECISION)
        grad += tl.dot(grad_hidden_new, from_new, input_precision=PRECISION)
    tl.store(grad_begin + offset[:, None] * H + unit[None, :], grad, mask=live)
    weight_out = grad_weight + tile * (3 * H * H) + square
    tl.store(weight_out, weight_reset)
    tl.store(weight_out + H * H, weight_update)
    tl.store(weight_out + 2 * H * H, weight_new)
    bias_out = grad_bias + tile * (3 * H) + unit
    tl.store(bias_out, bias_reset)
    tl.store(bias_out + H, bias_update)
    tl.store(bias_out + 2 * H, bias_new)


class GRU(torch.autograd.Function):
    """(gates (B, T, 3H), h_0 (B, H), weight (3H, H), bias (3H,)) -> h (B, T, H): a GRU after W_x x + bias was computed."""

    TILE = 16
    """Sessions of a tile."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, begin: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        (count, steps, _), size, needs_grad = gates.shape, begin.shape[1], any(ctx.needs_input_grad)
        gates, begin = gates.contiguous(), begin.contiguous()
        hidden = begin.new_empty(count, steps, size)
        saved = begin.new_empty(count, steps, 4 * size) if needs_grad else hidden
        gru_forward_kernel[(triton.cdiv(count, GRU.TILE),)](
            gates, weight, bias, begin, hidden, saved, count, steps, size, GRU.TILE, needs_grad
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
        gru_backward_kernel[(tiles,)](
            grads[0].contiguous(), weight, begin, hidden, saved, grad_gates, grad_begin, grad_weight, grad_bias,
            count, steps, size, GRU.TILE,
        )  # fmt: skip
        return grad_gates, grad_begin, grad_weight.sum(0), grad_bias.sum(0)
