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
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from mbcal.data.cutting import SessionConfig
from mbcal.data.user_split import stable_hash
from mbcal.decision_log.joined import JoinCounts, Joined, StepOrigin
from mbcal.decision_log.records import SKEW, Decision, Feedback, Record
from mbcal.decision_log.visits import IDLE, SessionlessDecision, anonymous, join_visits, newest_time, user_name
from mbcal.decision_log.windows import Step, Window, pad_windows
from mbcal.types import LOG_ORIGIN, NO_FIELDS, Behaviours, Catalog, SessionFields, Sessions

_SMALLEST_PROPENSITY = float(np.finfo(np.float32).tiny)


class _CompactDecision(NamedTuple):
    """What is kept of a decision until all records are read. Compares by time first, then by content."""

    time: int
    step: int
    user: str
    session: str
    """Empty if the request had none."""
    items: tuple[str, ...]
    propensities: tuple[float, ...]
    candidates: bytes
    """Catalogue rows, int32."""
    history: tuple[bytes, bytes, int]
    """Catalogue rows (int32), behaviours (uint8), and the number of steps left out for an unknown behaviour."""
    version: str
    epsilon: float
    context: bytes
    """Encoded fields of the step, float32; empty if there are none."""
    user_features: bytes
    """Encoded fields of the user, likewise."""
    shown: int
    """Hash of the steps of the session before it."""


class _Response(NamedTuple):
    """Feedback on one item of a decision. Compares by time first, then by id."""

    time: int
    id: str
    behaviour: int
    raised: float = 0.0
    """By how much another behaviour that was reported would raise the reward."""
    lowered: float = 0.0
    """By how much one would lower it."""


def join_sessions(
    records: Iterable[Record],
    catalog: Catalog,
    behaviours: Behaviours,
    *,
    horizon: int = 20,
    history: int = 20,
    fields: SessionFields = NO_FIELDS,
    versions: Collection[str] | None = None,
) -> Joined:
    """Join decisions and feedback to sessions.

    Decisions without a session are joined to visits of their users (`visits`); without a user, each is a session of its own.
    A session longer than the horizon is cut into windows; the steps of earlier windows are history of the later ones. So are
    the steps up to a terminal behaviour, with which the user left. Before them comes the history of the session's first
    decision. Where the length of a session shows that the user left (`Behaviours.with_leaving`), its last step gets the
    terminal variant of its behaviour, if the last window is shorter than the horizon and nothing followed for `IDLE`
    seconds. All decisions are held in memory, about 4 bytes per candidate.

    Args:
        records: In any order; repeated records count once, and of several decisions with one id the latest.
        catalog: The model's items. Other items become the unknown item.
        behaviours: The model's behaviours. Feedback with others is left out.
        horizon: Steps of a row, T.
        history: Steps before it, H.
        fields: The model's fields of users and steps. Others that requests gave, and values that do not fit, are missing.
        versions: Versions whose decisions are joined; None for all. Of the others only ids are kept.

    Returns:
        The sessions, ordered by a hash of the user's name, then by time; with names and counts.

    Raises:
        OptionError: If horizon or history is out of range.
    """
    SessionConfig(horizon=horizon, history=history)  # checks the ranges
    counts = JoinCounts()
    builder = _SessionBuilder(catalog, behaviours, history, counts, fields)
    decisions, responses, active = _gather(records, builder, counts, versions)
    visits = join_visits(
        SessionlessDecision(
            decision.user,
            decision.time,
            decision.step,
            decision_id,
            active.get(decision_id, ()),
        )
        for decision_id, decision in decisions.items()
        if not decision.session
    )
    sessions: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for decision_id, decision in decisions.items():
        session, step = visits.get(decision_id, (decision.session, decision.step))
        sessions[decision.user, session].append((step, decision.time, decision_id))
    starts = {key: min(time for _, time, _ in entries) for key, entries in sessions.items()}
    hashes = {user: stable_hash(user, 0, "user") for user, _ in sessions}
    newest = newest_time(np.asarray([decision.time for decision in decisions.values()], np.int64))
    missing_start: set[tuple[str, str]] = set()
    for user, session in sorted(sessions, key=lambda key: (hashes[key[0]], key[0], starts[key], key[1])):
        entries = sorted(sessions[user, session])
        has_begun_anew = _has_begun_anew([decisions[decision_id] for _, _, decision_id in entries])
        has_other_part = user != anonymous(session) and (anonymous(session), session) in sessions  # before a login
        if decisions[entries[0][2]].step > 0 or has_begun_anew or has_other_part:
            missing_start.add((user, session))
        steps: list[Step] = []
        for _, _, decision_id in entries:
            found = responses.get(decision_id, {}), active.get(decision_id, ())
            new_steps = builder.steps(decision_id, decisions[decision_id], *found, len(steps))
            counts.unanswered += not new_steps
            steps += new_steps
        if steps:
            first = decisions[entries[0][2]]._replace(session=session)
            builder.add_session(first, builder.with_leaving(steps, newest, horizon), horizon)
    counts.sessions, counts.steps = len(builder.windows), sum(len(window.steps) for window in builder.windows)
    of_visits = {(decisions[decision_id].user, place.visit) for decision_id, place in visits.items()}
    without_user = {key for key in sessions if key[0] == anonymous(key[1])}
    unattributed = of_visits & without_user
    unmatched = min(without_user - unattributed, of_visits - unattributed, key=len)
    counts.missing_start, counts.unattributed, counts.unmatched = len(missing_start), len(unattributed), len(unmatched)
    return builder.to_joined(horizon, missing_start | unattributed | unmatched)


def _gather(
    records: Iterable[Record], builder: _SessionBuilder, counts: JoinCounts, versions: Collection[str] | None
) -> tuple[dict[str, _CompactDecision], dict[str, dict[str, _Response]], dict[str, tuple[int, ...]]]:
    """Return decisions by id, by decision the response to each of its items, and the times of all feedback on it."""
    decisions: dict[str, _CompactDecision] = {}
    others: set[str] = set()
    earliest: dict[tuple[str, str], _Response] = {}
    unknown: Counter[str] = Counter()
    repeats: Counter[tuple[str, str]] = Counter()
    reported: dict[tuple[str, str], int] = defaultdict(int)  # behaviours as bits
    times: dict[str, list[int]] = defaultdict(list)
    for record in records:
        if isinstance(record, Decision):
            if versions is not None and record.version not in versions:
                others.add(record.id)
                continue
            counts.decisions += 1
            compact = builder.compact(record)
            if record.id in decisions:
                counts.repeated_decisions += 1
                compact = max(compact, decisions[record.id])
            decisions[record.id] = compact
        elif isinstance(record, Feedback):
            counts.feedback += 1
            times[record.decision].append(record.time)
            if record.behaviour not in builder.behaviour_number:
                unknown[record.behaviour] += 1
                continue
            key = record.decision, sys.intern(record.item)
            response = _Response(record.time, record.id, builder.behaviour_number[record.behaviour])
            earliest[key] = min(earliest.get(key, response), response)
            repeats[key] += 1
            reported[key] |= 1 << response.behaviour
    responses: dict[str, dict[str, _Response]] = defaultdict(dict)
    for (decision_id, item), response in earliest.items():
        count = repeats[decision_id, item]
        if decision_id in decisions and item in decisions[decision_id].items:
            raised, lowered = builder.changes(response.behaviour, reported[decision_id, item])
            responses[decision_id][item] = response._replace(raised=raised, lowered=lowered)
            counts.repeated_feedback += count - 1
            counts.changed_feedback += reported[decision_id, item].bit_count() > 1
        elif decision_id in others:
            counts.other_versions += count
        else:
            counts.orphans += count
    counts.unknown_behaviours = dict(sorted(unknown.items()))
    return decisions, responses, {name: tuple(sorted(set(found))) for name, found in times.items() if name in decisions}


def _has_begun_anew(decisions: Sequence[_CompactDecision]) -> bool:
    """Whether a session began anew in the middle, by its decisions in the order of their steps.

    Times go back then: by more than clocks differ, or after other steps than those that another decision of the same number
    knew. Decisions of several servers may be logged at times that go back by less.
    """
    times = [decision.time for decision in decisions]
    back = max(latest - time for latest, time in zip(accumulate(times, max), times, strict=True))
    n_pasts = len({(decision.step, decision.shown) for decision in decisions})
    return back > SKEW * 1e6 or (back > 0 and n_pasts > len({decision.step for decision in decisions}))


def available_candidates(decision: Decision) -> list[str]:
    """Return the candidates that the first item was chosen from.

    Without those shown, if items are not repeated and any is left.
    """
    shown = set() if decision.repeats else {item for item, _ in decision.shown}
    return [name for name in decision.candidates if name not in shown] or decision.candidates


class _SessionBuilder:
    """Collects windows of sessions, then pads them to arrays."""

    def __init__(
        self, catalog: Catalog, behaviours: Behaviours, history: int, counts: JoinCounts, fields: SessionFields
    ) -> None:
        self.catalog, self.behaviours, self.history, self.counts = catalog, behaviours, history, counts
        self.fields = fields
        self.behaviour_number = {name: number for number, name in enumerate(behaviours.names)}
        self.users: dict[str, int] = {}
        self.windows: list[Window] = []

    def changes(self, first: int, reported: int) -> tuple[float, float]:
        """Return by how much other behaviours than the first would raise and lower a reward, of those reported (as bits)."""
        rewards = self.behaviours.rewards
        known = [reward for number, reward in enumerate(rewards) if reported >> number & 1]
        return max(known) - rewards[first], rewards[first] - min(known)

    def compact(self, decision: Decision) -> _CompactDecision:
        """Reduce a decision to rows; names that feedback is matched by are interned."""
        # what the first decision of a visit without a session says was shown came before all that the log has of the visit
        past = decision.history if decision.session else [*decision.history, *decision.shown]
        known = [(item, self.behaviour_number[name]) for item, name in past if name in self.behaviour_number]
        newest = self._newest(known)
        items = self.catalog.rows_of(item for item, _ in newest).tobytes()
        behaviours = bytes(behaviour for _, behaviour in newest)
        return _CompactDecision(
            decision.time,
            decision.step,
            sys.intern(user_name(decision)),
            sys.intern(decision.session),
            tuple(map(sys.intern, decision.items)),
            tuple(decision.propensities),
            self.catalog.rows_of(available_candidates(decision)).tobytes(),
            (items, behaviours, len(past) - len(known)),
            sys.intern(decision.version),
            decision.epsilon,
            self.fields.context.encode_known(decision.context, "context").tobytes(),
            self.fields.user.encode_known(decision.user_features, "user_features").tobytes(),
            hash(tuple(map(tuple, decision.shown))),
        )

    def steps(
        self,
        decision_id: str,
        decision: _CompactDecision,
        responses: dict[str, _Response],
        active: tuple[int, ...],
        first: int,
    ) -> list[Step]:
        """Return the steps of one decision, in the order of its ranking, numbered from `first`."""
        steps: list[Step] = []
        if not responses:
            return steps
        available, pending = np.frombuffer(decision.candidates, np.int32), dict(responses)
        rows = self.catalog.rows_of(decision.items).tolist()
        for rank, (item, row, propensity) in enumerate(zip(decision.items, rows, decision.propensities, strict=True)):
            response = pending.pop(item, None)  # an item returned twice counts at its first position
            if response is not None:
                # a propensity that float32 would round to 0 becomes the smallest normal float32
                propensity = max(propensity, _SMALLEST_PROPENSITY)
                number = first + len(steps)
                when = (decision.time, rank, response.time)
                origin = StepOrigin(decision_id, *when, decision.step, number, active, response.raised, response.lowered)
                made = (decision.version, decision.epsilon, decision.context)
                steps.append(Step(row, response.behaviour, origin, propensity, available, *made))
            if not pending:
                break
            available = np.delete(available, np.flatnonzero(available == row)[:1])
        return steps

    def add_session(self, first: _CompactDecision, steps: Sequence[Step], horizon: int) -> None:
        """Cut one session into windows; user, name and history are those of its first decision."""
        user = self.users.setdefault(first.user, len(self.users))
        items, behaviours, unknown = first.history
        self.counts.unknown_history += unknown
        before = list(zip(np.frombuffer(items, np.int32).tolist(), behaviours, strict=True))
        for window in self._cut(steps, horizon):
            self.windows.append(Window(user, first.session, before, window, first.user_features))
            before = self._newest([*before, *((step.item, step.behaviour) for step in window)])

    def with_leaving(self, steps: list[Step], newest: int, horizon: int) -> list[Step]:
        """Return the steps of a session, the last behaviour replaced by its terminal variant if its user has left.

        Args:
            steps: At least one.
            newest: Time of the newest decision of the log (`newest_time`), in microseconds.
            horizon: Steps of a row.
        """
        last, n_observed = steps[-1], self.behaviours.n_observed
        has_variants, is_short = n_observed < len(self.behaviours), len(steps) % horizon
        if not has_variants or not is_short or last.behaviour >= n_observed or newest - last.origin.time <= IDLE * 1e6:
            return steps
        return [*steps[:-1], last._replace(behaviour=last.behaviour + n_observed)]

    def _cut(self, steps: Sequence[Step], horizon: int) -> Iterator[Sequence[Step]]:
        """Cut steps after `horizon` of them, and after terminal behaviours."""
        begin = 0
        for end, step in enumerate(steps, 1):
            if end - begin == horizon or end == len(steps) or self.behaviours.is_terminal[step.behaviour]:
                yield steps[begin:end]
                begin = end

    def _newest(self, steps: list[Any]) -> list[Any]:
        return steps[-self.history :] if self.history else []

    def to_joined(self, horizon: int, partial: Collection[tuple[str, str]]) -> Joined:
        """Return all windows as padded arrays; `partial` are users and names of sessions that may be parts of others."""
        arrays, epsilons = pad_windows(self.windows, horizon, self.history, self.fields, self.counts)
        users = tuple(self.users)
        # equal origins promise that equal numbers mean the same users
        origin = f"{LOG_ORIGIN}{hashlib.sha256(chr(0).join(users).encode()).hexdigest()}"
        sessions = Sessions(self.catalog, self.behaviours, **arrays, origin=origin, fields=self.fields)
        session_names = tuple(window.session for window in self.windows)
        versions = tuple(window.version for window in self.windows)
        origins = tuple(tuple(step.origin for step in window.steps) for window in self.windows)
        may_be_partial = np.asarray([(users[window.user], window.session) in partial for window in self.windows], np.bool_)
        return Joined(sessions, users, session_names, versions, epsilons, origins, may_be_partial, self.counts)
