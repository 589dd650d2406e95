"""Candidates of a session to a ranked list with scores, parts and propensities: the service's arithmetic, without HTTP.

The same scorers and choices as the laboratory's (`scorers.py`, `scoring.py`), on numpy arrays, one session at a time. Where
a session stands is a function of its history and of what was shown; it is remembered between requests and made anew where
it is not (another version, another worker, a client that sends everything itself), with the same answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.scorers import Scorer
from mbcal.types import UNKNOWN, Behaviours, Catalog

NOBODY = 2**31 - 1
"""The service knows users by what they did, not by number."""

Pairs = Sequence[tuple[str, str]]
"""(item, behaviour), oldest first."""


class Ranks(Protocol):
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


@dataclass(frozen=True)
class Place:
    """One item of an answer."""

    item: str
    score: float
    parts: dict[str, float]
    propensity: float
    """Probability with which it was chosen for this place, given those before it."""
    known: bool
    """Whether the model has met the item; others are ranked as the average one."""


class Ranker:
    """One version, ready to rank. Safe to use from one thread; keeps where the latest sessions stand."""

    def __init__(self, version: Ranks, remembered: int = 50_000) -> None:
        self.version, self._remembered = version, remembered
        self._standing: OrderedDict[str, tuple[tuple[Any, ...], Any]] = OrderedDict()
        names = version.behaviours.names
        self._label = {name: place for place, name in enumerate(names)}

    def rank(
        self,
        history: Pairs,
        shown: Pairs,
        candidates: Sequence[str],
        k: int,
        epsilon: float,
        uniform: NDArray[np.float64],
        session: str | None = None,
    ) -> list[Place]:
        """The best k in order, now and then (epsilon) another in their place, by uniform numbers (k, 2).

        What was shown in this session is not shown again before every candidate has been.
        """
        rows = self.version.catalog.row(candidates)
        parts = self.version.scorer.parts(self.standing(history, shown, session), rows[None])
        scores: NDArray[Any] = np.add.reduce(list(parts.values()))[0]
        gone = {item for item, _ in shown}
        left = [place for place, item in enumerate(candidates) if item not in gone] if gone else range(len(candidates))
        return [
            Place(
                item=candidates[place],
                score=float(scores[place]),
                parts={name: float(part[0, place]) for name, part in parts.items()},
                propensity=chance,
                known=bool(rows[place] != UNKNOWN and self.version.seen[rows[place]]),
            )
            for place, chance in choose(scores, left or range(len(candidates)), k, epsilon, uniform.tolist())
        ]

    def standing(self, history: Pairs, shown: Pairs, session: str | None = None) -> Any:
        """The scorer's state after the history and what was shown; from memory where the session is known there."""
        history = tuple((item, label) for item, label in history[-self.version.history :]) if self.version.history else ()
        steps = (history, *((item, label) for item, label in shown))
        known = self._standing.get(session) if session is not None else None
        if known is not None and known[0] == steps[: len(known[0])]:
            state, begin = known[1], len(known[0]) - 1
        else:
            state, begin = self._begin(history), 0
        scorer = self.version.scorer
        for item, behaviour in zip(*self._rows(shown[begin:]), strict=True):
            state = scorer.observe(state, item[None], behaviour[None])
        if session is not None:
            self._standing[session] = (steps, state)
            self._standing.move_to_end(session)
            if len(self._standing) > self._remembered:
                self._standing.popitem(last=False)
        return state

    def _begin(self, history: Pairs) -> Any:
        items, behaviours = self._rows(history)
        user, length = np.array([NOBODY], np.int32), np.array([len(items)], np.int32)
        return self.version.scorer.begin(user, items[None], behaviours[None], length)

    def _rows(self, steps: Pairs) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Catalogue rows and behaviours of named steps."""
        for _, label in steps:
            if label not in self._label:
                known = ", ".join(self._label)
                raise InputError(f"behaviour: {label!r} is unknown to version {self.version.name}; known are {known}")
        items = self.version.catalog.row(item for item, _ in steps)
        return items, np.fromiter((self._label[label] for _, label in steps), np.uint8, len(steps))


def choose(
    scores: NDArray[Any], left: Sequence[int], k: int, epsilon: float, uniform: Sequence[Sequence[float]]
) -> list[tuple[int, float]]:
    """The places of k candidates out of those left, and the probability of each given those before it.

    `scoring.epsilon_greedy` k times, each among those the ones before have left over; sorting once is faster.
    """
    free = list(left)
    order = np.argsort(-scores[free], kind="stable").tolist()  # among equals the first
    best_first = iter([free[place] for place in order])
    chosen: list[tuple[int, float]] = []
    taken: set[int] = set()
    best = next(best_first)
    for lottery, which in uniform[: min(k, len(free))]:
        while best in taken:
            best = next(best_first)
        count = len(free)
        place = free[min(int(which * count), count - 1)] if lottery < epsilon else best
        chosen.append((place, epsilon / count + (1 - epsilon) * (place == best)))
        taken.add(place)
        free.remove(place)
    return chosen


def require_askable(candidates: Sequence[str], k: int, most: int) -> None:
    """Refuse what has no answer."""
    if not candidates:
        raise InputError("candidates: none were given; name at least one item to rank")
    if len(candidates) > most:
        raise InputError(f"candidates: {len(candidates)} were given, at most {most} are ranked at a time")
    if len(set(candidates)) != len(candidates):
        raise InputError("candidates: an item is there twice; name every item once")
    if not 1 <= k <= most:
        raise InputError(f"k: must be from 1 to {most}, got {k}")
