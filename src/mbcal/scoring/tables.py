"""Candidates to scores, scores to a choice and its propensity: one place, for roll-outs and for the service.

A GRU's gates are W_a Emb(a) + W_b Emb(b) + bias + W_h h. The first term depends on the item alone and the second on the last
behaviour alone, so both are tables, made once per version of a policy; W_h h is made once per session; per candidate there
remain an add, the non-linearities and the small head.

Everything here works on numpy arrays and torch tensors alike and imports neither network nor torch, so that what ranks in
the service is what was measured in the laboratory. Where `native` was compiled and arrays lie in a CPU's memory, it does the
same several times faster. Randomness comes in as uniform numbers: two policies can share them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mbcal.kernels import native
from mbcal.kernels import triton as fused
from mbcal.scoring.backend import Array, as_index, sigmoid_, tanh_, where, zeros


@dataclass(frozen=True)
class CellTables:
    """A GRU cell with its inputs folded into tables."""

    items: Array  # (rows, 3H), the bias of the input included
    behaviours: Array  # (behaviours + 1, 3H)
    weight: Array  # (3H, H)
    bias: Array  # (3H,)

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        return self.items, self.behaviours, self.weight, self.bias

    def hidden_gates(self, hidden: Array) -> Array:
        """W_h h + bias: (…, H) -> (…, 3H)."""
        return hidden @ self.weight.T + self.bias

    def step(self, gates: Array, hidden_gates: Array, hidden: Array) -> Array:
        """h_t from what the input adds to the gates, what the hidden state adds, and h_{t-1}; all broadcast.

        `gates` is used up: the work is done in its memory, since on a CPU traffic costs more than arithmetic.
        """
        size = hidden.shape[-1]
        both, new = gates[..., : 2 * size], gates[..., 2 * size :]
        both += hidden_gates[..., : 2 * size]
        both = sigmoid_(both)
        new += both[..., :size] * hidden_gates[..., 2 * size :]
        new = tanh_(new)
        after = hidden - new
        after *= both[..., size:]
        after += new
        return after

    def observe(self, hidden: Array, item: Array, behaviour: Array) -> Array:
        """The hidden state (B, H) after item and behaviour (B,) have gone in."""
        made = native.score(self.arrays, None, hidden, as_index(behaviour), item[:, None])
        if made is not None:
            return made[:, 0]
        made = fused.read(self, hidden, item[:, None], behaviour[:, None], None)
        if made is not None:
            return made
        return self.step(self.items[item] + self.behaviours[as_index(behaviour)], self.hidden_gates(hidden), hidden)


@dataclass(frozen=True)
class Tables:
    """A whole network for scoring: user encoder, cell, head."""

    cell: CellTables
    head: tuple[Array, Array, Array, Array]  # weight and bias of the two layers
    history: CellTables | None  # of the history encoder
    users: Array | None  # (users + 1, H) of the id encoder, the last row for users never seen

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Array:
        """h_0 (B, H) of users (B,) with histories (B, H')."""
        if self.users is not None:
            return self.users[user.clip(0, len(self.users) - 1)]
        hidden = zeros(self.cell.weight, len(user))
        if self.history is not None:
            made = fused.read(self.history, hidden, history_items, history_behaviours, history_length)
            if made is None and isinstance(history_items, np.ndarray):
                made = native.read(self.history.arrays, history_items, history_behaviours, history_length)
            if made is not None:
                return made
            for step in range(history_items.shape[1]):
                moved = self.history.observe(hidden, history_items[:, step], history_behaviours[:, step])
                hidden = where((history_length > step)[:, None], moved, hidden)
        return hidden

    def score(self, hidden: Array, previous: Array, candidates: Array) -> Array:
        """Outputs (B, C, outputs) for candidates (B, C) after hidden states (B, H) and previous behaviours (B,)."""
        made = native.score(self.cell.arrays, self.head, hidden, as_index(previous), candidates)
        if made is not None:
            return made
        gates = self.cell.items[candidates]
        gates += self.cell.behaviours[as_index(previous)][:, None]
        after = self.cell.step(gates, self.cell.hidden_gates(hidden)[:, None], hidden[:, None])
        return self.outputs(after)

    def outputs(self, hidden: Array) -> Array:
        """MLP(h)."""
        first_weight, first_bias, second_weight, second_bias = self.head
        inner = hidden @ first_weight.T + first_bias
        return inner.clip(0, None) @ second_weight.T + second_bias
