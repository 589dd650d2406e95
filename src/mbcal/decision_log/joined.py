"""The result of joining a decision log to sessions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.records import SKEW
from mbcal.decision_log.visits import IDLE, newest_time
from mbcal.types import Sessions


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
    """Decisions with the id of another; the latest counts."""
    repeated_feedback: int = 0
    """Further feedback on the same item of the same decision; the earliest counts."""
    changed_feedback: int = 0
    """Items with further behaviours among that, as a purchase after a click."""
    orphans: int = 0
    """Feedback on a decision that is not in the log, or on an item the decision did not return."""
    other_versions: int = 0
    """Feedback on decisions of versions that are not joined: of a canary, or too old to teach."""
    unknown_behaviours: dict[str, int] = field(default_factory=dict)
    """Feedback left out because the model does not have its behaviour, by behaviour."""
    unknown_history: int = 0
    """Steps of histories left out for the same reason."""
    missing_start: int = 0
    """Sessions whose first decision in the log says that something was shown before: their beginnings are not there, or
    have another name. Also those of which some requests name the user and others none, as before a login. Also those in
    which fewer steps were shown at a later time: the client, or a server that forgot the session, began anew, and what
    followed a choice is not in its order."""
    unattributed: int = 0
    """Decisions with neither session nor user: any of them may belong to any session."""
    unmatched: int = 0
    """Sessions that name no user, or visits that name no session, whichever are fewer: a visit may be known by its user
    alone at first, and by its session alone later."""
    since: int | None = None
    """Time before which decisions were left out, since newer ones are enough (`release.log_records`), in microseconds since
    1970; None if all were read. Who leaves them out fills it in."""
    narrowed: int = 0
    """Steps with so many more candidates than others that only a sample of them is kept."""
    lost: list[str] = field(default_factory=list)
    """What the log has lost, one sentence each: damaged bytes, missing segments. The reader of the log fills it in."""
    new_items: int = 0
    """Items that the log added to the catalogue (`new_items.extend_by_log`). The caller of that fills it in."""


class StepOrigin(NamedTuple):
    """The decision behind a step."""

    decision: str
    """Its id."""
    time: int
    """Its time, in microseconds since 1970."""
    rank: int
    """Position of the step's item among those it returned."""
    answered: int
    """Time of the feedback, likewise."""
    known: int
    """Steps of the session that the server knew when it decided."""
    number: int
    """Number of the step in its session, also across rows."""
    active: tuple[int, ...] = ()
    """Times of all feedback on its decision, ascending, also of what does not count: a film is begun, and later watched."""
    raised: float = 0.0
    """By how much a further behaviour on the item would raise the reward: the first counts."""
    lowered: float = 0.0
    """By how much one would lower it."""


@dataclass(frozen=True)
class Joined:
    """Sessions, and the names behind their numbers."""

    sessions: Sessions
    """N rows, with candidates (N, T, C), propensities (N, T) and timestamps (N, T). Where few steps have very many more
    candidates than others, these have a sample of them (`counts.narrowed`)."""
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
    may_be_partial: NDArray[np.bool_]
    """(N,) rows of sessions that may be parts of others: those that `counts` has as `missing_start`, `unattributed` or
    `unmatched`."""
    counts: JoinCounts

    def pauses(self) -> NDArray[np.int64]:
        """Return the longest pause in the session of each step up to it, in microseconds, (N, T); 0 in the padding."""
        pauses = np.zeros((len(self.origins), self.sessions.horizon), np.int64)
        found: dict[tuple[int, str], tuple[int, int]] = {}  # latest time and longest pause, by user and name
        keys = zip(self.sessions.user.tolist(), self.session_names, strict=True)
        for row, key, origins in zip(pauses, keys, self.origins, strict=True):
            latest, longest = found.get(key, (origins[0].time, 0))
            for column, origin in enumerate(origins):
                longest = max(longest, origin.time - latest)
                latest = max(latest, origin.time)
                row[column] = longest
            found[key] = latest, longest
        return pauses

    def may_go_on(self, pause: int = int(IDLE * 1e6)) -> NDArray[np.bool_]:
        """Return which rows may be continued after the end of the log, (N,).

        Those without an observed terminal behaviour whose last step is newer than `ended_until`. A full row may go on in
        another one.

        Args:
            pause: Microseconds without a decision after which a session is over.
        """
        last = self.sessions.behaviours[np.arange(len(self.origins)), self.sessions.length - 1]
        has_left = self.sessions.left & (last < self.sessions.behaviour_set.n_observed)  # others left by `IDLE` alone
        times = np.asarray([row[-1].time for row in self.origins], np.int64)
        return np.asarray((times > self.ended_until(pause)) & ~has_left)

    def ended_until(self, pause: int = int(IDLE * 1e6)) -> int:
        """Return the time before which nothing can be going on any more: this pause before the end; all in microseconds."""
        return newest_time(np.asarray([row[-1].time for row in self.origins], np.int64)) - pause

    def sessions_followed_soon(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows belong to a session that the same user followed by another, and the rows of that other session.

        The other began within `IDLE` seconds of the first, or during it. What was chosen in the first may change the second:
        a landing page without a session, then pages with one. Feedback belongs to the session, as at the end of a film: one
        that comes before the other session begins may be its end.

        Returns:
            The rows of the first, (N,), and those of the second, (N,).
        """
        spans: dict[tuple[int, str], tuple[int, int]] = {}  # of sessions, by user and name
        answers: dict[int, list[tuple[int, tuple[int, str]]]] = defaultdict(list)  # by user, with the session
        keys = list(zip(self.sessions.user.tolist(), self.session_names, strict=True))
        for key, row in zip(keys, self.origins, strict=True):
            times = [*spans.get(key, ()), *(origin.time for origin in row)]
            spans[key] = min(times), max(times)
            answers[key[0]] += ((time, key) for origin in row for time in origin.active)
        preceding, following = set(), set()
        latest: tuple[int, str] | None = None  # the user's session that ended last so far
        answered: list[tuple[int, tuple[int, str]]] = []
        place = 0  # of these came before the present session
        for key in sorted(spans, key=lambda key: (key[0], spans[key])):
            if latest is None or latest[0] != key[0]:
                latest, answered, place = None, sorted(answers[key[0]]), 0
            before = [latest] if latest is not None and spans[key][0] - spans[latest][1] <= IDLE * 1e6 else []
            while place < len(answered) and answered[place][0] <= spans[key][0]:
                place += 1
            if place and answered[place - 1][1] != key and spans[key][0] - answered[place - 1][0] <= IDLE * 1e6:
                before.append(answered[place - 1][1])
            if before:
                preceding.update(before)
                following.add(key)
            if latest is None or spans[key][1] > spans[latest][1]:
                latest = key
        precedes, follows = ([key in found for key in keys] for found in (preceding, following))
        return np.asarray(precedes, np.bool_), np.asarray(follows, np.bool_)

    def last_served(self) -> NDArray[np.int64]:
        """Return the column of the last step of the row that was served before the feedback on each step came, (N, T).

        All items of one list are served together. What a user did with one item may depend on everything served by then:
        the other items of the list, and lists that came before a late answer. Where clocks may have differed, a list whose
        server did not know the answer yet came before it.
        """
        columns = np.tile(np.arange(self.sessions.horizon), (len(self.origins), 1))
        for row, origins in zip(columns, self.origins, strict=True):
            for column, step in enumerate(origins):
                row[column] = max(number for number, other in enumerate(origins) if served_before_feedback(other, step))
        return columns

    def decided_by(self, version: str) -> NDArray[np.int64]:
        """Return the indices of the rows that this version decided alone."""
        return np.flatnonzero([name == version for name in self.versions])


def served_before_feedback(other: StepOrigin, step: StepOrigin) -> bool:
    """Whether a step may have been served before the feedback on another step of its session came."""
    if other.time <= step.answered or other.decision == step.decision:
        return True
    return other.known <= step.number and other.time <= step.answered + SKEW * 1e6
