"""Ranking for one session at a time: from names to items with scores, parts and propensities, without HTTP.

The scorers and the choice rule are those of the experiments (`scoring.scorers`, `scoring.choice`), on numpy arrays. The
scorer state of a session is a function of its history and of what was shown. The states of recent sessions are cached;
where one is not (another version, another server, a client that sends everything itself) it is computed from the start,
with the same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.kernels.native.session import MOST, ChosenCandidates, TermArrays, session_ranker
from mbcal.scoring.item_projection import SPARE_ROWS
from mbcal.scoring.scorers import UNKNOWN_USER, NetScorer, Scorer, ScorerState
from mbcal.scoring.unknown_items import UnknownItems
from mbcal.serving.bounded import BoundedDict
from mbcal.serving.candidates import CandidateReader, Candidates, NameList
from mbcal.serving.fields import NOTHING_GIVEN, GivenFields, ScorerFields
from mbcal.serving.messages import RankedItem
from mbcal.types import UNKNOWN_ROW, Behaviours, Catalog
from mbcal.types.feature_values import FeatureDeclaration

TextSteps = Sequence[tuple[str, str]]
"""(item, behaviour) pairs, oldest first."""
STATE_BYTES = 400
"""Estimated size of a cached state without its arrays."""


class RankableVersion(Protocol):
    """What the ranker needs of a version of a model; `registry.Version` has it."""

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

    @property
    def features(self) -> Mapping[str, FeatureDeclaration]: ...

    @property
    def unknown_items(self) -> UnknownItems | None: ...


class _CachedState(NamedTuple):
    """The scorer's state of a session after these steps, which are known by their hashes, so that its size is constant."""

    history: int
    shown: int
    shown_length: int
    state: Any


class Ranker:
    """One version, ready to rank. Not thread-safe."""

    def __init__(self, version: RankableVersion, cache_bytes: int = 128 << 20, repeats: bool = False) -> None:
        """Prepare a version.

        Args:
            version: The version to rank with.
            cache_bytes: Bytes of the scorer states of sessions that are kept; the least recently used are dropped.
            repeats: Whether items that were shown in the session may be ranked again.
        """
        self.version, self._repeats = version, repeats
        self._states: BoundedDict[str, _CachedState] = BoundedDict(cache_bytes)
        self._terminal = frozenset(version.behaviours.terminal)
        self._behaviour_index = {name: index for index, name in enumerate(version.behaviours.names)}
        known = version.seen & (np.arange(len(version.seen)) != UNKNOWN_ROW)
        self._known = known.tobytes() + bytes(0 if version.unknown_items is None else SPARE_ROWS)
        self.fields = ScorerFields(version.scorer)
        self._all = np.ones(MOST, np.bool_)
        self._is_shown = np.zeros(version.catalog.n_rows, np.bool_)  # scratch of `_available`, false between calls
        state = self._begin(())
        self._state_bytes = STATE_BYTES + _array_bytes(state)
        self._parts = tuple(version.scorer.score_parts(state, np.full((1, 1), UNKNOWN_ROW, np.int32)))
        self._native = session_ranker(_terms(version.scorer))
        rows = None if self._native is None else self._native.rows
        self.reader = CandidateReader(version.catalog, rows, version.features)

    @property
    def uses_c(self) -> bool:
        """Whether the C kernel ranks; otherwise numpy does."""
        return self._native is not None

    @property
    def cached_bytes(self) -> int:
        """Estimated bytes of all cached states."""
        return self._states.used_bytes

    def rank(
        self,
        history: TextSteps,
        candidates: Candidates | Sequence[str],
        shown: TextSteps,
        *,
        k: int,
        epsilon: float,
        uniform: NDArray[np.float64],
        session: str | None = None,
        given: GivenFields = NOTHING_GIVEN,
    ) -> list[RankedItem]:
        """Rank candidates for one session, epsilon-greedily at every rank.

        Args:
            history: What the user did before the session; the version's latest `history` steps of it are used. Here as in
                `shown`, steps whose behaviour the version does not know are not read: another one may have been live.
            candidates: Items to rank, C of them. Those already shown are ranked only if every candidate was,
                or repeats are allowed.
            shown: What was shown in the session so far.
            k: Maximum number of items to return.
            epsilon: Probability, at each rank, of a uniformly random item among those left.
            uniform: (k, 2) uniform random numbers in [0, 1): whether to explore, and which item.
            session: Name under which the scorer's state is cached; None to compute it from the start.
            given: User features and context; what the version has not declared is left out.

        Returns:
            At most k items in order.

        Raises:
            InputError: If more than `SPARE_ROWS` unknown items have features.
        """
        listed = NameList(candidates, self.version.catalog) if isinstance(candidates, Sequence) else candidates
        state = self.fields.with_context(self.state_after(history, shown, session, given), given.context)
        available = self._available(listed, shown)
        k = min(k, int(np.count_nonzero(available)))
        table_rows = self._place(listed) if listed.features else listed.rows
        arguments = (table_rows, available, k, epsilon, uniform[:k])
        chosen = None
        if self._native is not None and isinstance(state, ScorerState):
            chosen = self._native.rank(state.hidden, state.previous, *arguments, gates=state.gates)  # None if it cannot
        positions, propensities, scores, parts = chosen or self._rank_in_numpy(state, *arguments)
        rows = table_rows.data
        known = [self._known[rows[position]] == 1 for position in positions]
        return [
            RankedItem(item, score, dict(zip(self._parts, values, strict=True)), propensity, is_known)
            for item, score, values, propensity, is_known in zip(
                listed.at(positions), scores, parts, propensities, known, strict=True
            )
        ]

    def _unknown_behaviours(self, steps: TextSteps) -> set[str]:
        """The behaviours of steps that the version does not know."""
        return {behaviour for _, behaviour in steps} - self._behaviour_index.keys()

    def require_known(self, steps: TextSteps) -> None:
        """Raise InputError if the version does not know the behaviour of a step."""
        if unknown := self._unknown_behaviours(steps):
            names = ", ".join(self._behaviour_index)
            raise InputError(
                f"behaviour: {min(unknown)!r} is unknown to version {self.version.name}; its behaviours are {names}"
            )

    def _place(self, candidates: Candidates) -> NDArray[np.int32]:
        """Rows (C,) of the scorer's tables; unknown items with features have rows of their own, until the next call."""
        if len(candidates.features) > SPARE_ROWS:  # in versions without such rows as well: all refuse the same requests
            count = len(candidates.features)
            raise InputError(f"candidates: {count} unknown items have features, at most {SPARE_ROWS} may; send fewer")
        unknown_items = self.version.unknown_items
        if unknown_items is None:
            return candidates.rows
        unknown_items.write(tuple(candidates.features.values()))
        rows = candidates.rows.copy()
        for row, position in enumerate(candidates.features, unknown_items.first_row):
            rows[position] = row
        return rows

    def _available(self, candidates: Candidates, shown: TextSteps) -> NDArray[np.bool_]:
        """Which candidates may be chosen, (C,): those not shown yet; all if all were shown or repeats are allowed."""
        if self._repeats or not shown:
            count = len(candidates.rows)
            return self._all[:count] if count <= MOST else np.ones(count, np.bool_)
        shown_items = {item for item, _ in shown}
        rows = self.version.catalog.rows_of(shown_items)
        if UNKNOWN_ROW in rows:  # unknown items share one row, so they are compared by name
            names = candidates.at(range(len(candidates.rows)))
            available = np.fromiter((name not in shown_items for name in names), np.bool_, len(names))
        else:
            self._is_shown[rows] = True
            available = ~self._is_shown[candidates.rows]
            self._is_shown[rows] = False
        return available if available.any() else ~available

    def _rank_in_numpy(
        self,
        state: Any,
        rows: NDArray[np.int32],
        available: NDArray[np.bool_],
        k: int,
        epsilon: float,
        uniform: NDArray[np.float64],
    ) -> ChosenCandidates:
        """The reference implementation of `SessionRanker.rank`, for scorers and machines without the C kernel."""
        parts_by_name = self.version.scorer.score_parts(state, rows[None])
        parts = np.stack([parts_by_name[name][0] for name in self._parts])  # (parts, C)
        scores = np.add.reduce(parts)
        positions, propensities = choose(scores, np.flatnonzero(available).tolist(), k, epsilon, uniform.tolist())
        return ChosenCandidates(positions, propensities, scores[positions].tolist(), parts[:, positions].T.tolist())

    def state_after(
        self, history: TextSteps, shown: TextSteps, session: str | None = None, given: GivenFields = NOTHING_GIVEN
    ) -> Any:
        """Return the scorer's state after the history and what was shown.

        Args:
            history: What the user did before the session.
            shown: What was shown in the session so far.
            session: Name under which the state is cached; None to compute it from the start.
            given: The user's features, and the context of what was shown.
        """
        contexts = given.shown_context
        if unknown := self._unknown_behaviours(history) | self._unknown_behaviours(shown):
            history = [step for step in history if step[1] not in unknown]
            contexts = tuple(context for context, step in zip(contexts, shown, strict=False) if step[1] not in unknown)
            shown = [step for step in shown if step[1] not in unknown]
        if self._terminal:
            history, shown = _since_leaving(history, shown, self._terminal)
        history, shown = tuple(history[max(len(history) - self.version.history, 0) :]), tuple(shown)
        contexts = contexts[len(contexts) - len(shown) :] if contexts else ()
        cached, history_hash = None, 0
        if session is not None:
            cached, history_hash = self._states.get(session), hash((history, given.user_features))
        if (
            cached is not None
            and cached.history == history_hash
            and cached.shown_length <= len(shown)
            and cached.shown == _hash_steps(shown, contexts, cached.shown_length)
        ):
            state, begin = cached.state, cached.shown_length
        else:
            state, begin = self.fields.with_user(self._begin(history), given.user_features), 0
        if begin < len(shown):
            state = self._observe(state, *self._encode(shown[begin:]), contexts[begin:])
        if session is not None:
            shown_hash = _hash_steps(shown, contexts, len(shown))
            self._states.put(session, _CachedState(history_hash, shown_hash, len(shown), state), self._state_bytes)
        return state

    def _observe(self, state: Any, items: NDArray[np.int32], behaviours: NDArray[np.uint8], contexts: Sequence[str]) -> Any:
        """The scorer's state after more steps (T,), in contexts (T) or none."""
        if self._native is not None and isinstance(state, ScorerState):
            gates = self.fields.step_gates(contexts)
            hidden = self._native.after(state.hidden, state.previous, items, behaviours, gates)
            if hidden is not None:
                return ScorerState(hidden, behaviours[-1:].astype(np.int64))
        for step, (item, behaviour) in enumerate(zip(items, behaviours, strict=True)):  # the reference implementation
            state = self.fields.with_context(state, contexts[step] if contexts else "")
            state = self.version.scorer.observe(state, item[None], behaviour[None])
        return state

    def _begin(self, history: TextSteps) -> Any:
        items, behaviours = self._encode(history)
        user, length = np.array([UNKNOWN_USER], np.int32), np.array([len(items)], np.int32)
        return self.version.scorer.begin(user, items[None], behaviours[None], length)

    def _encode(self, steps: TextSteps) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Catalogue rows (T,) and behaviours (T,) of steps."""
        items = self.version.catalog.rows_of(item for item, _ in steps)
        return items, np.fromiter((self._behaviour_index[behaviour] for _, behaviour in steps), np.uint8, len(steps))


def _hash_steps(shown: TextSteps, contexts: Sequence[str], count: int) -> int:
    """A hash of the first steps of a session and their contexts."""
    return hash((shown[:count], contexts[:count])) if contexts else hash(shown[:count])


def _since_leaving(history: TextSteps, shown: TextSteps, terminal: Collection[str]) -> tuple[TextSteps, TextSteps]:
    """Return history and shown steps of a user who may have left and come back: steps before the return are history."""
    ends = [number for number, (_, behaviour) in enumerate(shown, 1) if behaviour in terminal]
    return ([*history, *shown[: ends[-1]]], shown[ends[-1] :]) if ends else (history, shown)


def _array_bytes(state: Any) -> int:
    """Bytes of all arrays of a scorer's state."""
    if isinstance(state, np.ndarray):
        return 120 + state.nbytes
    if isinstance(state, Mapping):
        return sum(map(_array_bytes, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(_array_bytes, state))
    return sum(map(_array_bytes, vars(state).values())) if hasattr(state, "__dict__") else 0


def choose(
    scores: NDArray[Any], available: Sequence[int], k: int, epsilon: float, uniform: Sequence[Sequence[float]]
) -> tuple[list[int], list[float]]:
    """Choose k candidates epsilon-greedily, one after another, each among those not chosen yet.

    Equal to k calls of `scoring.choice.epsilon_greedy`; sorting once is faster.

    Args:
        scores: (C,) scores.
        available: Positions that may be chosen.
        k: Number of candidates to choose; fewer if fewer are available.
        epsilon: Probability of a uniformly random candidate.
        uniform: k pairs of uniform random numbers in [0, 1): whether to explore, and which candidate.

    Returns:
        Positions in order, and the propensity of each given those before it.
    """
    remaining = list(available)
    order = np.argsort(-scores[remaining], kind="stable").tolist()  # the first of equal scores comes first
    best_first = iter([remaining[index] for index in order])
    positions: list[int] = []
    propensities: list[float] = []
    chosen: set[int] = set()
    best = next(best_first)
    for explore, which in uniform[: min(k, len(remaining))]:
        while best in chosen:
            best = next(best_first)
        count = len(remaining)
        position = remaining[min(int(which * count), count - 1)] if explore < epsilon else best
        positions.append(position)
        propensities.append(epsilon / count + (1 - epsilon) * (position == best))
        chosen.add(position)
        remaining.remove(position)
    return positions, propensities


def _terms(scorer: Scorer) -> list[TermArrays]:
    """The terms the C kernel can rank by; none if the scorer is not a sum of networks."""
    if not isinstance(scorer, NetScorer):
        return []
    return [TermArrays(term.tables.cell.arrays, term.tables.head, term.rewards) for term in scorer.terms.values()]
