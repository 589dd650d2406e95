"""Traffic of the last hour, for the page and `/v1/stats`: a ring of slots of ten seconds, in bounded memory.

::

    request answered ─▶ Traffic.request    duration and status, in the slot of now
    decision logged  ─▶ Traffic.decision   candidates, unknown ones, and the first decision of a session
    feedback logged  ─▶ Traffic.feedback   delay; decision and reward count in the slots where decision and session began

Called from the event loop alone, so there are no locks. Workers of one server count for themselves, except for sessions,
which may go from one to another: what happens in them is sent to the supervisor (`pool`).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

import msgspec

from mbcal.metrics import t_quantile

SLOT_SECONDS = 10
"""Length of a slot."""
SLOTS = 360
"""Slots kept: one hour."""
BOUNDS = tuple(1e-4 * 1.2**k for k in range(64))
"""Upper bounds in seconds of the histograms of durations, 20% apart: 0.1 ms to 10 s."""
DELAY_BOUNDS = tuple(1e-2 * 1.5**k for k in range(32))
"""Upper bounds in seconds of the histogram of feedback delays, 50% apart: 10 ms to 50 minutes."""
MAX_OPEN = 32_768
"""Sessions, and decisions with feedback, that are tracked; the oldest are dropped."""
MAX_EARLY = 100
"""Rewards of a session that are kept before it is known to have begun."""


class VersionCounts(msgspec.Struct, array_like=True):
    """Traffic of one version since the server started."""

    decisions: int = 0
    sessions: int = 0
    feedback: int = 0
    reward: float = 0.0

    def __add__(self, other: VersionCounts) -> VersionCounts:
        return VersionCounts(
            self.decisions + other.decisions,
            self.sessions + other.sessions,
            self.feedback + other.feedback,
            self.reward + other.reward,
        )


class Rewards(msgspec.Struct, array_like=True):
    """Count, sum and sum of squares of the reward per session."""

    sessions: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, before: float, reward: float) -> None:
        """Add a reward to a session that has earned `before` so far."""
        self.total += reward
        self.squares += reward * (2 * before + reward)

    def merge(self, other: Rewards) -> None:
        """Add the sessions of another."""
        self.sessions += other.sessions
        self.total += other.total
        self.squares += other.squares

    def interval(self) -> tuple[float, float] | None:
        """Return the 95% t interval of the mean; None for fewer than two sessions, and for rewards beyond floats."""
        count = self.sessions
        if count < 2:
            return None
        mean = self.total / count
        half = t_quantile(0.975, count - 1) * math.sqrt(max(self.squares / count - mean * mean, 0.0) / (count - 1))
        return (mean - half, mean + half) if math.isfinite(half) else None


class Slot(msgspec.Struct, array_like=True):
    """What happened in ten seconds."""

    number: int
    """Time of its begin, divided by its length."""
    requests: int = 0
    decisions: int = 0
    with_feedback: int = 0
    candidates: int = 0
    unknown: int = 0
    durations: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    delays: list[int] = msgspec.field(default_factory=lambda: [0] * (len(DELAY_BOUNDS) + 1))
    refusals: dict[int, int] = {}
    """By status."""

    def merge(self, other: Slot) -> None:
        """Add another slot's counts."""
        for name in ("requests", "decisions", "with_feedback", "candidates", "unknown"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.durations = list(map(add, self.durations, other.durations))
        self.delays = list(map(add, self.delays, other.delays))
        for status, count in other.refusals.items():
            self.refusals[status] = self.refusals.get(status, 0) + count


class SessionEvent(NamedTuple):
    """The first decision of a session, or feedback in it."""

    session: str
    version: str | None
    """Which version decided; None for feedback."""
    time: float
    reward: float = 0.0


class SessionRewards:
    """Reward per session by version, of sessions with a name: since the start, and by the slot in which they began."""

    def __init__(self) -> None:
        self.totals: dict[str, Rewards] = {}
        """By version."""
        self.slots: dict[int, dict[str, Rewards]] = {}
        """By number of the slot and version; at most `SLOTS` of them."""
        self._open: OrderedDict[int, _OpenSession] = OrderedDict()
        self._early: OrderedDict[int, list[float]] = OrderedDict()  # rewards that came before the begin of their session
        self._dropped = 0  # rewards whose session never began

    @property
    def elsewhere(self) -> int:
        """Feedback in sessions whose first decision is not known here, or not yet."""
        return self._dropped + sum(map(len, self._early.values()))

    def apply(self, event: SessionEvent) -> None:
        """Count a session that begins, or a reward in it."""
        key = hash(event.session)
        session = self._open.get(key)
        if event.version is None:
            if session is None:
                self._keep_early(key, event.reward)
            else:
                session.add(event.reward)
        elif session is None:  # otherwise it was forgotten since, or the memory is away
            slot, totals = self._slot(event), self.totals.setdefault(event.version, Rewards())
            slot.sessions += 1
            totals.sessions += 1
            session = self._open[key] = _OpenSession(slot, totals)
            for reward in self._early.pop(key, ()):  # another worker's feedback was here first
                session.add(reward)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)

    def _keep_early(self, key: int, reward: float) -> None:
        rewards = self._early.setdefault(key, [])
        if len(rewards) < MAX_EARLY:
            rewards.append(reward)
        else:
            self._dropped += 1
        if len(self._early) > MAX_OPEN:
            self._dropped += len(self._early.popitem(last=False)[1])

    def _slot(self, event: SessionEvent) -> Rewards:
        versions = self.slots.setdefault(int(event.time // SLOT_SECONDS), {})
        if len(self.slots) > SLOTS:
            del self.slots[next(iter(self.slots))]  # begun first, whatever the clock
        return versions.setdefault(event.version or "", Rewards())


class _OpenSession:
    """A session whose rewards are still coming in."""

    __slots__ = ("reward", "slot", "totals")

    def __init__(self, slot: Rewards, totals: Rewards) -> None:
        self.slot, self.totals, self.reward = slot, totals, 0.0

    def add(self, reward: float) -> None:
        self.slot.add(self.reward, reward)
        self.totals.add(self.reward, reward)
        self.reward += reward


class Traffic:
    """Counts requests, decisions and feedback.

    Args:
        clock: Seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._slots: list[Slot | None] = [None] * SLOTS
        self._begun = self._slot(clock()).number
        self._with_feedback: OrderedDict[int, None] = OrderedDict()
        self.rewards = SessionRewards()
        self.outbox: list[SessionEvent] | None = None
        """Events that wait to be sent to where the sessions of all workers are counted; None if they are counted here."""
        self.candidates = self.unknown = self.with_feedback = 0
        self.delays, self.delay_seconds = 0, 0.0

    def request(self, status: int, seconds: float) -> None:
        """Count a request to rank or with feedback.

        Args:
            status: The status it was answered with.
            seconds: How long it took. Durations of refusals are not counted: they would make the service look fast.
        """
        slot = self._slot(self._clock())
        slot.requests += 1
        if status < 400:
            slot.durations[bisect_left(BOUNDS, seconds)] += 1
        else:
            slot.refusals[status] = slot.refusals.get(status, 0) + 1

    def decision(self, version: str, session: str | None, is_new: bool, candidates: int, unknown: int, at: float) -> None:
        """Count a decision.

        Args:
            version: Which version decided.
            session: The session's name; sessions without a name have no reward here.
            is_new: Whether the session begins with it.
            candidates: Number of candidates.
            unknown: How many of them are not in the version's catalogue.
            at: Time of the decision.
        """
        slot = self._slot(at)
        slot.decisions += 1
        slot.candidates += candidates
        slot.unknown += unknown
        self.candidates += candidates
        self.unknown += unknown
        if is_new and session is not None:
            self._apply(SessionEvent(session, version, at))

    def feedback(self, session: str | None, decision: str, decided: float, at: float, reward: float) -> None:
        """Count feedback.

        Args:
            session: The decision's session.
            decision: The decision's id.
            decided: Time of the decision.
            at: Time of the feedback.
            reward: Reward of the behaviour.
        """
        slot, delay = self._slot(at), max(at - decided, 0.0)  # the clock may have been set back
        slot.delays[bisect_left(DELAY_BOUNDS, delay)] += 1
        self.delays += 1
        self.delay_seconds += delay
        key = hash(decision)
        if key not in self._with_feedback:
            self._with_feedback[key] = None
            if len(self._with_feedback) > MAX_OPEN:
                self._with_feedback.popitem(last=False)
            self.with_feedback += 1
            cohort = self._slots[int(decided // SLOT_SECONDS) % SLOTS]
            if cohort is not None and cohort.number == int(decided // SLOT_SECONDS):
                cohort.with_feedback += 1
        if session is not None:
            self._apply(SessionEvent(session, None, at, reward))

    def take_events(self) -> list[SessionEvent]:
        """Return the events that wait to be sent, and forget them."""
        events, self.outbox = self.outbox or [], []
        return events

    def _apply(self, event: SessionEvent) -> None:
        if self.outbox is None:
            self.rewards.apply(event)
        elif len(self.outbox) < MAX_OPEN:
            self.outbox.append(event)

    def slots(self) -> list[Slot]:
        """Return the slots of the last hour, oldest first; empty ones where nothing happened. The last one is not over."""
        last = int(self._clock() // SLOT_SECONDS)
        self._begun = min(self._begun, last)  # the clock may have been set back
        first = max(self._begun, last - SLOTS + 1)
        kept = {slot.number: slot for slot in self._slots if slot is not None}
        return [kept.get(number) or Slot(number) for number in range(first, last + 1)]

    def _slot(self, at: float) -> Slot:
        number = int(at // SLOT_SECONDS)
        slot = self._slots[number % SLOTS]
        if slot is None or slot.number != number:
            slot = self._slots[number % SLOTS] = Slot(number)
        return slot


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """Return a quantile of a histogram, interpolated within its bucket.

    Args:
        counts: Count of every bucket; the last one is of values above all bounds.
        bounds: Upper bounds, one less than counts.
        share: Which quantile, in (0, 1].

    Returns:
        The quantile, the largest bound if it is above all of them; None if the histogram is empty.
    """
    cumulative = list(accumulate(counts))
    if not cumulative[-1]:
        return None
    target = share * cumulative[-1]
    bucket = bisect_left(cumulative, target)
    if bucket == len(bounds):
        return bounds[-1]
    low, below = (bounds[bucket - 1], cumulative[bucket - 1]) if bucket else (0.0, 0)
    return low + (bounds[bucket] - low) * (target - below) / counts[bucket]
