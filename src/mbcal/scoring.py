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

from mbcal import fused, native
from mbcal.arrays import Array, as_index, exp, sigmoid_, tanh_, where, zeros


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


def greedy(scores: Array, available: Array) -> Array:
    """Index (B,) of the best available candidate; among equals the first. Its propensity is 1."""
    _require_choice(available)
    return where(available, scores.clip(-3e38, None), -np.inf).argmax(1)  # even a score of -inf beats what is gone


def epsilon_greedy(scores: Array, available: Array, epsilon: float, uniform: Array) -> tuple[Array, Array]:
    """With probability epsilon any available candidate, else the best: index and propensity (B,), from uniforms (B, 2).

    The best may also be drawn by the way, so its propensity is 1 - epsilon + epsilon / n, that of the others epsilon / n.
    """
    made = fused.epsilon_greedy(scores, available, epsilon, uniform)
    if made is not None:
        return made
    best = greedy(scores, available)
    count = available.sum(1)
    drawn = _nth_available(available, uniform[:, 1])
    chosen = where(uniform[:, 0] < epsilon, drawn, best)
    return chosen, epsilon / count + (1 - epsilon) * (chosen == best)


def softmax(scores: Array, available: Array, temperature: float, uniform: Array) -> tuple[Array, Array]:
    """An available candidate in proportion to exp(score / temperature): index and propensity (B,), from uniforms (B,)."""
    best = greedy(scores, available)
    place = _places(available)
    top = where(place == best[:, None], scores, 0).sum(1)[:, None]
    weights = exp(where(available, (scores - top) / temperature, -np.inf))
    chances = weights / weights.sum(1)[:, None]
    reach = chances.cumsum(1)
    # the first candidate whose cumulated chance exceeds the draw; one that is gone adds nothing and is never it
    chosen = (reach <= uniform[:, None] * reach[:, -1:]).sum(1).clip(0, scores.shape[1] - 1)
    return chosen, (chances * (place == chosen[:, None])).sum(1)


def _nth_available(available: Array, uniform: Array) -> Array:
    """An available candidate by a uniform number: the floor(u n)-th of n."""
    count = available.sum(1)
    nth = as_index(uniform * count).clip(0)
    nth = where(nth < count, nth, count - 1)
    return (available.cumsum(1) <= nth[:, None]).sum(1)


def _places(available: Array) -> Array:
    """0, 1, 2, … along the candidates, wherever the array lives."""
    return (available | True).cumsum(1) - 1


def _require_choice(available: Array) -> None:
    if not bool((available.sum(1) > 0).all()):
        raise ValueError("every session needs at least one available candidate")
