"""What agents rank by once they have learned: `begin`, `score`, `observe`, written once for numpy arrays and torch tensors.

A scorer holds tables and a few small matrices and knows no network, so that the service ranks by the very code that was
measured in the laboratory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from mbcal.kernels import triton as fused
from mbcal.scoring.backend import Array, as_float, as_index, exp, largest, sqrt, stack, tanh_, where
from mbcal.scoring.tables import Tables
from mbcal.types import MASK_ROW

UNKNOWN_USER = 2**31 - 1
"""A user never seen, for the encoder that goes by id."""
N_CONTEXT = 3
"""What LinUCB knows of a user: a constant, the mean reward so far, the last reward."""


class Scorer(Protocol):
    """What ranks, for B sessions at a time. The state is explicit and immutable."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Any:
        """The state before the first step of users (B,) with histories (B, H)."""

    def score_parts(self, state: Any, candidates: Array) -> dict[str, Array]:
        """What the score of candidates (B, C) is the sum of, each (B, C)."""

    def score(self, state: Any, candidates: Array) -> Array:
        """(B, C)."""

    def observe(self, state: Any, item: Array, behaviour: Array) -> Any:
        """The state after item (B,) was shown and behaviour (B,) came back."""


@dataclass(frozen=True)
class ScoreTerm:
    """One part of a score: a network of behaviours gives the reward it expects, a network of values its value."""

    tables: Tables
    rewards: Array | None  # (behaviours,); None for a network of values

    def score(self, hidden: Array, previous: Array, candidates: Array) -> Array:
        """(B, C) for candidates (B, C) after hidden states (B, H) and previous behaviours (B,)."""
        made = fused.score(self.tables, self.rewards, hidden, previous, candidates)
        return self.value(self.tables.score(hidden, previous, candidates)) if made is None else made

    def value(self, outputs: Array) -> Array:
        """Outputs (B, C, outputs) -> (B, C)."""
        if self.rewards is None:
            return outputs[..., 0]
        weights = exp(outputs - largest(outputs))
        return (weights @ self.rewards) / weights.sum(-1)


@dataclass(frozen=True)
class ScorerState:
    """Where a scorer stands in B sessions; immutable."""

    hidden: tuple[Array, ...]  # one (B, H) a term
    previous: Array  # (B,)


@dataclass(frozen=True)
class NetScorer:
    """What a trained agent ranks by: the sum of its terms, such as instant reward + future advantage."""

    terms: Mapping[str, ScoreTerm]
    start: int

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> ScorerState:
        known = (user, history_items, history_behaviours, history_length)
        hidden = tuple(term.tables.begin(*known) for term in self.terms.values())
        return ScorerState(hidden, as_index(user) * 0 + self.start)

    def score_parts(self, state: ScorerState, candidates: Array) -> dict[str, Array]:
        return {
            name: term.score(hidden, state.previous, candidates)
            for (name, term), hidden in zip(self.terms.items(), state.hidden, strict=True)
        }

    def score(self, state: ScorerState, candidates: Array) -> Array:
        first, *others = self.score_parts(state, candidates).values()
        for other in others:
            first = first + other
        return first

    def observe(self, state: ScorerState, item: Array, behaviour: Array) -> ScorerState:
        hidden = tuple(
            term.tables.cell.observe(hidden, item, state.previous)
            for term, hidden in zip(self.terms.values(), state.hidden, strict=True)
        )
        return ScorerState(hidden, as_index(behaviour))


@dataclass(frozen=True)
class ItemScorer:
    """One number an item, whoever asks."""

    values: Array  # (rows,)

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> None:
        """Nothing to remember."""

    def score_parts(self, state: None, candidates: Array) -> dict[str, Array]:
        return {"instant": self.score(state, candidates)}

    def score(self, state: None, candidates: Array) -> Array:  # noqa: ARG002 - a scorer without state
        return self.values[candidates]

    def observe(self, state: None, item: Array, behaviour: Array) -> None:
        """Nothing to remember."""


@dataclass(frozen=True)
class RandomScorer:
    """Uniform chance as a function of what has been seen: the same session gets the same scores, in any batch."""

    seed: int

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Array:
        state = _scramble(as_index(user) + self.seed)
        for step in range(history_items.shape[1]):
            moved = self.observe(state, history_items[:, step], history_behaviours[:, step])
            state = where(history_length > step, moved, state)
        return state

    def score_parts(self, state: Array, candidates: Array) -> dict[str, Array]:
        return {"instant": self.score(state, candidates)}

    def score(self, state: Array, candidates: Array) -> Array:
        drawn = _scramble(state[:, None] ^ as_index(candidates)) & 0xFFFFFF  # 24 bits are exact in float32
        return as_float(drawn) / 2**24

    def observe(self, state: Array, item: Array, behaviour: Array) -> Array:
        return _scramble(state ^ _scramble(as_index(item) * 256 + as_index(behaviour)))


@dataclass(frozen=True)
class NearestScorer:
    """DDPG: minus the squared distance of an item's point to the actor's."""

    actor: Tables
    points: Array  # (rows, D)
    start: int

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> ScorerState:
        hidden = self.actor.begin(user, history_items, history_behaviours, history_length)
        return ScorerState((hidden,), as_index(user) * 0 + self.start)

    def score_parts(self, state: ScorerState, candidates: Array) -> dict[str, Array]:
        return {"nearness": self.score(state, candidates)}

    def score(self, state: ScorerState, candidates: Array) -> Array:
        nothing = as_index(candidates[:, :1]) * 0 + MASK_ROW  # the actor is not told an item
        point = tanh_(self.actor.score(state.hidden[0], state.previous, nothing))  # (B, 1, D)
        return -((self.points[candidates] - point) ** 2).sum(-1)

    def observe(self, state: ScorerState, item: Array, behaviour: Array) -> ScorerState:
        hidden = self.actor.cell.observe(state.hidden[0], item, state.previous)
        return ScorerState((hidden,), as_index(behaviour))


class RewardRecord(NamedTuple):
    """What LinUCB remembers of B users: rewards summed, counted, and the last."""

    total: Array
    count: Array
    last: Array


@dataclass(frozen=True)
class LinUCBScorer:
    """LinUCB: a linear guess and an upper confidence bound, x = [item's vector, context] taken apart into tables."""

    values: Array  # (rows,) theta_z z
    weights: Array  # (3,) theta_c
    spread: Array  # (rows,) z' P_zz z
    cross: Array  # (rows, 3) 2 z' P_zc
    within: Array  # (3, 3) P_cc
    rewards: Array  # (behaviours,)
    alpha: float

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> RewardRecord:
        nothing = as_float(as_index(user) * 0)
        state = RewardRecord(nothing, nothing, nothing)
        for step in range(history_items.shape[1]):
            moved = self.observe(state, history_items[:, step], history_behaviours[:, step])
            state = RewardRecord(*(where(history_length > step, a, b) for a, b in zip(moved, state, strict=True)))
        return state

    def context(self, state: RewardRecord) -> Array:
        """(B, 3)."""
        mean = state.total / state.count.clip(1, None)
        return stack([mean * 0 + 1, mean, state.last])

    def score_parts(self, state: RewardRecord, candidates: Array) -> dict[str, Array]:
        known = self.context(state)
        guess = self.values[candidates] + (known @ self.weights)[:, None]
        within = ((known @ self.within) * known).sum(-1)[:, None]
        doubt = self.spread[candidates] + (self.cross[candidates] * known[:, None]).sum(-1) + within
        return {"instant": guess, "bonus": self.alpha * sqrt(doubt.clip(0, None))}

    def score(self, state: RewardRecord, candidates: Array) -> Array:
        parts = self.score_parts(state, candidates)
        return parts["instant"] + parts["bonus"]

    def observe(self, state: RewardRecord, item: Array, behaviour: Array) -> RewardRecord:  # noqa: ARG002 - which item it was does not matter here
        reward = self.rewards[as_index(behaviour)]
        return RewardRecord(state.total + reward, state.count + 1, reward)


def _scramble(x: Array) -> Array:
    """Mix the bits of 31-bit numbers well enough that neighbours have nothing in common; stays within int64."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0x7FFFFFFF
    return x ^ (x >> 16)
