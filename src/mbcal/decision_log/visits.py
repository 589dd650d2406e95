"""Decisions without a session, joined to visits of their users.

A request may carry no session. What its choice leads to is then in later decisions of the same user, which nothing but the
user and the time connects with it. So a decision continues the visit of the user's decision before it, unless nothing was
shown yet and nothing of that user is in the `IDLE` seconds before: neither a decision, nor feedback, as at the end of a film
that began an hour ago. To join too much costs a gate evidence; to join too little would hide
from it what a choice costs later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.records import Decision

IDLE = 1800.0
"""Seconds without a decision or feedback after which a user has left, as long as servers remember a session."""

_ANONYMOUS = "anonymous:"
AHEAD = 0.005
"""Share of records whose clocks may run ahead of all others."""


def newest_time(times: NDArray[np.int64]) -> int:
    """Return the newest of some times, 0 if there are none, leaving out the newest 0.5%.

    A single clock that runs ahead would make everything else look long past.
    """
    if not len(times):
        return 0
    place = len(times) - 1 - int(AHEAD * len(times))
    return int(np.partition(times, place)[place])


def user_name(decision: Decision) -> str:
    """Return the user of a decision; without one, every session is a user of its own, or every decision without either."""
    return decision.user or anonymous(decision.session or decision.id)


def anonymous(name: str) -> str:
    """Return the user of a session, or of a decision without one, that names no user."""
    return f"{_ANONYMOUS}{name}"


def is_anonymous(user: str) -> bool:
    """Whether this is the user of a session, or of a decision, that names none."""
    return user.startswith(_ANONYMOUS)


class SessionlessDecision(NamedTuple):
    """A decision without a session; ordered by user, then by time."""

    user: str
    time: int
    """Microseconds since 1970."""
    shown: int
    """Number of steps that the request said were shown before."""
    id: str
    answered: tuple[int, ...] = ()
    """Times of the feedback on it, likewise."""


class VisitPlace(NamedTuple):
    """Where a decision is in a visit."""

    visit: str
    """Id of the visit's first decision."""
    number: int
    """Decisions of the visit before it."""


def join_visits(decisions: Iterable[SessionlessDecision]) -> dict[str, VisitPlace]:
    """Return the visit of every decision, by the decision's id; independent of their order."""
    places: dict[str, VisitPlace] = {}
    previous: SessionlessDecision | None = None
    latest, coming = 0, list[int]()  # times of the user: the latest, and of feedback that came after it
    for decision in sorted(decisions):
        place = VisitPlace(decision.id, 0)
        if previous is not None and previous.user == decision.user:
            while coming and coming[0] <= decision.time:
                latest = max(latest, heapq.heappop(coming))
            goes_on = decision.shown or decision.time - latest <= IDLE * 1e6
            place = VisitPlace(places[previous.id].visit, places[previous.id].number + 1) if goes_on else place
        else:
            coming = []
        latest, previous = decision.time, decision
        for time in decision.answered:
            heapq.heappush(coming, time)
        places[decision.id] = place
    return places
