"""Parts of judged visits that another version decided, one that is not joined: another surface, another registry."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.joined import Joined
from mbcal.decision_log.records import Decision, Record
from mbcal.decision_log.visits import IDLE, user_name


def why_elsewhere(
    records: Iterable[Record],
    versions: Collection[str],
    joined: Joined,
    judging: NDArray[np.int64],
    tolerance: float,
) -> str:
    """Say that other versions decided parts of the judging sessions, whose feedback is not there; empty if they did not.

    A decision is such a part if it has the user and session of a judging session, or if its user had one that began or ended
    within `IDLE` seconds of it.

    Args:
        records: All records of the log.
        versions: The versions that were joined.
        joined: Their sessions.
        judging: (N,) which of them judge.
        tolerance: Share of the judging sessions that may have such parts, and share of their reward that these could hold if
            each of their choices earned the most possible.
    """
    sessions, named = joined.sessions[judging], defaultdict[tuple[str, str], list[int]](list)
    began = defaultdict[str, list[tuple[int, int, int]]](list)  # begin, end and number of a user's sessions
    for number, row in enumerate(judging.tolist()):
        user, times = joined.users[joined.sessions.user[row]], [origin.time for origin in joined.origins[row]]
        named[user, joined.session_names[row]].append(number)
        began[user].append((min(times), max(times), number))
    for spans in began.values():
        spans.sort()
    parts, n_choices, idle = set[int](), 0, int(IDLE * 1e6)
    for record in records:
        if not isinstance(record, Decision) or record.version in versions:
            continue
        user = user_name(record)
        spans = began.get(user, [])
        place = bisect_right(spans, record.time, key=lambda span: span[0])
        near = [
            number
            for begin, end, number in spans[max(place - 1, 0) : place + 1]
            if begin - idle <= record.time <= end + idle
        ]
        if near := [*near, *named.get((user, record.session), [])]:
            parts.update(near)
            n_choices += len(record.items)
    table, earned = sessions.behaviour_set.rewards, (sessions.rewards * sessions.mask).sum(dtype=np.float64)
    largest = max(map(abs, table))
    if len(parts) <= tolerance * len(judging) and n_choices * largest <= tolerance * abs(float(earned)):
        return ""
    return (
        f"in or within {IDLE / 60:.0f} minutes of {len(parts):,} of {len(judging):,} judging sessions decided a version "
        "that is not among those compared: serve all of a visit by one version"
    )
