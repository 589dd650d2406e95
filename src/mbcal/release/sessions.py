"""Sessions cut from the decisions that have one name: a function of the records alone, in whatever order they came.

The name is that of the user, or of the session where requests name no user: versions are assigned by the same name
(`serving.canary`). So whatever one visit of a user consists of (a landing page without a session, then pages with one; a
session for every page) had one version and is one session here. Decisions with neither belong to no session.

Decisions are taken in order of time. A session ends with a terminal behaviour, `idle` seconds after its last record, or
`longest` seconds after its beginning; the next decision begins another one. No torch.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.records import SKEW, Decision
from mbcal.decision_log.visits import user_name

Response = tuple[int, str, str]
"""Time, id and behaviour of feedback on one item."""
RESPONSE_BYTES = 300
"""Memory of one response, about, without its names."""
RARE = 0.01
"""Share of sessions, the longest, whose length says nothing about what others may earn."""
_SLACK = int(SKEW * 1e6)


@dataclass(frozen=True)
class CountingRule:
    """What counts, with times in microseconds."""

    rewards: Mapping[str, float]
    """Reward of every behaviour by name; others have none."""
    terminal: Collection[str]
    """Behaviours with which a user leaves."""
    idle: int
    longest: int
    since: int = 0
    """Sessions that began before do not count; they last as long as they go on."""

    def bounds(self, lengths: NDArray[np.int32], horizon: int) -> tuple[float, float]:
        """Return what a session may earn at least and at most, also if no such session was met. More does not count.

        Sessions may have as many steps as the horizon, and as all met but the longest 1%: one bot with a thousand steps does
        not make a thousand purchases likely.

        Args:
            lengths: (N,) steps of the sessions of all versions.
            horizon: Steps that a session may have in any case.
        """
        usual = int(np.quantile(lengths, 1 - RARE, method="lower")) if len(lengths) else 0
        table, longest = (0.0, *self.rewards.values()), max(horizon, usual)
        return longest * min(table), longest * max(table)


@dataclass(eq=False, slots=True)
class LoggedDecision:
    """What is kept of a decision until its session is counted."""

    id: str
    time: int
    name: str
    """Its user, or its session if it names no user."""
    user: str
    step: int
    version: str
    epsilon: float
    items: frozenset[str]
    session: str
    """The session that the request named; empty if none."""
    began: int
    """When its session began, if it is the first that is kept of it."""
    responses: dict[str, Response] = field(default_factory=dict)
    """By item, the earliest; also on items that it did not return, which do not count."""
    others: dict[str, set[str]] = field(default_factory=dict)
    """By item, all behaviours that were reported, where these are several."""

    @classmethod
    def of(cls, decision: Decision) -> LoggedDecision | None:
        """Keep what is needed of a decision; None if it has neither session nor user."""
        if not (decision.session or decision.user):
            return None
        return cls(
            id=decision.id,
            time=decision.time,
            name=f"user {decision.user}" if decision.user else f"session {decision.session}",
            user=user_name(decision),
            step=decision.step,
            version=decision.version,
            epsilon=decision.epsilon,
            items=frozenset(decision.items),
            session=decision.session,
            began=decision.time,
        )

    @property
    def order(self) -> tuple[int, int, str, str, str]:
        """The order within a session; of two decisions with one id, the larger counts, which is the later."""
        return self.time, self.step, self.id, self.name, self.version

    @property
    def size(self) -> int:
        """Memory in bytes, about."""
        return 800 + 100 * len(self.items) + RESPONSE_BYTES * (len(self.responses) + len(self.others))

    def respond(self, item: str, response: Response) -> None:
        """Take note of feedback; of several on one item the earliest counts."""
        known = self.responses.get(item, response)
        if known[2] != response[2]:
            self.others.setdefault(item, set()).update((known[2], response[2]))
        self.responses[item] = min(known, response)

    def reported(self) -> dict[str, list[str]]:
        """Return all behaviours that were reported, by item that it returned, the one that counts first."""
        firsts = {item: self.responses[item][2] for item in self.responses.keys() & self.items}
        return {item: [first, *sorted(self.others.get(item, set()) - {first})] for item, first in firsts.items()}


class Session:
    """A session, finished or not.

    Args:
        first: Its first decision.
        rule: What counts.
    """

    def __init__(self, first: LoggedDecision, rule: CountingRule) -> None:
        self.first, self.began, self.last, self._rule = first, first.began, first.time, rule
        self.reward, self.length, self.offered = 0.0, 0, 0
        self.size = 0.0
        """The sum of rewards without their signs."""
        self.late: dict[str, float] = {}
        """The rewards that came after its end, summed without their signs, by the decision's id."""
        self.complete: int | None = None
        """Time of the terminal behaviour; None if there was none."""
        self.has_beginning = False
        """Whether nothing was shown before it, by a decision up to `SKEW` seconds after the first: clocks differ."""
        self.decisions: list[LoggedDecision] = []
        self._responses: list[tuple[Response, str]] = []  # with the decision's id

    def add(self, decision: LoggedDecision) -> None:
        """Take in a decision with its responses."""
        self.decisions.append(decision)
        self.offered += len(decision.items)
        self.last = max(self.last, decision.time)
        self.has_beginning |= decision.step == 0 and decision.time - self.began <= _SLACK
        for item, response in decision.responses.items():
            if item in decision.items:
                heapq.heappush(self._responses, (response, decision.id))

    def respond_until(self, time: float) -> None:
        """Count responses up to a time, in their order."""
        while self._responses and self._responses[0][0][0] <= time:
            (when, _, behaviour), decision = heapq.heappop(self._responses)
            reward = self._rule.rewards.get(behaviour, 0.0)
            if self.is_over(when):
                if reward:
                    self.late[decision] = self.late.get(decision, 0.0) + abs(reward)
                continue
            self.last, self.length = max(self.last, when), self.length + 1
            self.reward, self.size = self.reward + reward, self.size + abs(reward)
            if behaviour in self._rule.terminal:
                self.complete = when

    def is_over(self, time: int) -> bool:
        """Whether a record of this time is too late for the session, given all before it."""
        return self.complete is not None or self._is_late(time)

    def is_finished(self, now: int) -> bool:
        """Whether no record from after `now` can change it."""
        return (self.complete is not None and self.complete <= now) or self._is_late(now)

    def _is_late(self, time: int) -> bool:
        is_too_long = time - self.began > self._rule.longest and self.began >= self._rule.since
        return is_too_long or time - self.last > self._rule.idle


def cut_sessions(decisions: Iterable[LoggedDecision], rule: CountingRule) -> list[Session]:
    """Cut the decisions of one name into sessions, in order of time."""
    sessions: list[Session] = []
    for decision in sorted(decisions, key=attrgetter("order")):
        if sessions:
            sessions[-1].respond_until(decision.time)
        if not sessions or sessions[-1].is_over(decision.time):
            sessions.append(Session(decision, rule))
        sessions[-1].add(decision)
    for session in sessions:
        session.respond_until(float("inf"))
    return sessions
