"""The inner loops of roll-outs and labels as one GPU kernel each: fast twins of plain torch code, written in Triton.

Each function does what one function elsewhere does, which stays the definition and is used wherever this answers None: on
a CPU, without Triton, for sizes the kernels are not made for. `MBCAL_FUSED=0` turns all of it off. Nothing here imports
torch or Triton before a tensor on a GPU has come.

============================  =========================================
fused                         its twin
============================  =========================================
`score`                       `scorers.ScoreTerm.value(Tables.score)`
`read`                        `scoring.CellTables.observe`, step by step
`epsilon_greedy`              `scoring.epsilon_greedy`
`answer`                      `environment.ModelEnvironment.answer`
`advantage`                   `labels.counterfactual_future_advantage`
`gru`                         `torch.nn.GRU`
============================  =========================================
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mbcal.scoring.tables import CellTables, Tables
    from mbcal.types import SessionTensors

Array = Any
SIZES = (16, 32, 64, 128)
"""Widths of hidden states the kernels are made for: tiles of matrix units."""
TRAINED = (16, 32)
"""Widths for which a GRU learns here; wider ones do not fit a tile's registers and are left to cuDNN."""


def gru(gates: Array, begin: Array, weight: Array, bias: Array) -> Array | None:
    """h_t (B, T, H) from what inputs add to the gates (B, T, 3H) and h_0 (B, H); with gradients."""
    if not runs_on(gates) or begin.shape[1] not in TRAINED:
        return None
    from mbcal.kernels.triton.recurrence import GRU

    return GRU.apply(gates, begin, weight, bias)  # type: ignore[no-untyped-call]


def runs_on(array: Array) -> bool:
    """Whether kernels can take arrays that lie where this one does."""
    return bool(getattr(array, "is_cuda", False)) and os.environ.get("MBCAL_FUSED") != "0" and _kernels() is not None


def score(tables: Tables, rewards: Array | None, hidden: Array, previous: Array, candidates: Array) -> Array | None:
    """(B, C): the value of each candidate, or the reward expected of it where `rewards` are given."""
    if not _ready(hidden, tables.cell, tables.head[0].shape[0], tables.head[3].shape[0]):
        return None
    return _kernels().score(tables, rewards, hidden, previous, candidates)


def read(cell: CellTables, hidden: Array, items: Array, behaviours: Array, length: Array | None) -> Array | None:
    """The hidden states (B, H) after steps (B, L) have gone in, of which the first `length` (B,) count."""
    return _kernels().read(cell, hidden, items, behaviours, length) if _ready(hidden, cell) else None


def epsilon_greedy(scores: Array, available: Array, epsilon: float, uniform: Array) -> tuple[Array, Array] | None:
    """Index and propensity (B,) of what is chosen."""
    return _kernels().epsilon_greedy(scores, available, epsilon, uniform) if runs_on(scores) else None


def respond(
    tables: Tables, state: tuple[Array, ...], item: Array, previous: Array, uniform: Array
) -> tuple[Array, tuple[Array, ...]] | None:
    """Behaviours (B,) drawn by a network of behaviours, and the states (h,) or (h, c) after them."""
    if not _ready(state[0], tables.cell, tables.head[0].shape[0], tables.head[3].shape[0]):
        return None
    made: tuple[Array, tuple[Array, ...]] = _kernels().respond(tables, state, item, previous, uniform)
    return made


def advantage(tables: Tables, rewards: Array, begin: Array, batch: SessionTensors, gamma: float) -> Array | None:
    """The counterfactual future advantage (B, T) of every logged step, from states before the first (B, H)."""
    if not _ready(begin, tables.cell, tables.head[0].shape[0], tables.head[3].shape[0]):
        return None
    return _kernels().advantage(tables, rewards, begin, batch, gamma)


def _ready(hidden: Array, cell: CellTables, inner: int | None = None, outputs: int = 1) -> bool:
    """Whether the kernels are made for states (B, H) of this kind."""
    sizes = [hidden.shape[-1], *([] if inner is None else [inner])]
    if not runs_on(hidden) or not all(size in SIZES for size in sizes) or outputs > 64:
        return False
    return hidden.ndim == 2 and not hidden.requires_grad and str(cell.items.dtype) == "torch.float32"


@cache
def _kernels() -> Any:
    """The module with the kernels, or None where there is no Triton."""
    try:
        from mbcal.kernels.triton import kernels
    except ImportError:
        return None
    found: ModuleType = kernels
    return found
