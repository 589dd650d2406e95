"""A network as tables: scores of many candidates for the price of an addition, the non-linearities and a small head each.

A GRU's gates are W_a Emb(a) + W_b Emb(b) + bias + W_h h. The first term depends on the item alone and the second on the last
behaviour alone, so both are tables, computed once per version of a policy; W_h h is computed once per session. Context adds
W_c Emb(c), which depends on the step alone: it is added to the row of the last behaviour, once per session.

The code works on numpy arrays and torch tensors alike and imports no torch, so the service ranks by the code that
experiments measured. It is the reference implementation of the kernels: `kernels.native` (C, arrays in CPU memory) and
`kernels.triton` (on a GPU) are asked first, and return None for what they do not support.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mbcal.kernels import native, triton
from mbcal.scoring.backend import Array, as_index, numbered, sigmoid_, tanh_, where, zeros
from mbcal.scoring.fields import FieldTables


@dataclass(frozen=True)
class CellTables:
    """A GRU cell with its inputs folded into tables. Gates lie as reset, update, new."""

    items: Array
    """(rows, 3H) W_a Emb(a) of every catalogue row, with the bias of the input."""
    behaviours: Array
    """(behaviours + 1, 3H) W_b Emb(b), the start symbol last."""
    weight: Array
    """(3H, H) W_h."""
    bias: Array
    """(3H,) of the hidden half."""

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """All four, in the order of the fields."""
        return self.items, self.behaviours, self.weight, self.bias

    def hidden_gates(self, hidden: Array) -> Array:
        """W_h h + bias: (…, H) -> (…, 3H)."""
        return hidden @ self.weight.T + self.bias

    def step(self, gates: Array, hidden_gates: Array, hidden: Array) -> Array:
        """Run the cell one step; all arguments broadcast.

        Args:
            gates: (…, 3H) what the input adds. Overwritten: on a CPU, moving memory costs more than the arithmetic.
            hidden_gates: (…, 3H) what the hidden state adds.
            hidden: (…, H) h_{t-1}.

        Returns:
            (…, H) h_t.
        """
        size = hidden.shape[-1]
        reset_update, new = gates[..., : 2 * size], gates[..., 2 * size :]
        reset_update += hidden_gates[..., : 2 * size]
        reset_update = sigmoid_(reset_update)
        new += reset_update[..., :size] * hidden_gates[..., 2 * size :]
        new = tanh_(new)
        after = hidden - new
        after *= reset_update[..., size:]
        after += new
        return after

    def in_context(self, behaviour: Array, gates: Array | None) -> tuple[CellTables, Array]:
        """Return the cell with one row of behaviours per session, to which its context is added.

        Args:
            behaviour: (B,) the behaviour that goes in with the item.
            gates: (B, 3H) what the context of the step adds; None without context.

        Returns:
            The cell, and the rows of its behaviours (B,). The cell itself and `behaviour` if there is no context.
        """
        if gates is None:
            return self, behaviour
        return replace(self, behaviours=self.behaviours[as_index(behaviour)] + gates), numbered(behaviour)

    def observe(self, hidden: Array, item: Array, behaviour: Array) -> Array:
        """Return the hidden state (B, H) after one step.

        Args:
            hidden: (B, H) the state before.
            item: (B,) catalogue rows.
            behaviour: (B,) the behaviour that goes in with the item: in a session that of the step before, in a history
                the item's own.
        """
        fast = native.score(self.arrays, None, hidden, as_index(behaviour), item[:, None])
        if fast is not None:
            return fast[:, 0]
        fast = triton.read(self, hidden, item[:, None], behaviour[:, None], None)
        if fast is not None:
            return fast
        return self.step(self.items[item] + self.behaviours[as_index(behaviour)], self.hidden_gates(hidden), hidden)


@dataclass(frozen=True)
class Tables:
    """A whole network for scoring: user encoder, cell, head."""

    cell: CellTables
    head: tuple[Array, Array, Array, Array]
    """Weight (M, H) and bias (M,) of the first layer, weight (K, M) and bias (K,) of the second."""
    history: CellTables | None
    """The history encoder; None unless users are encoded by history."""
    users: Array | None
    """(users + 1, H) embeddings of users, the last for those not seen in training; None unless users are encoded by id."""
    context: FieldTables | None = None
    """What the context of a step adds to the gates (3H)."""
    user_features: FieldTables | None = None
    """What the features of a user add to the hidden state before the first step (H)."""
    user_bias: Array | None = None
    """(H,) what a user without known features adds to it."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Array:
        """Return the hidden state before the first step.

        Args:
            user: (B,).
            history_items: (B, L) catalogue rows, padded at the end.
            history_behaviours: (B, L).
            history_length: (B,) how many steps of each history count.

        Returns:
            (B, H).
        """
        hidden = self._encode_user(user, history_items, history_behaviours, history_length)
        return hidden if self.user_bias is None else hidden + self.user_bias

    def with_user(self, hidden: Array, user_features: Array) -> Array:
        """The hidden state before the first step (B, H) of users with these features (B, U)."""
        return hidden if self.user_features is None else hidden + self.user_features.effect(user_features)

    def context_gates(self, context: Array) -> Array | None:
        """What context (B, K) adds to the gates, (B, 3H); None if the network does not read it."""
        return None if self.context is None else self.context.effect(context)

    def _encode_user(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Array:
        if self.users is not None:
            return self.users[user.clip(0, len(self.users) - 1)]
        hidden = zeros(self.cell.weight, len(user))
        if self.history is None:
            return hidden
        fast = triton.read(self.history, hidden, history_items, history_behaviours, history_length)
        if fast is None and isinstance(history_items, np.ndarray):
            fast = native.read(self.history.arrays, history_items, history_behaviours, history_length)
        if fast is not None:
            return fast
        for step in range(history_items.shape[1]):
            moved = self.history.observe(hidden, history_items[:, step], history_behaviours[:, step])
            hidden = where((history_length > step)[:, None], moved, hidden)
        return hidden

    def observe(self, hidden: Array, item: Array, previous: Array, gates: Array | None = None) -> Array:
        """Return the hidden state (B, H) after item (B,) was shown; see `CellTables.observe` and `score`."""
        cell, previous = self.cell.in_context(previous, gates)
        return cell.observe(hidden, item, previous)

    def score(self, hidden: Array, previous: Array, candidates: Array, gates: Array | None = None) -> Array:
        """Compute the network's outputs for every candidate.

        Args:
            hidden: (B, H) hidden states.
            previous: (B,) previous behaviours.
            candidates: (B, C) catalogue rows.
            gates: (B, 3H) what the context of the step adds (`context_gates`).

        Returns:
            (B, C, K).
        """
        cell, previous = self.cell.in_context(previous, gates)
        fast = native.score(cell.arrays, self.head, hidden, as_index(previous), candidates)
        if fast is not None:
            return fast
        item_gates = cell.items[candidates]
        item_gates += cell.behaviours[as_index(previous)][:, None]
        after = cell.step(item_gates, cell.hidden_gates(hidden)[:, None], hidden[:, None])
        return self.outputs(after)

    def outputs(self, hidden: Array) -> Array:
        """MLP(h): (…, H) -> (…, K)."""
        first_weight, first_bias, second_weight, second_bias = self.head
        inner = hidden @ first_weight.T + first_bias
        return inner.clip(0, None) @ second_weight.T + second_bias
