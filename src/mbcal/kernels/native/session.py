"""One session ranked in one call of C.

The service does this for every request, so tables are checked, and their addresses taken, once per version.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.kernels import native

MOST = 10_000
"""Candidates of a call, at most."""


class TermArrays(NamedTuple):
    """One term of a score, as `scoring.scorers.ScoreTerm`."""

    cell: native.FourArrays
    head: native.FourArrays
    rewards: NDArray[np.float32] | None
    """(K,) the reward of each behaviour; None for a value network."""


class ChosenCandidates(NamedTuple):
    """The k chosen candidates, in order."""

    indices: list[int]
    """Among the candidates."""
    propensities: list[float]
    """Probability of each choice, given those before it."""
    scores: list[float]
    parts: list[list[float]]
    """Each score by term."""


class _Choice(ctypes.Structure):
    """`struct choice` of score.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("scores", "available", "uniform", "chosen", "propensities", "parts")),
        ("epsilon", ctypes.c_double),
        ("k", ctypes.c_int64),
    )


class SessionRanker:
    """Ranks one session at a time by a sum of terms. Created by `session_ranker`. Not safe for two threads at once.

    Attributes:
        rows: (MOST,) int32 buffer of candidates; a caller may fill it and pass a slice of it to `rank`.
        scores: (MOST,) float32 scores of the candidates of the last call of `rank`.
    """

    def __init__(self, terms: Sequence[TermArrays]) -> None:
        self._terms = tuple(terms)  # they own the memory that the tasks point to
        self.rows, self._available = np.empty(MOST, np.int32), np.empty(MOST, np.bool_)
        self._outputs, self.scores = np.empty((len(terms), MOST), np.float32), np.empty(MOST, np.float32)
        self._previous, self._uniform = np.empty(1, np.int64), np.empty((MOST, 2))
        self._chosen, self._propensities = np.empty(MOST, np.int32), np.empty(MOST)
        self._parts = np.empty((MOST, len(terms)), np.float32)
        self._is_in_context = False
        self._behaviours = [np.empty((1, term.cell[1].shape[1]), np.float32) for term in terms]  # a behaviour in context
        self._behaviour_rows = [[term.cell[1][row : row + 1] for row in range(len(term.cell[1]))] for term in terms]
        self._plain_tables = [(native.address(term.cell[1]), len(term.cell[1])) for term in terms]
        self._context_tables = [(native.address(row), 1) for row in self._behaviours]
        self._hidden = [np.empty((1, term.head[0].shape[1]), np.float32) for term in terms]
        self._score_tasks = (native.Task * len(terms))(*map(self._score_task, range(len(terms))))
        self._read_tasks = [self._read_task(number) for number in range(len(terms))]
        buffers = (self.scores, self._available, self._uniform, self._chosen, self._propensities, self._parts)
        self._choice = _Choice(*map(native.address, buffers))
        self._function, self._arguments = _rank_function(), (self._score_tasks, len(terms), ctypes.byref(self._choice))

    def _read_task(self, number: int) -> native.Task:
        """A task to run a term's cell over steps: without head or rewards; the steps are set for each call."""
        cell, size = self._terms[number].cell, self._hidden[number].shape[1]
        sizes = {"n_rows": len(cell[0]), "n_behaviours": len(cell[1]), "size": size, "n_outputs": size, "width": 1}
        return native.Task(*map(native.address, cell), **sizes)

    def _score_task(self, number: int) -> native.Task:
        """A task to score candidates by a term; the width is set for each call."""
        cell, head, rewards = self._terms[number]
        pointers = [*map(native.address, (*cell, *head)), None if rewards is None else native.address(rewards)]
        buffers = (self._hidden[number], self._previous, self.rows, self._outputs[number])
        sizes = (len(cell[0]), len(cell[1]), *head[0].shape[::-1], len(head[3]))
        return native.Task(*pointers, *map(native.address, buffers), *sizes, 0, 0)

    def after(
        self,
        hidden: Sequence[Any],
        previous: Any,
        items: NDArray[np.int32],
        behaviours: NDArray[np.uint8],
        gates: Sequence[NDArray[np.float32]] | None = None,
    ) -> tuple[NDArray[np.float32], ...] | None:
        """Compute the hidden states after more steps of a session.

        Args:
            hidden: One (1, H) per term, before the steps. Not changed.
            previous: (1,) the behaviour before the steps.
            items: (T,) catalogue rows.
            behaviours: (T,).
            gates: What the contexts of the steps add to the gates, (T, 3H) per term; None if nothing.

        Returns:
            One (1, H) per term; None if an index is out of range.
        """
        # each item goes in with the behaviour of the step before it
        before = np.concatenate((previous, behaviours[:-1]), dtype=np.int64)
        items, length = np.ascontiguousarray(items, np.int32), np.array([len(before)], np.int32)
        states = tuple(map(np.empty_like, self._hidden))
        for number, (task, state, state_before) in enumerate(zip(self._read_tasks, states, hidden, strict=True)):
            state[...] = state_before
            table, rows = self._terms[number].cell[1], before
            if gates is not None:  # every step has a row of its own
                table, rows = table[before] + gates[number], np.arange(len(before))
            task.behaviours, task.n_behaviours = native.address(table), len(table)
            task.previous, task.candidates, task.outputs = map(native.address, (rows, items, state))
            if native.read_function()(ctypes.byref(task), native.address(length), 1, len(items), native.INSTRUCTION_LEVEL):
                return None
        return states

    def _set_behaviours(self, previous: int, gates: Sequence[Any] | None) -> None:
        """Let the tasks read the row of the previous behaviour with the context added; all rows, if there is no context."""
        if self._is_in_context != (gates is not None):
            self._is_in_context = gates is not None
            tables = self._plain_tables if gates is None else self._context_tables
            for task, table in zip(self._score_tasks, tables, strict=True):
                task.behaviours, task.n_behaviours = table
        for number, effect in enumerate(gates or ()):
            np.add(self._behaviour_rows[number][previous], effect, self._behaviours[number])

    def rank(
        self,
        hidden: Sequence[Any],
        previous: Any,
        rows: NDArray[np.int32],
        available: NDArray[np.bool_],
        k: int,
        epsilon: float,
        uniform: NDArray[np.float64],
        gates: Sequence[Any] | None = None,
    ) -> ChosenCandidates | None:
        """Score candidates and choose k of them, epsilon-greedy without replacement.

        Args:
            hidden: One (1, H) per term.
            previous: (1,) the previous behaviour.
            rows: (C,) candidates as catalogue rows; a slice of `self.rows` is not copied.
            available: (C,) which candidates may be chosen.
            k: How many to choose, at most as many as are available.
            epsilon: In [0, 1].
            uniform: (k, 2).
            gates: What the context adds to the gates, (1, 3H) per term; None if nothing.

        Returns:
            The choice; None if there are too many candidates or too few available, or an index is out of range.
        """
        width = len(rows)
        if width > MOST:
            return None
        if rows.base is not self.rows:
            self.rows[:width] = rows
        self._available[:width] = available
        for buffer, state in zip(self._hidden, hidden, strict=True):
            buffer[...] = state
        self._previous[0] = previous[0] if gates is None else 0
        self._uniform[:k] = uniform
        for task in self._score_tasks:
            task.width = width
        if gates is not None or self._is_in_context:
            self._set_behaviours(previous[0], gates)
        self._choice.epsilon, self._choice.k = epsilon, k
        if self._function(*self._arguments, native.INSTRUCTION_LEVEL):
            return None
        indices: list[int] = self._chosen[:k].tolist()
        scores = self.scores.data  # a memory view: indexing the array by a list would release the GIL
        chosen_scores: list[float] = [scores[index] for index in indices]
        return ChosenCandidates(indices, self._propensities[:k].tolist(), chosen_scores, self._parts[:k].tolist())


def session_ranker(terms: Sequence[TermArrays]) -> SessionRanker | None:
    """Create a `SessionRanker`.

    Args:
        terms: The terms of a score, on dense float32 arrays of numpy.

    Returns:
        None if there are no terms, an array is of another kind or shape, or the library was not compiled or is turned off.
    """
    if not native.available() or _rank_function() is None or native.read_function() is None:
        return None
    return SessionRanker(terms) if terms and all(map(_is_supported, terms)) else None


def _is_supported(term: TermArrays) -> bool:
    """Whether C can read a term's arrays. All shapes are checked here, since C does not check them again."""
    tables = (*term.cell, *term.head, *(() if term.rewards is None else (term.rewards,)))
    if not all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in tables):
        return False
    if not all(array.flags.c_contiguous and array.flags.aligned for array in tables):
        return False
    inputs = (np.empty((1, term.head[0].shape[-1])), np.empty(1), np.empty((1, 1)))
    n_outputs = (1,) if term.rewards is None else term.rewards.shape
    return native.shapes_match((*term.cell, *term.head), inputs) and term.head[3].shape == n_outputs


@cache
def _rank_function() -> Any:
    arguments = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)
    return native.load_function("mbcal_rank_1", ctypes.c_int, arguments, keep_gil=True)
