"""Sessions of a decision log with what they earned, gathered record by record while servers write it.

A session counts for the version of its first decision. Its reward and its length are those of its first `horizon` steps with
feedback, in at most `longest` seconds. It is finished when it has that many steps, when the user left with a terminal
behaviour, when nothing came for `idle` seconds, or when `longest` seconds are over. Sessions that finish quickly may be
better or worse than others, so they are not counted as they finish: sessions are counted in the order in which they began,
and one that is not finished holds up all that began after it, of either version alike. No torch.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.errors import OptionError

if TYPE_CHECKING:
    from mbcal.registry.version import Version

MOST_EARLY = 100_000
"""Feedback kept that came before its decision, as from the log of another worker; of more, the oldest is dropped."""


@dataclass(frozen=True)
class SessionRule:
    """What a session is and when it is finished."""

    horizon: int = 20
    """Steps that count, as many as the model plans for."""
    idle: float = 1800.0
    """Seconds without a decision or feedback after which a session is finished, as long as servers remember one."""
    longest: float = 7200.0
    """Seconds after its first decision from which nothing counts any more."""

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

    def __len__(self) -> int:
        return len(self.version)


@dataclass(eq=False)
class _Session:
    """A session that is not counted yet."""

    name: str
    version: str
    user: str
    began: int
    last: int
    """Time of its last record."""
    reward: float = 0.0
    length: int = 0
    left: bool = False
    """Whether its user left with a terminal behaviour."""
    decisions: list[str] = field(default_factory=list)
    answered: set[tuple[str, str]] = field(default_factory=set)
    """(decision, item) of feedback that was counted."""


class OutcomeReader:
    """Turns records into finished sessions.

    Args:
        rewards: Reward of every behaviour by name. Feedback with another behaviour is a step without reward.
        rule: What a session is.
        since: Sessions that began before this time do not count, in microseconds since 1970.
        terminal: Behaviours with which a user leaves; what follows is another session, and does not count.
    """

    def __init__(
        self, rewards: Mapping[str, float], rule: SessionRule, since: int = 0, terminal: Collection[str] = ()
    ) -> None:
        self._rewards, self._since, self._horizon, self._terminal = rewards, since, rule.horizon, terminal
        self._idle, self._longest = int(rule.idle * 1e6), int(rule.longest * 1e6)
        self._waiting: list[_Session] = []  # not counted yet, finished or not
        self._open: dict[str, _Session] = {}  # by name
        self._by_decision: dict[str, _Session] = {}
        self._early: OrderedDict[str, list[Feedback]] = OrderedDict()
        self._versions: dict[str, int] = {}
        self._users: dict[str, int] = {}
        kinds = {"version": "i", "user": "i", "began": "q", "reward": "d", "length": "i"}
        self._columns: dict[str, array[Any]] = {name: array(kind) for name, kind in kinds.items()}

    @classmethod
    def of_version(cls, version: Version, rule: SessionRule, since: int = 0) -> OutcomeReader:
        """Return a reader with a version's rewards and horizon; the other arguments as above."""
        rewards = dict(zip(version.behaviours.names, version.behaviours.rewards, strict=True))
        return cls(rewards, replace(rule, horizon=version.horizon), since, version.behaviours.terminal)

    def add(self, record: Record) -> None:
        """Take note of a record. Repeated records count once."""
        if isinstance(record, Decision):
            self._add_decision(record)
        else:
            self._add_feedback(record)

    def _add_decision(self, decision: Decision) -> None:
        if decision.id in self._by_decision:
            return
        name = decision.session or decision.id  # without a session, every decision is a session of its own
        session = self._open.get(name)
        if session is not None and decision.time - session.last > self._idle:
            session = None  # the name is used again
        if session is None:
            if decision.time < self._since or (decision.step and decision.session):
                return  # it began before, or was counted already
            user = decision.user or f"anonymous:{name}"
            session = _Session(name, decision.version, user, decision.time, decision.time)
            self._open[name] = session
            self._waiting.append(session)
        if decision.time - session.began > self._longest:
            return
        session.last = max(session.last, decision.time)
        session.decisions.append(decision.id)
        self._by_decision[decision.id] = session
        for feedback in self._early.pop(decision.id, ()):
            self._add_feedback(feedback)

    def _add_feedback(self, feedback: Feedback) -> None:
        session = self._by_decision.get(feedback.decision)
        if session is None:
            self._early.setdefault(feedback.decision, []).append(feedback)
            if len(self._early) > MOST_EARLY:
                self._early.popitem(last=False)
            return
        key = (feedback.decision, feedback.item)
        is_late = session.length >= self._horizon or feedback.time - session.began > self._longest
        if key in session.answered or is_late or session.left:
            return
        session.answered.add(key)
        session.last = max(session.last, feedback.time)
        session.length += 1
        session.reward += self._rewards.get(feedback.behaviour, 0.0)
        session.left = feedback.behaviour in self._terminal

    def outcomes(self, now: int) -> Outcomes:
        """Return all sessions up to the first that is not finished.

        Args:
            now: Microseconds since 1970. Every record older than this should have been added.
        """
        self._waiting.sort(key=attrgetter("began"))
        count = 0
        for session in self._waiting:
            if not self._is_finished(session, now):
                break
            self._count(session)
            count += 1
        del self._waiting[:count]
        columns = {name: np.array(values) for name, values in self._columns.items()}
        return Outcomes(tuple(self._versions), tuple(self._users), **columns)

    def _is_finished(self, session: _Session, now: int) -> bool:
        is_complete = session.length >= self._horizon or session.left
        return is_complete or now - session.last > self._idle or now - session.began > self._longest

    def _count(self, session: _Session) -> None:
        values = {
            "version": self._versions.setdefault(session.version, len(self._versions)),
            "user": self._users.setdefault(session.user, len(self._users)),
            "began": session.began,
            "reward": session.reward,
            "length": session.length,
        }
        for name, value in values.items():
            self._columns[name].append(value)
        for decision in session.decisions:
            del self._by_decision[decision]
        if self._open.get(session.name) is session:
            del self._open[session.name]
