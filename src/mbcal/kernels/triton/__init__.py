"""The inner loops of roll-outs, labels and training as GPU kernels, written in Triton.

Each function computes what one function of plain torch code computes, its reference implementation. It returns None where it
does not apply (arrays on a CPU, no Triton, sizes that do not fit the GPU), and the caller goes on with the reference
implementation. `MBCAL_FUSED=0` turns all kernels off. Torch and Triton are imported when the first tensor on a GPU arrives.

============================  ==================================================
function                      reference implementation
============================  ==================================================
`score`                       `scoring.scorers.ScoreTerm.score`
`read`                        `scoring.tables.CellTables.observe`, step by step
`epsilon_greedy`              `scoring.choice.epsilon_greedy`
`respond`                     `environments.model.ModelEnvironment.respond`
`advantage`                   `training.labels.counterfactual_future_advantage`
`gru`                         `torch.nn.GRU`
============================  ==================================================

Modules: `cells` (device functions), `kernels`, `launches` (their call on tensors), `recurrence` (the GRU with gradients).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mbcal.scoring.tables import CellTables, Tables
    from mbcal.types import SessionTensors

Array = Any
"""A torch tensor, or a numpy array, for which every function returns None."""
SIZES = (16, 32, 64, 128)
"""Supported widths of hidden states and of the head: tiles of the tensor cores."""
TRAINABLE_SIZES = (16, 32)
"""Supported hidden sizes of `gru`. Wider gradients do not fit a tile's registers and are left to cuDNN."""
MAX_OUTPUTS = 64


def runs_on(array: Array) -> bool:
    """Whether kernels are available for arrays on this array's device."""
    return bool(getattr(array, "is_cuda", False)) and os.environ.get("MBCAL_FUSED") != "0" and _launches() is not None


def gru(gates: Array, begin: Array, weight: Array, bias: Array) -> Array | None:
    """Run a GRU over sequences, with gradients.

    Args:
        gates: (B, T, 3H) what the inputs add to the gates, W_x x + bias.
        begin: (B, H) h_0.
        weight: (3H, H) W_h.
        bias: (3H,).

    Returns:
        h_t (B, T, H), or None.
    """
    if not runs_on(gates) or begin.shape[1] not in TRAINABLE_SIZES:
        return None
    from mbcal.kernels.triton.recurrence import GRU

    return GRU.apply(gates, begin, weight, bias)  # type: ignore[no-untyped-call]


def score(tables: Tables, rewards: Array | None, hidden: Array, previous: Array, candidates: Array) -> Array | None:
    """Score candidates by one network.

    Args:
        tables: The network.
        rewards: (K,) the reward of each behaviour; None for a value network.
        hidden: (B, H) hidden states.
        previous: (B,) previous behaviours, int64.
        candidates: (B, C) catalogue rows.

    Returns:
        Expected rewards or values (B, C), or None.
    """
    if not _supports(hidden, tables.cell, tables.head[0].shape[0], tables.head[3].shape[0]):
        return None
    return _launch(_launches().score, tables, rewards, hidden, previous, candidates)


def read(cell: CellTables, hidden: Array, items: Array, behaviours: Array, length: Array | None) -> Array | None:
    """Run a cell over several steps.

    Args:
        cell: The cell.
        hidden: (B, H) hidden states before.
        items: (B, L) catalogue rows.
        behaviours: (B, L) the behaviour that goes in with each item.
        length: (B,) how many steps count, int32; None for all.

    Returns:
        Hidden states (B, H) after, or None.
    """
    if not _supports(hidden, cell):
        return None
    return _launch(_launches().read, cell, hidden, items, behaviours, length)


def epsilon_greedy(scores: Array, available: Array, epsilon: float, uniform: Array) -> tuple[Array, Array] | None:
    """Choose candidates.

    Args:
        scores: (B, C).
        available: (B, C) bool, at least one per session.
        epsilon: In [0, 1].
        uniform: (B, 2).

    Returns:
        Indices (B,) int64 and propensities (B,), or None.
    """
    return _launches().epsilon_greedy(scores, available, epsilon, uniform) if runs_on(scores) else None


def respond(
    tables: Tables, state: tuple[Array, ...], item: Array, previous: Array, uniform: Array
) -> tuple[Array, tuple[Array, ...]] | None:
    """Sample behaviours from a network of behaviours.

    Args:
        tables: The network, with a GRU or an LSTM cell.
        state: (h,) or (h, c), each (B, H).
        item: (B,) the items shown.
        previous: (B,) previous behaviours.
        uniform: (B,).

    Returns:
        Behaviours (B,) uint8 and the state after the step, or None.
    """
    if not _supports(state[0], tables.cell, tables.head[0].shape[0], tables.head[3].shape[0]):
        return None
    response: tuple[Array, tuple[Array, ...]] | None = _launch(_launches().respond, tables, state, item, previous, uniform)
    return response


def advantage(
    tables: Tables,
    rewards: Array,
    begin: Array,
    batch: SessionTensors,
    gamma: float,
    terminal: Array | None = None,
    gates: Array | None = None,
    uniform: Sequence[Array] = (),
) -> Array | None:
    """Compute the counterfactual future advantage of every logged step.

    Args:
        tables: The environment model, with a GRU cell.
        rewards: (K,) the reward of each behaviour.
        begin: (B, H) hidden states before the first step.
        batch: B logged sessions.
        gamma: Discount.
        terminal: (K,) 1.0 where a behaviour is terminal; None if none is.
        gates: (B, T, 3H) what the context of each step adds to the gates; None without context.
        uniform: Draws of the noise (B, T) by which the masked branch answers anew; the mean over them is computed. Without
            any, it keeps the logged behaviours. Not with `gates`.

    Returns:
        (B, T), or None.
    """
    if not _supports(begin, tables.cell, tables.head[0].shape[0], tables.head[3].shape[0]):
        return None
    return _launch(_launches().advantage, tables, rewards, begin, batch, gamma, terminal, gates, uniform)


def _launch(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of `launches`; None if its kernel needs more memory than the GPU has on chip."""
    try:
        return function(*arguments)
    except _launches().OutOfResources:
        return None


def _supports(hidden: Array, cell: CellTables, inner: int | None = None, outputs: int = 1) -> bool:
    """Whether there are kernels for hidden states (B, H) of this device and type, and for a head of these sizes."""
    sizes = [hidden.shape[-1], *([] if inner is None else [inner])]
    if not runs_on(hidden) or not all(size in SIZES for size in sizes) or outputs > MAX_OUTPUTS:
        return False
    return hidden.ndim == 2 and not hidden.requires_grad and str(cell.items.dtype) == "torch.float32"


@cache
def _launches() -> Any:
    """The module that starts the kernels; None if Triton is not installed."""
    try:
        from mbcal.kernels.triton import launches
    except ImportError:
        return None
    module: ModuleType = launches
    return module
