"""Candidates to scores, scores to a choice and its propensity: one place, for roll-outs and for the service.

A GRU's gates are W_a Emb(a) + W_b Emb(b) + bias + W_h h. The first term depends on the item alone and the second on the last
behaviour alone, so both are tables, made once per version of a policy; W_h h is made once per session; per candidate there
remain an add, the non-linearities and the small head.

Everything here works on numpy arrays and torch tensors alike and imports neither network nor torch, so that what ranks in
the service is what was measured in the laboratory. Randomness comes in as uniform numbers: two policies can share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

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


class Scorer(Protocol):
    """What ranks, for B sessions at a time. The state is explicit and immutable."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Any:
        """The state before the first step of users (B,) with histories (B, H)."""

    def parts(self, state: Any, candidates: Array) -> dict[str, Array]:
        """What the score of candidates (B, C) is the sum of, each (B, C)."""

    def score(self, state: Any, candidates: Array) -> Array:
        """(B, C)."""

    def observe(self, state: Any, item: Array, behaviour: Array) -> Any:
        """The state after item (B,) was shown and behaviour (B,) came back."""


@dataclass(frozen=True)
class Term:
    """One part of a score: a network of behaviours gives the reward it expects, a network of values its value."""

    tables: Tables
    rewards: Array | None  # (behaviours,); None for a network of values

    def value(self, outputs: Array) -> Array:
        """Outputs (B, C, outputs) -> (B, C)."""
        if self.rewards is None:
            return outputs[..., 0]
        weights = _exp(outputs - _largest(outputs))
        return (weights @ self.rewards) / weights.sum(-1)


@dataclass(frozen=True)
class ScorerState:
    """Where a scorer stands in B sessions; immutable."""

    hidden: tuple[Array, ...]  # one (B, H) a term
    previous: Array  # (B,)


@dataclass(frozen=True)
class NetScorer:
    """What a trained agent ranks by: the sum of its terms, such as instant reward + future advantage."""

    terms: Mapping[str, Term]
    start: int

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> ScorerState:
        known = (user, history_items, history_behaviours, history_length)
        hidden = tuple(term.tables.begin(*known) for term in self.terms.values())
        return ScorerState(hidden, _index(user) * 0 + self.start)

    def parts(self, state: ScorerState, candidates: Array) -> dict[str, Array]:
        return {
            name: term.value(term.tables.score(hidden, state.previous, candidates))
            for (name, term), hidden in zip(self.terms.items(), state.hidden, strict=True)
        }

    def score(self, state: ScorerState, candidates: Array) -> Array:
        first, *others = self.parts(state, candidates).values()
        for other in others:
            first = first + other
        return first

    def observe(self, state: ScorerState, item: Array, behaviour: Array) -> ScorerState:
        hidden = tuple(
            term.tables.cell.observe(hidden, item, state.previous)
            for term, hidden in zip(self.terms.values(), state.hidden, strict=True)
        )
        return ScorerState(hidden, _index(behaviour))


@dataclass(frozen=True)
class ItemScorer:
    """One number an item, whoever asks."""

    values: Array  # (rows,)

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> None:
        """Nothing to remember."""

    def parts(self, state: None, candidates: Array) -> dict[str, Array]:
        return {"instant": self.score(state, candidates)}

    def score(self, state: None, candidates: Array) -> Array:  # noqa: ARG002
        return self.values[candidates]

    def observe(self, state: None, item: Array, behaviour: Array) -> None:
        """Nothing to remember."""


@dataclass(frozen=True)
class ChanceScorer:
    """Uniform chance as a function of what has been seen: the same session gets the same scores, in any batch."""

    seed: int

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Array:
        state = _scramble(_index(user) + self.seed)
        for step in range(history_items.shape[1]):
            moved = self.observe(state, history_items[:, step], history_behaviours[:, step])
            state = _where(history_length > step, moved, state)
        return state

    def parts(self, state: Array, candidates: Array) -> dict[str, Array]:
        return {"instant": self.score(state, candidates)}

    def score(self, state: Array, candidates: Array) -> Array:
        drawn = _scramble(state[:, None] ^ _index(candidates)) & 0xFFFFFF  # 24 bits are exact in float32
        return _float(drawn) / 2**24

    def observe(self, state: Array, item: Array, behaviour: Array) -> Array:
        return _scramble(state ^ _scramble(_index(item) * 256 + _index(behaviour)))


def greedy(scores: Array, available: Array) -> Array:
    """Index (B,) of the best available candidate; among equals the first. Its propensity is 1."""
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


def _largest(x: Array) -> Array:
    return x.max(-1, keepdims=True) if isinstance(x, np.ndarray) else x.amax(-1, keepdim=True)


def _scramble(x: Array) -> Array:
    """Mix the bits of 31-bit numbers well enough that neighbours have nothing in common; stays within int64."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0x7FFFFFFF
    return x ^ (x >> 16)


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes.where(condition, no)


def _index(x: Array) -> Array:
    return x.astype(np.int64) if isinstance(x, np.ndarray) else x.long()


def _float(x: Array) -> Array:
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.float()


def _zeros(like: Array, rows: int) -> Array:
    shape = (rows, like.shape[1])
    return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)


def to_numpy(value: Any) -> Any:
    """Tensors within tables, terms and scorers as plain arrays, for where torch is not."""
    if value is None or isinstance(value, np.ndarray | int):
        return value
    if isinstance(value, dict):
        return {name: to_numpy(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(to_numpy(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: to_numpy(getattr(value, field.name)) for field in fields(value)})
    return value.detach().cpu().numpy()
