"""Decisions and feedback to the library's Sessions, whatever the order the records came in.

::

    decision d1 (step 0, candidates a b c, items b a, propensities .9 .5)     session   b      a
    feedback d1 b click, d1 a skip                                            behaviour click  skip
                                                                              candidates a b c | a c
                                                                              propensity .9     .5

Each piece of feedback is a step. Steps follow their decisions (by step, then time, then id) and, within one, the order of
its ranking; when the feedback came does not matter. A step's time is its decision's. An item was chosen from the candidates
that were not ranked before it, and its propensity is the one given those before it.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.data.cutting import SessionConfig, stable_hash
from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.types import LOG_ORIGIN, Behaviours, Catalog, Sessions

_SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass
class JoinCounts:
    """What became of the records."""

    decisions: int = 0
    feedback: int = 0
    sessions: int = 0
    """Rows: windows, where sessions were longer than the horizon."""
    steps: int = 0
    unanswered: int = 0
    """Decisions without a step: left out."""
    repeated_decisions: int = 0
    """Of one id; the earliest counts."""
    repeated_feedback: int = 0
    """On one item of one decision; the earliest counts."""
    orphans: int = 0
    """Feedback on a decision that is not in the log, or on an item its decision did not return."""
    unknown_behaviours: dict[str, int] = field(default_factory=dict)
    """Feedback refused because the model knows no such behaviour, by its name."""
    unknown_history: int = 0
    """Steps of histories left out for the same reason."""


@dataclass(frozen=True)
class Joined:
    """Sessions, and what their numbers mean."""

    sessions: Sessions
    users: tuple[str, ...]
    """Names by number. Users with steps, in the order of a hash of their names: any prefix is a random sample."""
    names: tuple[str, ...]
    """Which session each row is of."""
    counts: JoinCounts


class _Seen(NamedTuple):
    """What joining needs of a decision, in little memory. Compares by time first, then by all it says."""

    time: int
    step: int
    user: str
    session: str
    items: tuple[str, ...]
    propensities: tuple[float, ...]
    candidates: bytes
    """Catalogue rows, int32."""
    history: tuple[bytes, bytes, int]
    """Catalogue rows, behaviours, and how many steps had a behaviour nobody knows."""


class _Step(NamedTuple):
    item: int
    behaviour: int
    time: int
    propensity: float
    candidates: NDArray[np.int32]


def join_sessions(
    records: Iterable[Record], catalog: Catalog, behaviours: Behaviours, *, horizon: int = 20, history: int = 20
) -> Joined:
    """Sessions of up to `horizon` steps; longer ones are cut into windows, whose earlier steps are history to the later.

    The history before them is that of the session's first decision.
    """
    SessionConfig(horizon=horizon, history=history)  # the same rules as for any log
    counts = JoinCounts()
    rows = _Rows(catalog, behaviours, history, counts)
    seen, answers = _gather(records, rows, counts)
    sessions: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for name, decision in seen.items():
        sessions[decision.user, decision.session].append((decision.step, decision.time, name))
    starts = {who: min(time for _, time, _ in decided) for who, decided in sessions.items()}
    hashed = {user: stable_hash(user, 0, "user") for user, _ in sessions}
    for user, session in sorted(sessions, key=lambda who: (hashed[who[0]], who[0], starts[who], who[1])):
        decided = sorted(sessions[user, session])
        steps: list[_Step] = []
        for _, _, name in decided:
            found = rows.steps(seen[name], answers.get(name, {}))
            counts.unanswered += not found
            steps += found
        if steps:
            rows.cut(seen[decided[0][2]], steps, horizon)
    counts.sessions, counts.steps = len(rows.windows), sum(len(steps) for _, _, steps in rows.windows)
    return rows.joined(horizon)


def _gather(
    records: Iterable[Record], rows: _Rows, counts: JoinCounts
) -> tuple[dict[str, _Seen], dict[str, dict[str, str]]]:
    """Decisions by id; and for each the behaviour on each of its items."""
    seen: dict[str, _Seen] = {}
    first: dict[tuple[str, str], tuple[int, str, str]] = {}
    refused: Counter[str] = Counter()
    answered: Counter[tuple[str, str]] = Counter()
    for record in records:
        if isinstance(record, Decision):
            counts.decisions += 1
            compact = rows.compact(record)
            if record.id in seen:
                counts.repeated_decisions += 1
                compact = min(compact, seen[record.id])
            seen[record.id] = compact
        elif isinstance(record, Feedback):
            counts.feedback += 1
            if record.behaviour not in rows.number:
                refused[record.behaviour] += 1
                continue
            place, answer = (record.decision, sys.intern(record.item)), (record.time, record.id, record.behaviour)
            first[place] = min(first.get(place, answer), answer)
            answered[place] += 1
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    for (decision, item), (_, _, behaviour) in first.items():
        count = answered[decision, item]
        if decision in seen and item in seen[decision].items:
            answers[decision][item] = behaviour
            counts.repeated_feedback += count - 1
        else:
            counts.orphans += count
    counts.unknown_behaviours = dict(sorted(refused.items()))
    return seen, answers


class _Rows:
    """Gathers windows, then pads them to arrays."""

    def __init__(self, catalog: Catalog, behaviours: Behaviours, history: int, counts: JoinCounts) -> None:
        self.catalog, self.behaviours, self.most, self.counts = catalog, behaviours, history, counts
        self.number = {name: number for number, name in enumerate(behaviours.names)}
        self.users: dict[str, int] = {}
        self.names: list[str] = []
        self.windows: list[tuple[int, list[tuple[int, int]], Sequence[_Step]]] = []

    def compact(self, decision: Decision) -> _Seen:
        """A decision in rows; the names that feedback is matched by are kept once for all decisions."""
        # without a session the client sends the whole past with every request: the decision is a session of its own
        past = decision.history if decision.session else [*decision.history, *decision.shown]
        session = decision.session or decision.id
        user = decision.user or f"anonymous:{session}"
        known = [(item, self.number[behaviour]) for item, behaviour in past if behaviour in self.number]
        kept = known[-self.most :] if self.most else []
        items, behaviours = (
            self.catalog.rows_of(item for item, _ in kept).tobytes(),
            bytes(behaviour for _, behaviour in kept),
        )
        return _Seen(
            decision.time,
            decision.step,
            sys.intern(user),
            sys.intern(session),
            tuple(map(sys.intern, decision.items)),
            tuple(decision.propensities),
            self.catalog.rows_of(decision.candidates).tobytes(),
            (items, behaviours, len(past) - len(known)),
        )

    def steps(self, decision: _Seen, answers: dict[str, str]) -> list[_Step]:
        """The steps of one decision, in the order its items were ranked."""
        found: list[_Step] = []
        if not answers:
            return found
        left, behaviour_of = np.frombuffer(decision.candidates, np.int32), dict(answers)
        rows = self.catalog.rows_of(decision.items).tolist()
        for item, row, propensity in zip(decision.items, rows, decision.propensities, strict=True):
            behaviour = behaviour_of.pop(item, None)  # an item returned twice counts where it came first
            if behaviour is not None:
                # a propensity too small for the array's type becomes the smallest that is not 0
                found.append(_Step(row, self.number[behaviour], decision.time, max(propensity, _SMALLEST), left))
            if not behaviour_of:
                break
            left = np.delete(left, np.flatnonzero(left == row)[:1])
        return found

    def cut(self, first: _Seen, steps: Sequence[_Step], horizon: int) -> None:
        """One session, told by its first decision, as windows of the horizon."""
        number = self.users.setdefault(first.user, len(self.users))
        items, behaviours, unknown = first.history
        self.counts.unknown_history += unknown
        before = list(zip(np.frombuffer(items, np.int32).tolist(), behaviours, strict=True))
        for start in range(0, len(steps), horizon):
            window = steps[start : start + horizon]
            self.windows.append((number, before, window))
            self.names.append(first.session)
            later = [*before, *((step.item, step.behaviour) for step in window)]
            before = later[-self.most :] if self.most else []

    def joined(self, horizon: int) -> Joined:
        """Everything gathered, as arrays."""
        size = len(self.windows)
        width = max((len(step.candidates) for _, _, steps in self.windows for step in steps), default=0)
        arrays: dict[str, NDArray[Any]] = {
            "items": np.zeros((size, horizon), np.int32),
            "behaviours": np.zeros((size, horizon), np.uint8),
            "length": np.asarray([len(steps) for _, _, steps in self.windows], np.int32),
            "user": np.asarray([user for user, _, _ in self.windows], np.int32),
            "history_items": np.zeros((size, self.most), np.int32),
            "history_behaviours": np.zeros((size, self.most), np.uint8),
            "history_length": np.asarray([len(before) for _, before, _ in self.windows], np.int32),
            "candidates": np.zeros((size, horizon, width), np.int32),
            "propensities": np.zeros((size, horizon), np.float32),
            "timestamps": np.zeros((size, horizon), np.int64),
        }
        for row, (_, before, steps) in enumerate(self.windows):
            for column, (item, behaviour) in enumerate(before):
                arrays["history_items"][row, column], arrays["history_behaviours"][row, column] = item, behaviour
            latest = min(step.time for step in steps)
            for column, step in enumerate(steps):
                latest = max(latest, step.time)  # a clock set back does not make time fall within a session
                arrays["items"][row, column], arrays["behaviours"][row, column] = step.item, step.behaviour
                arrays["propensities"][row, column], arrays["timestamps"][row, column] = step.propensity, latest
                arrays["candidates"][row, column, : len(step.candidates)] = step.candidates
        users = tuple(self.users)
        numbering = hashlib.sha256("\0".join(users).encode()).hexdigest()  # the same numbers mean the same users
        origin = f"{LOG_ORIGIN}{numbering}"
        optional: dict[str, Any] = arrays
        return Joined(
            Sessions(self.catalog, self.behaviours, **optional, origin=origin), users, tuple(self.names), self.counts
        )
