"""Candidates to scores, scores to a choice and its propensity: one place, for roll-outs and for the service.

A GRU's gates are W_a Emb(a) + W_b Emb(b) + bias + W_h h. The first term depends on the item alone and the second on the last
behaviour alone, so both are tables, made once per version of a policy; W_h h is made once per session; per candidate there
remain an add, the non-linearities and the small head.

Everything here works on numpy arrays and torch tensors alike and imports neither network nor torch, so that what ranks in
the service is what was measured in the laboratory. Randomness comes in as uniform numbers: two policies can share them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Self

import numpy as np

Array = Any
"""A numpy array or a torch tensor."""


@dataclass(frozen=True)
class CellTables:
    """A GRU cell with its inputs folded into tables."""

    items: Array  # (rows, 3H), the bias of the input included
    behaviours: Array  # (behaviours + 1, 3H)
    weight: Array  # (3H, H)
    bias: Array  # (3H,)

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
        both = _sigmoid(both)
        new += both[..., :size] * hidden_gates[..., 2 * size :]
        new = _tanh(new)
        after = hidden - new
        after *= both[..., size:]
        after += new
        return after

    def observe(self, hidden: Array, item: Array, behaviour: Array) -> Array:
        """The hidden state (B, H) after item and behaviour (B,) have gone in."""
        return self.step(self.items[item] + self.behaviours[_index(behaviour)], self.hidden_gates(hidden), hidden)


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
        hidden = _zeros(self.cell.weight, len(user))
        if self.history is not None:
            for step in range(history_items.shape[1]):
                moved = self.history.observe(hidden, history_items[:, step], history_behaviours[:, step])
                hidden = _where((history_length > step)[:, None], moved, hidden)
        return hidden

    def score(self, hidden: Array, previous: Array, candidates: Array) -> Array:
        """Outputs (B, C, outputs) for candidates (B, C) after hidden states (B, H) and previous behaviours (B,)."""
        gates = self.cell.items[candidates]
        gates += self.cell.behaviours[_index(previous)][:, None]
        after = self.cell.step(gates, self.cell.hidden_gates(hidden)[:, None], hidden[:, None])
        return self.outputs(after)

    def outputs(self, hidden: Array) -> Array:
        """MLP(h)."""
        first_weight, first_bias, second_weight, second_bias = self.head
        inner = hidden @ first_weight.T + first_bias
        return inner.clip(0, None) @ second_weight.T + second_bias

    def numpy(self) -> Self:
        """The same tables as plain arrays, for where torch is not."""
        plain: Self = _to_numpy(self)
        return plain


def greedy(scores: Array, available: Array) -> Array:
    """Index (B,) of the best available candidate; among equals the first."""
    _require_choice(available)
    return _where(available, scores.clip(-3e38, None), -np.inf).argmax(1)  # even a score of -inf beats what is gone


def epsilon_greedy(scores: Array, available: Array, epsilon: float, uniform: Array) -> tuple[Array, Array]:
    """With probability epsilon any available candidate, else the best: index and propensity (B,), from uniforms (B, 2).

    The best may also be drawn by the way, so its propensity is 1 - epsilon + epsilon / n, that of the others epsilon / n.
    """
    best = greedy(scores, available)
    count = available.sum(1)
    drawn = _nth_available(available, uniform[:, 1])
    chosen = _where(uniform[:, 0] < epsilon, drawn, best)
    return chosen, epsilon / count + (1 - epsilon) * (chosen == best)


def softmax(scores: Array, available: Array, temperature: float, uniform: Array) -> tuple[Array, Array]:
    """An available candidate in proportion to exp(score / temperature): index and propensity (B,), from uniforms (B,)."""
    best = greedy(scores, available)
    place = _places(available)
    top = _where(place == best[:, None], scores, 0).sum(1)[:, None]
    weights = _exp(_where(available, (scores - top) / temperature, -np.inf))
    chances = weights / weights.sum(1)[:, None]
    reach = chances.cumsum(1)
    # the first candidate whose cumulated chance exceeds the draw; one that is gone adds nothing and is never it
    chosen = (reach <= uniform[:, None] * reach[:, -1:]).sum(1).clip(0, scores.shape[1] - 1)
    return chosen, (chances * (place == chosen[:, None])).sum(1)


def _nth_available(available: Array, uniform: Array) -> Array:
    """An available candidate by a uniform number: the floor(u n)-th of n."""
    count = available.sum(1)
    nth = _index(uniform * count).clip(0)
    nth = _where(nth < count, nth, count - 1)
    return (available.cumsum(1) <= nth[:, None]).sum(1)


def _places(available: Array) -> Array:
    """0, 1, 2, … along the candidates, wherever the array lives."""
    return (available | True).cumsum(1) - 1


def _require_choice(available: Array) -> None:
    if not bool((available.sum(1) > 0).all()):
        raise ValueError("every session needs at least one available candidate")


def _sigmoid(x: Array) -> Array:
    """In place."""
    if not isinstance(x, np.ndarray):
        return x.sigmoid_()
    np.multiply(x, 0.5, out=x)  # 1/2 tanh(x/2) + 1/2 is the same function and never overflows
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5
    return x


def _tanh(x: Array) -> Array:
    """In place."""
    return np.tanh(x, out=x) if isinstance(x, np.ndarray) else x.tanh_()


def _exp(x: Array) -> Array:
    return np.exp(x) if isinstance(x, np.ndarray) else x.exp()


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes.where(condition, no)


def _index(x: Array) -> Array:
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.long()


def _zeros(like: Array, rows: int) -> Array:
    shape = (rows, like.shape[1])
    return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)


def _to_numpy(value: Any) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, tuple):
        return tuple(_to_numpy(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: _to_numpy(getattr(value, field.name)) for field in fields(value)})
    return value.detach().cpu().numpy()
