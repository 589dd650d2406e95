"""Decisions and feedback joined to sessions; the result depends on the set of records, not on their order.

::

    decision d1 (step 0, candidates a b c, items b a, propensities .9 .5)     session    b      a
    feedback d1 b click, d1 a skip                                            behaviour  click  skip
                                                                              candidates a b c | a c
                                                                              propensity .9     .5

Each feedback is one step. Steps are ordered by their decisions (step, then time, then id) and, within a decision, by its
ranking; when the feedback arrived does not matter. The time of a step is that of its decision. The candidates of a step are
those it was chosen from: those of its decision, without the items shown before in the session (if the server does not repeat
items) and without the items ranked before it. Its propensity is the logged one, which is conditional on those.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.data.cutting import SessionConfig
from mbcal.data.user_split import stable_hash
from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.types import LOG_ORIGIN, Behaviours, Catalog, Sessions

IDLE = 1800.0
"""Seconds without a decision after which a user has left, as long as servers remember a session."""
_SMALLEST_PROPENSITY = float(np.finfo(np.float32).tiny)


@dataclass
class JoinCounts:
    """How many records were used, and how many were left out and why."""

    decisions: int = 0
    feedback: int = 0
    sessions: int = 0
    """Rows of the result; a session longer than the horizon has several."""
    steps: int = 0
    unanswered: int = 0
    """Decisions without usable feedback: left out."""
    repeated_decisions: int = 0
    """Decisions with the id of another; the earliest counts."""
    repeated_feedback: int = 0
    """Further feedback on the same item of the same decision; the earliest counts."""
    orphans: int = 0
    """Feedback on a decision that is not in the log, or on an item the decision did not return."""
    unknown_behaviours: dict[str, int] = field(default_factory=dict)
    """Feedback left out because the model does not have its behaviour, by behaviour."""
    unknown_history: int = 0
    """Steps of histories left out for the same reason."""
    lost: list[str] = field(default_factory=list)
    """What the log has lost, one sentence each: damaged bytes, missing segments. The reader of the log fills it in."""
    new_items: int = 0
    """Items that the log added to the catalogue (`new_items.extend_by_log`). Whoever extends it fills it in."""


class StepOrigin(NamedTuple):
    """The decision behind a step."""

    decision: str
    """Its id."""
    time: int
    """Its time, in microseconds since 1970."""
    rank: int
    """Position of the step's item among those it returned."""


@dataclass(frozen=True)
class Joined:
    """Sessions, and the names behind their numbers."""

    sessions: Sessions
    """N rows, with candidates (N, T, C), propensities (N, T) and timestamps (N, T)."""
    users: tuple[str, ...]
    """User names by number, only users with steps. They are ordered by a hash, so that any prefix is a random sample."""
    session_names: tuple[str, ...]
    """(N,) the session of each row."""
    versions: tuple[str | None, ...]
    """(N,) the version that decided each row; None if several did."""
    epsilons: NDArray[np.float64]
    """(N, T) exploration with which each step was decided; 0 in the padding."""
    origins: tuple[tuple[StepOrigin, ...], ...]
    """(N,) the decisions of each row's steps."""
    counts: JoinCounts

    def decided_by(self, version: str) -> NDArray[np.int64]:
        """Return the indices of the rows that this version decided alone."""
        return np.flatnonzero([name == version for name in self.versions])


class _CompactDecision(NamedTuple):
    """What is kept of a decision until all records are read. Compares by time first, then by content."""

    time: int
    step: int
    user: str
    session: str
    items: tuple[str, ...]
    propensities: tuple[float, ...]
    candidates: bytes
    """Catalogue rows, int32."""
    history: tuple[bytes, bytes, int]
    """Catalogue rows (int32), behaviours (uint8), and the number of steps left out for an unknown behaviour."""
    version: str
    epsilon: float


class _Step(NamedTuple):
    item: int
    behaviour: int
    origin: StepOrigin
    propensity: float
    candidates: NDArray[np.int32]
    version: str
    epsilon: float


class _Window(NamedTuple):
    """One row of the result: up to `horizon` steps of a session."""

    user: int
    session: str
    history: list[tuple[int, int]]
    steps: Sequence[_Step]

    @property
    def version(self) -> str | None:
        """The version that decided all steps; None if there are several."""
        first, *others = {step.version for step in self.steps}
        return None if others else first


def join_sessions(
    records: Iterable[Record], catalog: Catalog, behaviours: Behaviours, *, horizon: int = 20, history: int = 20
) -> Joined:
    """Join decisions and feedback to sessions.

    A session longer than the horizon is cut into windows; the steps of earlier windows are history of the later ones. So are
    the steps up to a terminal behaviour, with which the user left. Before them comes the history of the session's first
    decision. Where the length of a session shows that the user left (`Behaviours.with_leaving`), its last step gets the
    terminal variant of its behaviour, if the last window is shorter than the horizon and nothing followed for `IDLE`
    seconds. All decisions are held in memory, about 4 bytes per candidate.

    Args:
        records: In any order; repeated records count once.
        catalog: The model's items. Other items become the unknown item.
        behaviours: The model's behaviours. Feedback with others is left out.
        horizon: Steps of a row, T.
        history: Steps before it, H.

    Returns:
        The sessions, ordered by a hash of the user's name, then by time; with names and counts.

    Raises:
        OptionError: If horizon or history is out of range.
    """
    SessionConfig(horizon=horizon, history=history)  # checks the ranges
    counts = JoinCounts()
    builder = _SessionBuilder(catalog, behaviours, history, counts)
    decisions, behaviour_of = _gather(records, builder, counts)
    sessions: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for decision_id, decision in decisions.items():
        sessions[decision.user, decision.session].append((decision.step, decision.time, decision_id))
    starts = {key: min(time for _, time, _ in entries) for key, entries in sessions.items()}
    hashes = {user: stable_hash(user, 0, "user") for user, _ in sessions}
    newest = max((decision.time for decision in decisions.values()), default=0)
    for user, session in sorted(sessions, key=lambda key: (hashes[key[0]], key[0], starts[key], key[1])):
        entries = sorted(sessions[user, session])
        steps: list[_Step] = []
        for _, _, decision_id in entries:
            new_steps = builder.steps(decision_id, decisions[decision_id], behaviour_of.get(decision_id, {}))
            counts.unanswered += not new_steps
            steps += new_steps
        if steps:
            builder.add_session(decisions[entries[0][2]], builder.with_leaving(steps, newest, horizon), horizon)
    counts.sessions, counts.steps = len(builder.windows), sum(len(window.steps) for window in builder.windows)
    return builder.to_joined(horizon)


def _gather(
    records: Iterable[Record], builder: _SessionBuilder, counts: JoinCounts
) -> tuple[dict[str, _CompactDecision], dict[str, dict[str, str]]]:
    """Return decisions by id, and by decision the behaviour on each of its items."""
    decisions: dict[str, _CompactDecision] = {}
    earliest: dict[tuple[str, str], tuple[int, str, str]] = {}
    unknown: Counter[str] = Counter()
    repeats: Counter[tuple[str, str]] = Counter()
    for record in records:
        if isinstance(record, Decision):
            counts.decisions += 1
            compact = builder.compact(record)
            if record.id in decisions:
                counts.repeated_decisions += 1
                compact = min(compact, decisions[record.id])
            decisions[record.id] = compact
        elif isinstance(record, Feedback):
            counts.feedback += 1
            if record.behaviour not in builder.behaviour_number:
                unknown[record.behaviour] += 1
                continue
            key, response = (record.decision, sys.intern(record.item)), (record.time, record.id, record.behaviour)
            earliest[key] = min(earliest.get(key, response), response)
            repeats[key] += 1
    behaviour_of: dict[str, dict[str, str]] = defaultdict(dict)
    for (decision_id, item), (_, _, behaviour) in earliest.items():
        count = repeats[decision_id, item]
        if decision_id in decisions and item in decisions[decision_id].items:
            behaviour_of[decision_id][item] = behaviour
            counts.repeated_feedback += count - 1
        else:
            counts.orphans += count
    counts.unknown_behaviours = dict(sorted(unknown.items()))
    return decisions, behaviour_of


def available_candidates(decision: Decision) -> list[str]:
    """Return the candidates that the first item was chosen from.

    Without those shown, if items are not repeated and any is left.
    """
    shown = set() if decision.repeats else {item for item, _ in decision.shown}
    return [name for name in decision.candidates if name not in shown] or decision.candidates


class _SessionBuilder:
    """Collects windows of sessions, then pads them to arrays."""

    def __init__(self, catalog: Catalog, behaviours: Behaviours, history: int, counts: JoinCounts) -> None:
        self.catalog, self.behaviours, self.history, self.counts = catalog, behaviours, history, counts
        self.behaviour_number = {name: number for number, name in enumerate(behaviours.names)}
        self.users: dict[str, int] = {}
        self.windows: list[_Window] = []

    def compact(self, decision: Decision) -> _CompactDecision:
        """Reduce a decision to rows; names that feedback is matched by are interned."""
        # without a session the client sends all earlier steps with every request: the decision is a session of its own
        past = decision.history if decision.session else [*decision.history, *decision.shown]
        session = decision.session or decision.id
        user = decision.user or f"anonymous:{session}"
        known = [(item, self.behaviour_number[name]) for item, name in past if name in self.behaviour_number]
        newest = self._newest(known)
        items = self.catalog.rows_of(item for item, _ in newest).tobytes()
        behaviours = bytes(behaviour for _, behaviour in newest)
        return _CompactDecision(
            decision.time,
            decision.step,
            sys.intern(user),
            sys.intern(session),
            tuple(map(sys.intern, decision.items)),
            tuple(decision.propensities),
            self.catalog.rows_of(available_candidates(decision)).tobytes(),
            (items, behaviours, len(past) - len(known)),
            sys.intern(decision.version),
            decision.epsilon,
        )

    def steps(self, decision_id: str, decision: _CompactDecision, behaviour_of: dict[str, str]) -> list[_Step]:
        """Return the steps of one decision, in the order of its ranking."""
        steps: list[_Step] = []
        if not behaviour_of:
            return steps
        available, pending = np.frombuffer(decision.candidates, np.int32), dict(behaviour_of)
        rows = self.catalog.rows_of(decision.items).tolist()
        for rank, (item, row, propensity) in enumerate(zip(decision.items, rows, decision.propensities, strict=True)):
            behaviour = pending.pop(item, None)  # an item returned twice counts at its first position
            if behaviour is not None:
                # a propensity that float32 would round to 0 becomes the smallest normal float32
                propensity = max(propensity, _SMALLEST_PROPENSITY)
                number = self.behaviour_number[behaviour]
                origin = StepOrigin(decision_id, decision.time, rank)
                steps.append(_Step(row, number, origin, propensity, available, decision.version, decision.epsilon))
            if not pending:
                break
            available = np.delete(available, np.flatnonzero(available == row)[:1])
        return steps

    def add_session(self, first: _CompactDecision, steps: Sequence[_Step], horizon: int) -> None:
        """Cut one session into windows; user, name and history are those of its first decision."""
        user = self.users.setdefault(first.user, len(self.users))
        items, behaviours, unknown = first.history
        self.counts.unknown_history += unknown
        before = list(zip(np.frombuffer(items, np.int32).tolist(), behaviours, strict=True))
        for window in self._cut(steps, horizon):
            self.windows.append(_Window(user, first.session, before, window))
            before = self._newest([*before, *((step.item, step.behaviour) for step in window)])

    def with_leaving(self, steps: list[_Step], newest: int, horizon: int) -> list[_Step]:
        """Return the steps of a session, the last behaviour replaced by its terminal variant if its user has left.

        Args:
            steps: At least one.
            newest: Time of the newest decision of the log, in microseconds.
            horizon: Steps of a row.
        """
        last, n_observed = steps[-1], self.behaviours.n_observed
        has_variants, is_short = n_observed < len(self.behaviours), len(steps) % horizon
        if not has_variants or not is_short or last.behaviour >= n_observed or newest - last.origin.time <= IDLE * 1e6:
            return steps
        return [*steps[:-1], last._replace(behaviour=last.behaviour + n_observed)]

    def _cut(self, steps: Sequence[_Step], horizon: int) -> Iterator[Sequence[_Step]]:
        """Cut steps after `horizon` of them, and after terminal behaviours."""
        begin = 0
        for end, step in enumerate(steps, 1):
            if end - begin == horizon or end == len(steps) or self.behaviours.is_terminal[step.behaviour]:
                yield steps[begin:end]
                begin = end

    def _newest(self, steps: list[Any]) -> list[Any]:
        return steps[-self.history :] if self.history else []

    def to_joined(self, horizon: int) -> Joined:
        """Return all windows as padded arrays."""
        size = len(self.windows)
        width = max((len(step.candidates) for window in self.windows for step in window.steps), default=0)
        arrays: dict[str, Any] = {
            "items": np.zeros((size, horizon), np.int32),
            "behaviours": np.zeros((size, horizon), np.uint8),
            "length": np.asarray([len(window.steps) for window in self.windows], np.int32),
            "user": np.asarray([window.user for window in self.windows], np.int32),
            "history_items": np.zeros((size, self.history), np.int32),
            "history_behaviours": np.zeros((size, self.history), np.uint8),
            "history_length": np.asarray([len(window.history) for window in self.windows], np.int32),
            "candidates": np.zeros((size, horizon, width), np.int32),
            "propensities": np.zeros((size, horizon), np.float32),
            "timestamps": np.zeros((size, horizon), np.int64),
        }
        epsilons = np.zeros((size, horizon))
        for row, window in enumerate(self.windows):
            for column, (item, behaviour) in enumerate(window.history):
                arrays["history_items"][row, column], arrays["history_behaviours"][row, column] = item, behaviour
            latest = min(step.origin.time for step in window.steps)
            for column, step in enumerate(window.steps):
                latest = max(latest, step.origin.time)  # times do not decrease within a row, even if a clock was set back
                arrays["items"][row, column], arrays["behaviours"][row, column] = step.item, step.behaviour
                arrays["propensities"][row, column], arrays["timestamps"][row, column] = step.propensity, latest
                arrays["candidates"][row, column, : len(step.candidates)] = step.candidates
                epsilons[row, column] = step.epsilon
        users = tuple(self.users)
        # equal origins promise that equal numbers mean the same users
        origin = f"{LOG_ORIGIN}{hashlib.sha256(chr(0).join(users).encode()).hexdigest()}"
        sessions = Sessions(self.catalog, self.behaviours, **arrays, origin=origin)
        session_names = tuple(window.session for window in self.windows)
        versions = tuple(window.version for window in self.windows)
        origins = tuple(tuple(step.origin for step in window.steps) for window in self.windows)
        return Joined(sessions, users, session_names, versions, epsilons, origins, self.counts)
