"""Scorers: what a fitted agent ranks by. `begin`, `score`, `observe`, written once for numpy arrays and torch tensors.

A scorer holds tables and a few small matrices but no network, so the service ranks by the code that experiments measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

from mbcal.kernels import triton
from mbcal.scoring.backend import Array, as_float, as_index, exp, largest, sqrt, stack, tanh_, where
from mbcal.scoring.tables import Tables
from mbcal.types import MASK_ROW, NO_FIELDS, SessionFields

UNKNOWN_USER = 2**31 - 1
"""The number of a user not seen in training, for user encoders by id."""
N_CONTEXT = 3
"""What LinUCB knows about a user: a constant, the mean reward so far, the last reward."""


class Scorer(Protocol):
    """Scores candidates, for B sessions at a time. States are explicit and immutable."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> Any:
        """Return the state before the first step.

        Args:
            user: (B,).
            history_items: (B, L) catalogue rows, oldest first, padded at the end.
            history_behaviours: (B, L).
            history_length: (B,) how many steps of each history count.
        """

    def score_parts(self, state: Any, candidates: Array) -> dict[str, Array]:
        """Return the terms, each (B, C), whose sum is the score of candidates (B, C)."""

    def score(self, state: Any, candidates: Array) -> Array:
        """Return scores (B, C) of candidates (B, C)."""

    def observe(self, state: Any, item: Array, behaviour: Array) -> Any:
        """Return the state after item (B,) was shown and behaviour (B,) was observed."""


@dataclass(frozen=True)
class ScoreTerm:
    """One term of a score: the reward that a network of behaviours expects, or the value that a value network predicts."""

    tables: Tables
    rewards: Array | None
    """(K,) the reward of each behaviour; None for a value network."""

    def score(self, hidden: Array, previous: Array, candidates: Array, gates: Array | None = None) -> Array:
        """Score candidates.

        Args:
            hidden: (B, H) hidden states.
            previous: (B,) previous behaviours.
            candidates: (B, C) catalogue rows.
            gates: (B, 3H) what the context of the step adds (`Tables.context_gates`).

        Returns:
            (B, C).
        """
        cell, row = self.tables.cell.in_context(previous, gates)
        tables = self.tables if gates is None else replace(self.tables, cell=cell)
        fast = triton.score(tables, self.rewards, hidden, row, candidates)
        return self.value(tables.score(hidden, row, candidates)) if fast is None else fast

    def value(self, outputs: Array) -> Array:
        """The network's outputs as one number: (B, C, K) -> (B, C)."""
        if self.rewards is None:
            return outputs[..., 0]
        weights = exp(outputs - largest(outputs))
        return (weights @ self.rewards) / weights.sum(-1)


@dataclass(frozen=True)
class ScorerState:
    """The state of a scorer of networks in B sessions."""

    hidden: tuple[Array, ...]
    """One (B, H) per term."""
    previous: Array
    """(B,) the last behaviour, or the start symbol."""
    gates: tuple[Array | None, ...] | None = None
    """Per term what the context of the next step adds to the gates, (B, 3H); None if it is not known."""

    def __getitem__(self, rows: Array) -> Self:
        gates = None if self.gates is None else tuple(None if part is None else part[rows] for part in self.gates)
        return type(self)(tuple(part[rows] for part in self.hidden), self.previous[rows], gates)

    def gates_of(self, term: int) -> Array | None:
        """What the context adds to the gates of a term, (B, 3H); None if nothing."""
        return None if self.gates is None else self.gates[term]

    def __repr__(self) -> str:
        return f"<ScorerState: {len(self.previous)} sessions>"


@dataclass(frozen=True)
class NetScorer:
    """The sum of terms, such as instant reward + future advantage."""

    terms: Mapping[str, ScoreTerm]
    start: int
    """The start symbol, which stands for the behaviour before the first step."""
    fields: SessionFields = NO_FIELDS
    """Fields of users and steps that it reads."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> ScorerState:
        history = (user, history_items, history_behaviours, history_length)
        hidden = tuple(term.tables.begin(*history) for term in self.terms.values())
        return ScorerState(hidden, as_index(user) * 0 + self.start)

    def with_user(self, state: ScorerState, user_features: Array) -> ScorerState:
        """The state before the first step of users with these features (B, U); see `scoring.fields.FieldReader`."""
        pairs = zip(self.terms.values(), state.hidden, strict=True)
        return replace(state, hidden=tuple(term.tables.with_user(hidden, user_features) for term, hidden in pairs))

    def with_context(self, state: ScorerState, context: Array) -> ScorerState:
        """The state with the context (B, K) of the next step; see `scoring.fields.FieldReader`."""
        return replace(state, gates=tuple(term.tables.context_gates(context) for term in self.terms.values()))

    def score_parts(self, state: ScorerState, candidates: Array) -> dict[str, Array]:
        return {
            name: term.score(state.hidden[number], state.previous, candidates, state.gates_of(number))
            for number, (name, term) in enumerate(self.terms.items())
        }

    def score(self, state: ScorerState, candidates: Array) -> Array:
        total, *others = self.score_parts(state, candidates).values()
        for other in others:
            total = total + other
        return total

    def observe(self, state: ScorerState, item: Array, behaviour: Array) -> ScorerState:
        hidden = tuple(
            term.tables.observe(state.hidden[number], item, state.previous, state.gates_of(number))
            for number, term in enumerate(self.terms.values())
        )
        return ScorerState(hidden, as_index(behaviour))

    def __repr__(self) -> str:
        return f"<NetScorer: {' + '.join(self.terms)}>"


@dataclass(frozen=True)
class ItemScorer:
    """One score per item, the same for all users. Without state."""

    values: Array
    """(rows,)."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> None:
        """See `Scorer`."""

    def score_parts(self, state: None, candidates: Array) -> dict[str, Array]:
        return {"instant": self.score(state, candidates)}

    def score(self, state: None, candidates: Array) -> Array:  # noqa: ARG002 - a scorer without state
        return self.values[candidates]

    def observe(self, state: None, item: Array, behaviour: Array) -> None:
        """See `Scorer`."""


@dataclass(frozen=True)
class RandomScorer:
    """Uniformly random scores, a hash of user, history, session so far and candidate: independent of the batch."""

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
        bits = _scramble(state[:, None] ^ as_index(candidates)) & 0xFFFFFF  # 24 bits are exact in float32
        return as_float(bits) / 2**24

    def observe(self, state: Array, item: Array, behaviour: Array) -> Array:
        return _scramble(state ^ _scramble(as_index(item) * 256 + as_index(behaviour)))


@dataclass(frozen=True)
class NearestScorer:
    """DDPG: minus the squared distance between an item's point and the actor's."""

    actor: Tables
    """A network with D outputs; its point is their tanh."""
    points: Array
    """(rows, D) the point of every item."""
    start: int
    """The start symbol."""
    fields: SessionFields = NO_FIELDS
    """Fields of users and steps that the actor reads."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> ScorerState:
        hidden = self.actor.begin(user, history_items, history_behaviours, history_length)
        return ScorerState((hidden,), as_index(user) * 0 + self.start)

    def with_user(self, state: ScorerState, user_features: Array) -> ScorerState:
        """The state before the first step of users with these features (B, U); see `scoring.fields.FieldReader`."""
        return replace(state, hidden=(self.actor.with_user(state.hidden[0], user_features),))

    def with_context(self, state: ScorerState, context: Array) -> ScorerState:
        """The state with the context (B, K) of the next step; see `scoring.fields.FieldReader`."""
        return replace(state, gates=(self.actor.context_gates(context),))

    def score_parts(self, state: ScorerState, candidates: Array) -> dict[str, Array]:
        return {"nearness": self.score(state, candidates)}

    def score(self, state: ScorerState, candidates: Array) -> Array:
        masked = as_index(candidates[:, :1]) * 0 + MASK_ROW  # the actor reads the masking item
        point = tanh_(self.actor.score(state.hidden[0], state.previous, masked, state.gates_of(0)))  # (B, 1, D)
        return -((self.points[candidates] - point) ** 2).sum(-1)

    def observe(self, state: ScorerState, item: Array, behaviour: Array) -> ScorerState:
        hidden = self.actor.observe(state.hidden[0], item, state.previous, state.gates_of(0))
        return ScorerState((hidden,), as_index(behaviour))


class RewardRecord(NamedTuple):
    """LinUCB's state: the rewards of B users so far."""

    total: Array
    """(B,) their sum."""
    count: Array
    """(B,) their number."""
    last: Array
    """(B,) the last one, 0 if there is none."""


@dataclass(frozen=True)
class LinUCBScorer:
    """LinUCB: a linear prediction theta x and an upper confidence bound alpha sqrt(x' P x), with P = A^-1.

    x = [z, c] is an item's vector z and the user's context c. Products with z alone are tables over the items.
    """

    values: Array
    """(rows,) theta_z z."""
    weights: Array
    """(3,) theta_c."""
    spread: Array
    """(rows,) z' P_zz z."""
    cross: Array
    """(rows, 3) 2 z' P_zc."""
    within: Array
    """(3, 3) P_cc."""
    rewards: Array
    """(behaviours,)."""
    alpha: float
    """Weight of the bound."""

    def begin(self, user: Array, history_items: Array, history_behaviours: Array, history_length: Array) -> RewardRecord:
        zeros = as_float(as_index(user) * 0)
        state = RewardRecord(zeros, zeros, zeros)
        for step in range(history_items.shape[1]):
            moved = self.observe(state, history_items[:, step], history_behaviours[:, step])
            state = RewardRecord(*(where(history_length > step, a, b) for a, b in zip(moved, state, strict=True)))
        return state

    def context(self, state: RewardRecord) -> Array:
        """The context (B, 3): 1, the mean reward so far, the last reward."""
        mean = state.total / state.count.clip(1, None)
        return stack([mean * 0 + 1, mean, state.last])

    def score_parts(self, state: RewardRecord, candidates: Array) -> dict[str, Array]:
        context = self.context(state)
        prediction = self.values[candidates] + (context @ self.weights)[:, None]
        within = ((context @ self.within) * context).sum(-1)[:, None]
        variance = self.spread[candidates] + (self.cross[candidates] * context[:, None]).sum(-1) + within
        return {"instant": prediction, "bonus": self.alpha * sqrt(variance.clip(0, None))}

    def score(self, state: RewardRecord, candidates: Array) -> Array:
        parts = self.score_parts(state, candidates)
        return parts["instant"] + parts["bonus"]

    def observe(self, state: RewardRecord, item: Array, behaviour: Array) -> RewardRecord:  # noqa: ARG002 - the item is not used
        reward = self.rewards[as_index(behaviour)]
        return RewardRecord(state.total + reward, state.count + 1, reward)


def _scramble(x: Array) -> Array:
    """Hash 31-bit numbers so that neighbours are unrelated. Products stay within int64."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0x7FFFFFFF
    return x ^ (x >> 16)
