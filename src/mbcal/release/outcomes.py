"""Sessions of a decision log with what they earned, gathered record by record while servers write it.

A session counts for the version of its first decision, with all its steps that have feedback, in at most `longest` seconds.
It is finished when the user left with a terminal behaviour, when nothing came for `idle` seconds, or when `longest` seconds
are over. Sessions that finish quickly may be better or worse than others, so they are not counted as they finish: sessions
are counted in the order in which they began, and one that is not finished holds up all that began after it, of either
version alike.

Records may come in any order, as from the logs of several workers: what is counted depends only on which records are there
(`sessions.cut_sessions`), provided that at every look all records older than it are there. Feedback whose decision is not
there yet is kept, up to a number of bytes. No torch.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.decision_log.visits import is_anonymous
from mbcal.errors import OptionError
from mbcal.release.counted_ids import CountedDecisions, CountedIds
from mbcal.release.early_feedback import EarlyFeedback
from mbcal.release.ignored import Ignored
from mbcal.release.sessions import CountingRule, LoggedDecision, Session, cut_sessions

if TYPE_CHECKING:
    from mbcal.registry.version import Version

MOST_BYTES = 1 << 30
"""Memory of all records that are not counted. With more, sessions that are long over are counted before the next look."""
LOGGING_DELAY = 10.0
"""Seconds within which a record is in the log, about. So a look leaves out what happened later."""


@dataclass(frozen=True)
class SessionRule:
    """What a session is and when it is finished."""

    horizon: int = 20
    """Steps that a session may have, whether or not one that long was met: bounds what it may earn."""
    idle: float = 1800.0
    """Seconds without a decision or feedback after which a session is finished, as long as servers remember one."""
    longest: float = 7200.0
    """Seconds after its first decision from which nothing counts any more."""

    @property
    def logging_delay(self) -> float:
        """Seconds before a look from which records may still be missing in the log."""
        return min(LOGGING_DELAY, self.idle)

    def __post_init__(self) -> None:
        if self.horizon < 1 or not 0 < self.idle <= self.longest:
            raise OptionError("session rule: horizon must be at least 1, and idle positive and at most longest")


@dataclass(frozen=True)
class Outcomes:
    """Finished sessions in the order in which they began, N of them."""

    versions: tuple[str, ...]
    users: tuple[str, ...]
    version: NDArray[np.int32]
    """(N,) index of the version of the first decision."""
    user: NDArray[np.int32]
    """(N,) index of the user."""
    began: NDArray[np.int64]
    """(N,) time of the first decision, in microseconds since 1970."""
    reward: NDArray[np.float64]
    """(N,) sum of rewards."""
    length: NDArray[np.int32]
    """(N,) steps with feedback."""
    epsilon: NDArray[np.float64]
    """(N,) exploration of the first decision."""
    size: NDArray[np.float64]
    """(N,) sum of rewards without their signs."""
    min_reward: float
    """The least that a session may earn (`CountingRule.bounds`). What a session earned beyond does not count."""
    max_reward: float
    """The most: a reward this large may be there, and not have been met yet."""
    min_step_reward: float = 0.0
    """The least that a step may earn, at most 0."""
    offered: NDArray[np.int32] | None = None
    """(N,) items that were returned, with feedback or without; None: as many as steps."""

    def __len__(self) -> int:
        return len(self.version)

    @property
    def is_named(self) -> NDArray[np.bool_]:
        """(N,) whether its requests name a user. Others would seem to be of users who never come back."""
        names = np.fromiter(map(is_anonymous, self.users), np.bool_, len(self.users))
        return np.asarray(~names[self.user], np.bool_)


@dataclass(eq=False)
class _Group:
    """Decisions with one name that are not counted yet."""

    name: str
    decisions: dict[str, LoggedDecision] = field(default_factory=dict)
    sessions: list[Session] | None = None
    """Cut from the decisions; None after a change."""


class OutcomeReader:
    """Turns records into finished sessions.

    Args:
        rewards: Reward of every behaviour by name. Feedback with another behaviour is a step without reward.
        rule: What a session is.
        since: Sessions that began before this time do not count, in microseconds since 1970.
        terminal: Behaviours with which a user leaves. Decisions after that are another session; rewards are late.
    """

    def __init__(
        self, rewards: Mapping[str, float], rule: SessionRule, since: int = 0, terminal: Collection[str] = ()
    ) -> None:
        self._rule = CountingRule(rewards, terminal, int(rule.idle * 1e6), int(rule.longest * 1e6), since)
        self._horizon = rule.horizon
        self._groups: dict[str, _Group] = {}
        self._decisions: dict[str, LoggedDecision] = {}
        self._early = EarlyFeedback()
        self._counted, self._late = CountedDecisions(), CountedIds()  # the latter: decisions with late rewards
        self._unattributed = CountedDecisions()  # those that belong to no session
        self._names = CountedIds()  # of counted sessions
        self._requested = {"": CountedIds(), "user": CountedIds()}  # what requests called sessions, without and with a user
        self._without_session, self._without_user = Counter[str](), Counter[str]()  # counted sessions by version
        self._bytes = 0
        self._look_at_bytes = MOST_BYTES
        self.ignored = Ignored()
        self._versions: dict[str, int] = {}
        self._users: dict[str, int] = {}
        kinds = {"version": "i", "user": "i", "began": "q", "reward": "d", "length": "i", "epsilon": "d"}
        kinds |= {"size": "d", "offered": "i"}
        self._columns: dict[str, array[Any]] = {name: array(kind) for name, kind in kinds.items()}

    @classmethod
    def of_version(cls, version: Version, rule: SessionRule, since: int = 0) -> OutcomeReader:
        """Return a reader with a version's rewards and horizon; the other arguments as above."""
        rewards = dict(zip(version.behaviours.names, version.behaviours.rewards, strict=True))
        return cls(rewards, replace(rule, horizon=version.horizon), since, version.behaviours.terminal)

    def add(self, record: Record) -> None:
        """Take note of a record.

        Records may come in any order. Repeated ones count once, and of several decisions with one id the latest.
        """
        if isinstance(record, Decision):
            if record.time >= self._rule.since - self._rule.longest:  # it may show that a session was going on before
                self._add_decision(record)
        else:
            self._add_feedback(record)
        if self._bytes > self._look_at_bytes:
            self._count(record.time - self._rule.longest)
            self._look_at_bytes = max(MOST_BYTES, self._bytes + self._bytes // 4)

    def _add_decision(self, record: Decision) -> None:
        decision = LoggedDecision.of(record)
        if decision is None:
            if self._unattributed.version_of(record.id) is None:
                is_of_trial = record.time >= self._rule.since
                self._unattributed.add(record.id, record.version, record.items, {} if is_of_trial else None)
                if is_of_trial:
                    self.ignored.of(record.version).unattributed += 1
            for item, behaviour in self._early.take(record.id):
                self._add_unattributed(record.version, record.id, item, behaviour)
            return
        known = self._decisions.get(decision.id)
        if known is not None or self._counted.version_of(decision.id) is not None:
            self.ignored.repeated += 1
            if known is None or known.order >= decision.order:
                return
            self._remove([known])
            decision.responses, decision.others = known.responses, known.others
            self.ignored.not_shown += sum((item in known.items) - (item in decision.items) for item in known.responses)
        for (item, _), response in self._early.take(decision.id).items():
            self.ignored.not_shown += item not in decision.items
            decision.respond(item, response)
        group = self._groups.get(decision.name) or _Group(decision.name)
        self._decisions[decision.id] = group.decisions[decision.id] = decision
        self._change(group, decision.size)

    def _add_feedback(self, feedback: Feedback) -> None:
        decision, response = self._decisions.get(feedback.decision), (feedback.time, feedback.id, feedback.behaviour)
        if (version := self._unattributed.version_of(feedback.decision)) is not None:
            self._add_unattributed(version, feedback.decision, feedback.item, feedback.behaviour)
            return
        if (version := self._counted.version_of(feedback.decision)) is not None:
            self._add_late(version, feedback)
            return
        if decision is None:
            self.ignored.dropped += self._early.add(feedback)
        else:
            self.ignored.not_shown += feedback.item not in decision.items
            before = decision.size
            decision.respond(feedback.item, response)
            self._change(self._groups[decision.name], decision.size - before)

    def _add_late(self, version: str, feedback: Feedback) -> None:
        """Take note of feedback on a decision that was counted. What was read before, or was never shown, is not late."""
        kind = self._counted.respond(feedback.decision, feedback.item, feedback.behaviour)
        reward = abs(self._rule.rewards.get(feedback.behaviour, 0.0))
        self.ignored.not_shown += kind == "not shown"
        if kind == "changed":
            first = self._counted.first_behaviour(feedback.decision, feedback.item, self._rule.rewards)
            self._note_changed(version, first, feedback.behaviour)
        elif kind == "first" and reward:
            self._note_late(version, feedback.decision, reward)

    def _note_changed(self, version: str, first: str | None, further: str) -> None:
        """Take note of a further behaviour on an item, and of how it would change the reward; one without reward is 0."""
        rewards, partial = self._rule.rewards, self.ignored.of(version)
        change = rewards.get(further, 0.0) - (rewards.get(first, 0.0) if first is not None else 0.0)
        partial.changed, partial.reward = partial.changed + 1, partial.reward + abs(change)
        partial.lowered += max(-change, 0.0)

    def _note_late(self, version: str, decision: str, reward: float) -> None:
        """Take note of rewards that came too late: one more decision of a version, unless it had such rewards before."""
        partial = self.ignored.of(version)
        partial.late, partial.reward = partial.late + (decision not in self._late), partial.reward + reward
        self._late.add(decision)

    def _add_unattributed(self, version: str, decision: str, item: str, behaviour: str) -> None:
        """Take note of feedback on a decision that belongs to no session, the first on each item that it returned."""
        kind, reward = self._unattributed.respond(decision, item, behaviour), abs(self._rule.rewards.get(behaviour, 0.0))
        self.ignored.not_shown += kind == "not shown"
        if kind == "first":
            self.ignored.of(version).reward += reward
        elif kind == "changed":
            self._note_changed(version, self._unattributed.first_behaviour(decision, item, self._rule.rewards), behaviour)

    def _change(self, group: _Group, size: int) -> None:
        """Take note that the decisions of a group changed, and of the bytes that came or went."""
        group.sessions = None
        self._bytes += size
        if group.decisions:
            self._groups[group.name] = group
        else:
            self._groups.pop(group.name, None)

    def _remove(self, decisions: Collection[LoggedDecision]) -> None:
        """Forget decisions of one group."""
        for decision in decisions:
            group = self._groups[decision.name]
            del self._decisions[decision.id], group.decisions[decision.id]
            self._change(group, -decision.size)

    @property
    def n_waiting(self) -> int:
        """Decisions of sessions that are not counted yet."""
        return len(self._decisions)

    def outcomes(self, now: int) -> Outcomes:
        """Return all sessions up to the first that is not finished.

        Args:
            now: Microseconds since 1970. Every record older than this should have been added.
        """
        self._count(now)
        columns: dict[str, Any] = {name: np.array(values) for name, values in self._columns.items()}
        least, most = self._rule.bounds(columns["length"], self._horizon)
        return Outcomes(
            tuple(self._versions),
            tuple(self._users),
            **columns,
            min_reward=least,
            max_reward=most,
            min_step_reward=min(0.0, *self._rule.rewards.values()),
        )

    def _count(self, now: int) -> None:
        waiting: list[Session] = []
        for group in self._groups.values():
            if group.sessions is None:
                group.sessions = cut_sessions(group.decisions.values(), self._rule)
            waiting += group.sessions
        for session in sorted(waiting, key=lambda session: (session.began, session.first.id)):
            if session.is_finished(now):
                self._count_session(session)
            elif session.began >= self._rule.since:
                break
            else:
                self._shorten(session, now - self._rule.longest)
        self.ignored.dropped += self._early.drop_before(now - self._rule.longest)
        self._note_unmatched()

    def _count_session(self, session: Session) -> None:
        """Count a session and forget its decisions. A name that began may go on after a pause."""
        is_continued = self._has_other_part(session)
        has_beginning = (session.has_beginning or session.first.name in self._names) and not is_continued
        is_of_trial, version = session.began >= self._rule.since, session.first.version
        for late, reward in session.late.items() if is_of_trial else ():
            self._note_late(version, late, reward)
        if is_of_trial and has_beginning:
            self._append(session)
        elif is_of_trial:
            partial = self.ignored.of(version)
            partial.missing_start, partial.reward = partial.missing_start + 1, partial.reward + session.size
        if has_beginning:
            self._names.add(session.first.name)
        for decision in session.decisions:
            reported = decision.reported() if is_of_trial else None
            for first, *further in (reported or {}).values():
                for behaviour in further:
                    self._note_changed(version, first, behaviour)
            self._counted.add(decision.id, version, decision.items, reported)
        self._remove(session.decisions)

    def _note_unmatched(self) -> None:
        """Take note of the sessions that may be one visit with another: the kind of which there are fewer."""
        fewer = min(self._without_session, self._without_user, key=Counter.total)
        for version in self._versions:
            if fewer[version] or version in self.ignored.partial_visits:
                self.ignored.of(version).unmatched = fewer[version]

    def _has_other_part(self, session: Session) -> bool:
        """Whether its requests were counted without their user before, or with one if they name none, as after a logout."""
        own, other = ("", "user") if session.first.name.startswith("session ") else ("user", "")
        requested = {decision.session for decision in session.decisions if decision.session}
        for name in requested:
            self._requested[own].add(name)
        return any(name in self._requested[other] for name in requested)

    def _shorten(self, session: Session, before: int) -> None:
        """Forget decisions of a session that does not count and is still going on, except when it began."""
        n_old = sum(decision.time < before for decision in session.decisions)
        if 0 < n_old < len(session.decisions):
            session.decisions[n_old].began = session.began
            self._remove(session.decisions[:n_old])

    def _append(self, session: Session) -> None:
        version = session.first.version
        self._without_session[version] += not any(decision.session for decision in session.decisions)
        self._without_user[version] += session.first.name.startswith("session ")
        values = {
            "version": self._versions.setdefault(version, len(self._versions)),
            "user": self._users.setdefault(session.first.user, len(self._users)),
            "began": session.began,
            "reward": session.reward,
            "length": session.length,
            "epsilon": session.first.epsilon,
            "size": session.size,
            "offered": session.offered,
        }
        for name, value in values.items():
            self._columns[name].append(value)
