"""Sessions cut from the decisions that have one session name: a function of the records alone, in whatever order they came.

Decisions without a session are grouped by user, as versions are then assigned. Those with neither belong to no session.

Decisions are taken in order of time. One at step 0 begins a session, unless one is going on; one at a later step belongs to
the session that is going on, or to none. A session ends with its last step that counts (the horizon, or a terminal
behaviour), `idle` seconds after its last record, or `longest` seconds after its beginning. No torch.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from mbcal.decision_log.follow import CLOCK_SLACK
from mbcal.decision_log.records import Decision
from mbcal.decision_log.visits import user_name

Response = tuple[int, str, str]
"""Time, id and behaviour of feedback on one item."""
RESPONSE_BYTES = 300
"""Memory of one response, about."""
_SLACK = int(CLOCK_SLACK * 1e6)


@dataclass(frozen=True)
class CountingRule:
    """What counts, with times in microseconds."""

    rewards: Mapping[str, float]
    """Reward of every behaviour by name; others have none."""
    terminal: Collection[str]
    """Behaviours with which a user leaves."""
    horizon: int
    idle: int
    longest: int


@dataclass(eq=False, slots=True)
class LoggedDecision:
    """What is kept of a decision until its session is counted."""

    id: str
    time: int
    name: str
    """Its session, or its user's visits if it has none."""
    user: str
    step: int
    version: str
    items: frozenset[str]
    begins: bool
    """Whether it may be the first of a session."""
    responses: dict[str, Response] = field(default_factory=dict)
    """By item, the earliest."""

    @classmethod
    def of(cls, decision: Decision) -> LoggedDecision | None:
        """Keep what is needed of a decision; None if it has neither session nor user."""
        if not (decision.session or decision.user):
            return None
        name = decision.session or f"visits of {decision.user}"
        items = frozenset(decision.items)
        begins = decision.step == 0
        return cls(decision.id, decision.time, name, user_name(decision), decision.step, decision.version, items, begins)

    @property
    def order(self) -> tuple[int, int, str, str, str]:
        """The order within a session; of two decisions with one id, the smaller counts."""
        return self.time, self.step, self.id, self.name, self.version

    @property
    def size(self) -> int:
        """Memory in bytes, about."""
        return 800 + 100 * len(self.items) + RESPONSE_BYTES * len(self.responses)

    def respond(self, item: str, response: Response) -> None:
        """Take note of feedback. Only that on items of the decision counts, and of several on one item the earliest."""
        if item in self.items:
            self.responses[item] = min(self.responses.get(item, response), response)


class Session:
    """A session, finished or not.

    Args:
        first: Its first decision.
        rule: What counts.
    """

    def __init__(self, first: LoggedDecision, rule: CountingRule) -> None:
        self.first, self.began, self.last, self._rule = first, first.time, first.time, rule
        self.reward, self.length = 0.0, 0
        self.complete: int | None = None
        """Time of the step after which nothing counts; None if there was none."""
        self.decisions: list[LoggedDecision] = []
        self._responses: list[Response] = []

    def add(self, decision: LoggedDecision) -> None:
        """Take in a decision with its responses."""
        self.decisions.append(decision)
        self.last = max(self.last, decision.time)
        for response in decision.responses.values():
            heapq.heappush(self._responses, response)

    def respond_until(self, time: float) -> None:
        """Count responses up to a time, in their order."""
        while self._responses and self._responses[0][0] <= time:
            when, _, behaviour = heapq.heappop(self._responses)
            if self.is_over(when):
                continue
            self.last, self.length = max(self.last, when), self.length + 1
            self.reward += self._rule.rewards.get(behaviour, 0.0)
            if self.length >= self._rule.horizon or behaviour in self._rule.terminal:
                self.complete = when

    def is_over(self, time: int) -> bool:
        """Whether a record of this time is too late for the session, given all before it."""
        return self.complete is not None or self._is_late(time)

    def is_finished(self, now: int) -> bool:
        """Whether no record from after `now` can change it."""
        return (self.complete is not None and self.complete <= now) or self._is_late(now)

    def _is_late(self, time: int) -> bool:
        return time - self.last > self._rule.idle or time - self.began > self._rule.longest


def cut_sessions(decisions: Iterable[LoggedDecision], rule: CountingRule) -> list[Session]:
    """Cut the decisions of one session name into sessions, in order of time.

    A decision that was logged up to `CLOCK_SLACK` seconds before the one that begins its session counts, too: their servers'
    clocks may differ.
    """
    sessions: list[Session] = []
    current: Session | None = None
    early: list[LoggedDecision] = []
    for decision in sorted(decisions, key=attrgetter("order")):
        if current is not None:
            current.respond_until(decision.time)
            if current.is_over(decision.time):
                current = None
        if current is None:
            if not decision.begins:
                early.append(decision)
                continue
            current = Session(decision, rule)
            sessions.append(current)
            for other in early:
                if decision.time - other.time <= _SLACK:
                    current.add(other)
            early = []
        current.add(decision)
    for session in sessions:
        session.respond_until(float("inf"))
    return sessions
