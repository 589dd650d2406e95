"""One session ranked in one call of C: what a service does all day, its tables checked and their addresses taken once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.kernels import native

MOST = 10_000
"""Candidates of a call."""


class TermArrays(NamedTuple):
    """A term of a score: the tables of its cell, its head, and the rewards of what the head foretells, if it does."""

    cell: native.Four
    head: native.Four
    rewards: NDArray[np.float32] | None


class ChosenCandidates(NamedTuple):
    """The candidates chosen, in order."""

    places: list[int]
    chances: list[float]
    """Of each, given those before it."""
    scores: list[float]
    parts: list[list[float]]
    """What each score is the sum of."""


class _Choice(ctypes.Structure):
    """`struct choice` of score.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "free", "uniform", "places", "chances", "parts")),
        ("epsilon", ctypes.c_double),
        ("k", ctypes.c_int64),
    )


class SessionRanker:
    """Terms ready to rank one session at a time; not for two threads at once. Made by `session_ranker`."""

    def __init__(self, terms: Sequence[TermArrays]) -> None:
        self._terms = tuple(terms)  # they own the memory that the tasks point to
        self.rows, self._free = np.empty(MOST, np.int32), np.empty(MOST, np.bool_)
        self._outputs, self._scores = np.empty((len(terms), MOST), np.float32), np.empty(MOST, np.float32)
        self._previous, self._uniform = np.empty(1, np.int64), np.empty((MOST, 2))
        self._places, self._chances = np.empty(MOST, np.int32), np.empty(MOST)
        self._parts = np.empty((MOST, len(terms)), np.float32)
        self._hidden = [np.empty((1, term.head[0].shape[1]), np.float32) for term in terms]
        self._tasks = (native.Task * len(terms))(*map(self._task, range(len(terms))))
        self._cells = [self._cell(number) for number in range(len(terms))]
        shared = (self._scores, self._free, self._uniform, self._places, self._chances, self._parts)
        self._choice = _Choice(*map(native.address, shared))
        self._call, self._arguments = _function(), (self._tasks, len(terms), ctypes.byref(self._choice))

    def _cell(self, number: int) -> native.Task:
        """To read steps with: no head, no rewards, and what is read is given with the call."""
        cell, size = self._terms[number].cell, self._hidden[number].shape[1]
        return native.Task(*map(native.address, cell), rows=len(cell[0]), kinds=len(cell[1]), size=size, count=size, width=1)

    def _task(self, number: int) -> native.Task:
        cell, head, rewards = self._terms[number]
        pointers = [*map(native.address, (*cell, *head)), None if rewards is None else native.address(rewards)]
        given = (self._hidden[number], self._previous, self.rows, self._outputs[number])
        return native.Task(
            *pointers, *map(native.address, given), len(cell[0]), len(cell[1]), *head[0].shape[::-1], len(head[3]), 0, 0
        )

    def after(
        self, hidden: Sequence[Any], previous: Any, items: NDArray[np.int32], behaviours: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float32], ...] | None:
        """Hidden states (1, H), one a term, after steps (T,) from such states; None where the twin has to do it."""
        # each item is read with the behaviour before it
        before = np.concatenate((previous, behaviours[:-1]), dtype=np.int64)
        items, length = np.ascontiguousarray(items, np.int32), np.array([len(before)], np.int32)
        made = tuple(map(np.empty_like, self._hidden))
        for task, state, given in zip(self._cells, made, hidden, strict=True):
            state[...] = given
            task.previous, task.candidates, task.outputs = map(native.address, (before, items, state))
            if native.reader()(ctypes.byref(task), native.address(length), 1, len(items), native.LEVEL):
                return None
        return made

    def rank(
        self,
        hidden: Sequence[Any],
        previous: Any,
        rows: NDArray[np.int32],
        free: NDArray[np.bool_],
        k: int,
        epsilon: float,
        uniform: NDArray[np.float64],
    ) -> ChosenCandidates | None:
        """Epsilon-greedy k times among the candidates that are free, after hidden states (1, H), one a term.

        Candidates are rows (C,) of the catalogue (those already in `self.rows` are not copied), `uniform` is (k, 2), and k
        at most the number of those free. None where the twin has to do it.
        """
        width = len(rows)
        if width > MOST:
            return None
        if rows.base is not self.rows:
            self.rows[:width] = rows
        self._free[:width] = free
        for kept, given in zip(self._hidden, hidden, strict=True):
            kept[...] = given
        self._previous[0] = previous[0]
        self._uniform[:k] = uniform
        for task in self._tasks:
            task.width = width
        self._choice.epsilon, self._choice.k = epsilon, k
        if self._call(*self._arguments, native.LEVEL):
            return None
        places: list[int] = self._places[:k].tolist()
        scores = self._scores.data  # not indexed by the list: numpy would let another thread in
        return ChosenCandidates(
            places, self._chances[:k].tolist(), [scores[place] for place in places], self._parts[:k].tolist()
        )


def session_ranker(terms: Sequence[TermArrays]) -> SessionRanker | None:
    """For terms on numpy arrays of the plain kind; None for others, or where nothing was compiled."""
    if not native.available() or _function() is None or native.reader() is None:
        return None
    return SessionRanker(terms) if terms and all(map(_plain, terms)) else None


def _plain(term: TermArrays) -> bool:
    """Whether C can read a term as it lies; every shape is checked, for it is not looked at again."""
    tables = (*term.cell, *term.head, *(() if term.rewards is None else (term.rewards,)))
    if not all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in tables):
        return False
    if not all(array.flags.c_contiguous and array.flags.aligned for array in tables):
        return False
    given = (np.empty((1, term.head[0].shape[-1])), np.empty(1), np.empty((1, 1)))
    count = (1,) if term.rewards is None else term.rewards.shape
    return native.shaped((*term.cell, *term.head), given) and term.head[3].shape == count


@cache
def _function() -> Any:
    arguments = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)
    return native.function("mbcal_rank_1", ctypes.c_int, arguments, short=True)
