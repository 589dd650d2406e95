"""Launches of the kernels of `kernels.py` on tensors.

What each function computes is documented in `mbcal.kernels.triton`, which checks sizes and devices first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources as OutOfResources  # for the caller, which imports no Triton

from mbcal.kernels.triton import kernels

if TYPE_CHECKING:
    from mbcal.scoring.tables import CellTables, Tables
    from mbcal.types import SessionTensors

TILE, SMALL_TILE = 64, 16
"""Rows of a tile."""
MAX_TILE_SIZE = 32
"""Hidden units up to which the kernels of `advantage` use the large tile; wider ones would not fit on chip."""


def score(tables: Tables, rewards: Tensor | None, hidden: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
    """See `mbcal.kernels.triton.score`."""
    cell, head = tables.cell, tables.head
    (count, size), width = hidden.shape, candidates.shape[1]
    hidden, previous, candidates = hidden.contiguous(), previous.contiguous(), candidates.contiguous()
    gates = hidden.new_empty(count, 4 * size)
    kernels.session_gates_kernel[(triton.cdiv(count, TILE),)](
        cell.behaviours, cell.weight, cell.bias, hidden, previous, gates, count, size, TILE
    )
    out = hidden.new_empty(candidates.shape)
    n_pairs, n_rewards = count * width, 0 if rewards is None else len(rewards)
    rewards_or_any = hidden if rewards is None else rewards  # a value network's kernel does not read them
    kernels.score_kernel[(triton.cdiv(n_pairs, TILE),)](
        cell.items, gates, hidden, candidates, *head, rewards_or_any, out, n_pairs, width,
        size, head[0].shape[0], n_rewards, _padded(n_rewards), TILE,
    )  # fmt: skip
    return out


def read(cell: CellTables, hidden: Tensor, items: Tensor, behaviours: Tensor, length: Tensor | None) -> Tensor:
    """See `mbcal.kernels.triton.read`."""
    (count, size), steps = hidden.shape, items.shape[1]
    hidden, out = hidden.contiguous(), torch.empty_like(hidden)
    length_or_any = hidden if length is None else length  # without lengths the kernel does not read them
    kernels.read_kernel[(triton.cdiv(count, TILE),)](
        *cell.arrays, hidden, items.contiguous(), behaviours.contiguous(), length_or_any, out,
        count, steps, length is not None, size, TILE,
    )  # fmt: skip
    return out


def epsilon_greedy(scores: Tensor, available: Tensor, epsilon: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """See `mbcal.kernels.triton.epsilon_greedy`."""
    count, width = scores.shape
    chosen = torch.empty(count, dtype=torch.int64, device=scores.device)
    propensity = torch.empty(count, device=scores.device)
    kernels.epsilon_greedy_kernel[(triton.cdiv(count, TILE),)](
        scores.contiguous(), available.contiguous(), uniform, chosen, propensity, count, width, uniform.stride(0),
        epsilon, _padded(width), TILE,
    )  # fmt: skip
    return chosen, propensity


def respond(
    tables: Tables, state: tuple[Tensor, ...], item: Tensor, previous: Tensor, uniform: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """See `mbcal.kernels.triton.respond`."""
    head = tables.head
    count, size = state[0].shape
    after = tuple(torch.empty_like(part) for part in state)
    behaviour = torch.empty(count, dtype=torch.uint8, device=item.device)
    n_behaviours = len(head[3])
    kernels.respond_kernel[(triton.cdiv(count, TILE),)](
        *tables.cell.arrays, *head, *(part.contiguous() for part in (state[0], state[-1], item, previous)), uniform,
        behaviour, after[0], after[-1], count, uniform.stride(0),
        len(state) == 2, size, head[0].shape[0], n_behaviours, _padded(n_behaviours), TILE,
    )  # fmt: skip
    return behaviour, after


def advantage(
    tables: Tables,
    rewards: Tensor,
    begin: Tensor,
    batch: SessionTensors,
    gamma: float,
    terminal: Tensor | None = None,
    gates: Tensor | None = None,
    uniform: Sequence[Tensor] = (),
) -> Tensor:
    """See `mbcal.kernels.triton.advantage`."""
    (count, size), horizon = begin.shape, batch.horizon
    tile = TILE if size <= MAX_TILE_SIZE else SMALL_TILE
    n_behaviours = len(rewards)
    previous = torch.nn.functional.pad(batch.behaviours[:, :-1], (1, 0), value=n_behaviours)  # the start symbol comes last
    cell = tables.cell
    if gates is not None:  # every step has a row of behaviours of its own, to which its context is added
        cell, rows = cell.in_context(previous.flatten(), gates.flatten(0, 1))
        previous = rows.to(torch.int32).view(count, horizon)
    states, expected = begin.new_empty(count, horizon, size), begin.new_empty(count, horizon)
    leaving = expected if terminal is None else torch.empty_like(expected)  # not written where nothing is terminal
    network = (*cell.arrays, *tables.head, rewards, rewards if terminal is None else terminal)
    inner = tables.head[0].shape[0]
    sizes: tuple[Any, ...] = (terminal is not None, size, inner, n_behaviours, _padded(n_behaviours), tile)
    items, n_tiles = batch.items.contiguous(), triton.cdiv(count, tile)
    kernels.logged_kernel[(n_tiles,)](
        *network, begin.contiguous(), items, previous, states, expected, leaving, count, horizon, *sizes
    )
    logged = (states, expected, leaving, items, previous, batch.length)
    advantages = []
    for numbers in uniform or (expected,):  # not read where no noise is given
        advantages.append(torch.empty_like(expected))
        kernels.masked_kernel[(n_tiles, horizon)](
            *network, *logged, numbers.contiguous(), advantages[-1], count, horizon, gamma, bool(uniform), *sizes
        )
    return torch.stack(advantages).mean(0)


def _padded(size: int) -> int:
    """The next power of two that a tile may be wide, at least 16."""
    return max(16, int(triton.next_power_of_2(size)))
