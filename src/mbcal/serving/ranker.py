"""Candidates of a session to a ranked list with scores, parts and propensities: the service's arithmetic, without HTTP.

The same scorers and choices as the laboratory's (`scorers.py`, `scoring.py`), on numpy arrays, one session at a time. Where
a session stands is a function of its history and of what was shown; it is remembered between requests and made anew where
it is not (another version, another worker, a client that sends everything itself), with the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.kernels.native.session import MOST, ChosenCandidates, TermArrays, session_ranker
from mbcal.scoring.scorers import NetScorer, Scorer, ScorerState
from mbcal.serving.candidates import Candidates, JsonReader, NameList
from mbcal.serving.messages import RankedItem
from mbcal.types import UNKNOWN_ROW, Behaviours, Catalog

UNKNOWN_USER = 2**31 - 1
"""The service knows users by what they did, not by number."""

Pairs = Sequence[tuple[str, str]]
"""(item, behaviour), oldest first."""


class RankableVersion(Protocol):
    """What a version of a model must tell; `registry.Version` does."""

    @property
    def name(self) -> str: ...

    @property
    def scorer(self) -> Scorer: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def behaviours(self) -> Behaviours: ...

    @property
    def history(self) -> int: ...

    @property
    def seen(self) -> NDArray[np.bool_]: ...


class _Standing(NamedTuple):
    """Where a session stands: the scorer's state after these steps."""

    history: tuple[tuple[str, str], ...]
    shown: tuple[tuple[str, str], ...]
    state: Any


class Ranker:
    """One version, ready to rank. Safe to use from one thread; keeps where the latest sessions stand."""

    def __init__(self, version: RankableVersion, remembered: int = 50_000) -> None:
        self.version, self._remembered = version, remembered
        self._standing: OrderedDict[str, _Standing] = OrderedDict()
        names = version.behaviours.names
        self._label = {name: place for place, name in enumerate(names)}
        self._known = (version.seen & (np.arange(len(version.seen)) != UNKNOWN_ROW)).tobytes()
        self._all = np.ones(MOST, np.bool_)
        self._gone = np.zeros(version.catalog.n_rows, np.bool_)  # all false but while it is looked at
        self._parts = tuple(version.scorer.score_parts(self._begin(()), np.full((1, 1), UNKNOWN_ROW, np.int32)))
        self._native = session_ranker(_terms(version.scorer))
        self.reader = JsonReader(version.catalog, None if self._native is None else self._native.rows)

    def rank(
        self,
        history: Pairs,
        shown: Pairs,
        candidates: Candidates | Sequence[str],
        k: int,
        epsilon: float,
        uniform: NDArray[np.float64],
        session: str | None = None,
    ) -> list[RankedItem]:
        """The best k in order, now and then (epsilon) another in their place, by uniform numbers (k, 2).

        What was shown in this session is not shown again before every candidate has been.
        """
        asked = NameList(candidates, self.version.catalog) if isinstance(candidates, Sequence) else candidates
        state, free = self.state_after(history, shown, session), self._free(asked, shown)
        k = min(k, int(np.count_nonzero(free)))
        given = (state, asked.rows, free, k, epsilon, uniform[:k])
        places, chances, scores, parts = self._in_c(*given) or self._in_numpy(*given)
        rows = asked.rows.data
        known = [self._known[rows[place]] == 1 for place in places]
        return [
            RankedItem(item, score, dict(zip(self._parts, its_parts, strict=True)), chance, is_known)
            for item, score, its_parts, chance, is_known in zip(asked.at(places), scores, parts, chances, known, strict=True)
        ]

    def _free(self, asked: Candidates, shown: Pairs) -> NDArray[np.bool_]:
        """Which candidates may be chosen: those not shown yet, or all of them where none is left."""
        if not shown and len(asked.rows) <= MOST:
            return self._all[: len(asked.rows)]
        gone = {item for item, _ in shown}
        rows = self.version.catalog.rows_of(gone)
        if UNKNOWN_ROW in rows:  # items that share the row of the unknown are told apart by name
            free = np.fromiter((name not in gone for name in asked.at(range(len(asked.rows)))), np.bool_, len(asked.rows))
        else:
            self._gone[rows] = True
            free = ~self._gone[asked.rows]
            self._gone[rows] = False
        return free if free.any() else ~free

    def _in_c(
        self, state: Any, rows: NDArray[np.int32], free: NDArray[np.bool_], k: int, epsilon: float, uniform: NDArray[Any]
    ) -> ChosenCandidates | None:
        if self._native is None or not isinstance(state, ScorerState):
            return None
        return self._native.rank(state.hidden, state.previous, rows, free, k, epsilon, uniform)

    def _in_numpy(
        self, state: Any, rows: NDArray[np.int32], free: NDArray[np.bool_], k: int, epsilon: float, uniform: NDArray[Any]
    ) -> ChosenCandidates:
        """The twin."""
        said = self.version.scorer.score_parts(state, rows[None])
        parts = np.stack([said[name][0] for name in self._parts])  # (parts, C)
        scores = np.add.reduce(parts)
        places, chances = choose(scores, np.flatnonzero(free).tolist(), k, epsilon, uniform.tolist())
        return ChosenCandidates(places, chances, scores[places].tolist(), parts[:, places].T.tolist())

    def state_after(self, history: Pairs, shown: Pairs, session: str | None = None) -> Any:
        """The scorer's state after the history and what was shown; from memory where the session is known there."""
        history, shown = tuple(history[max(len(history) - self.version.history, 0) :]), tuple(shown)
        known = self._standing.get(session) if session is not None else None
        if known is not None and known.history == history and known.shown == shown[: len(known.shown)]:
            state, begin = known.state, len(known.shown)
        else:
            state, begin = self._begin(history), 0
        if begin < len(shown):
            state = self._after(state, *self._rows(shown[begin:]))
        if session is not None:
            self._standing[session] = _Standing(history, shown, state)
            self._standing.move_to_end(session)
            if len(self._standing) > self._remembered:
                self._standing.popitem(last=False)
        return state

    def _after(self, state: Any, items: NDArray[np.int32], behaviours: NDArray[np.uint8]) -> Any:
        """The scorer's state after more steps (T,)."""
        if self._native is not None and isinstance(state, ScorerState):
            hidden = self._native.after(state.hidden, state.previous, items, behaviours)
            if hidden is not None:
                return ScorerState(hidden, behaviours[-1:].astype(np.int64))
        for item, behaviour in zip(items, behaviours, strict=True):  # the twin
            state = self.version.scorer.observe(state, item[None], behaviour[None])
        return state

    def _begin(self, history: Pairs) -> Any:
        items, behaviours = self._rows(history)
        user, length = np.array([UNKNOWN_USER], np.int32), np.array([len(items)], np.int32)
        return self.version.scorer.begin(user, items[None], behaviours[None], length)

    def _rows(self, steps: Pairs) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Catalogue rows and behaviours of named steps."""
        for _, label in steps:
            if label not in self._label:
                known = ", ".join(self._label)
                raise InputError(f"behaviour: {label!r} is unknown to version {self.version.name}; known are {known}")
        items = self.version.catalog.rows_of(item for item, _ in steps)
        return items, np.fromiter((self._label[label] for _, label in steps), np.uint8, len(steps))


def choose(
    scores: NDArray[Any], left: Sequence[int], k: int, epsilon: float, uniform: Sequence[Sequence[float]]
) -> tuple[list[int], list[float]]:
    """The places of k candidates out of those left, and the probability of each given those before it.

    `scoring.epsilon_greedy` k times, each among those the ones before have left over; sorting once is faster.
    """
    free = list(left)
    order = np.argsort(-scores[free], kind="stable").tolist()  # among equals the first
    best_first = iter([free[place] for place in order])
    places: list[int] = []
    chances: list[float] = []
    taken: set[int] = set()
    best = next(best_first)
    for lottery, which in uniform[: min(k, len(free))]:
        while best in taken:
            best = next(best_first)
        count = len(free)
        place = free[min(int(which * count), count - 1)] if lottery < epsilon else best
        places.append(place)
        chances.append(epsilon / count + (1 - epsilon) * (place == best))
        taken.add(place)
        free.remove(place)
    return places, chances


def _terms(scorer: Scorer) -> list[TermArrays]:
    """What C can rank by; nothing where the scorer is no sum of networks."""
    if not isinstance(scorer, NetScorer):
        return []
    return [TermArrays(term.tables.cell.arrays, term.tables.head, term.rewards) for term in scorer.terms.values()]
