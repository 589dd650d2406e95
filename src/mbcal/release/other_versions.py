"""Parts of judged visits that another version decided, one that is not joined: another surface, another registry."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.joined import Joined
from mbcal.decision_log.records import Decision, Record
from mbcal.decision_log.visits import IDLE, user_name


def why_elsewhere(
    records: Iterable[Record],
    versions: Collection[str],
    live: str,
    joined: Joined,
    judges: Collection[str],
    judging: NDArray[np.int64],
    tolerance: float,
) -> str:
    """Say that other versions decided parts of the live version's sessions, and so hide what it led to; empty if not.

    A decision of a version that was not joined is such a part if it has the user and session of a judging session, or if
    its user had one that began or ended within `IDLE` seconds of it. Sessions that the live version began and another one
    went on with, joined or not, judge nobody; but to leave out these alone would keep the short ones.

    Args:
        records: All records of the log.
        versions: The versions that were joined.
        live: The live version.
        joined: Sessions of all versions that were joined.
        judges: Users who judge.
        judging: (N,) which of the sessions judge.
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
    begun: dict[tuple[str, str], tuple[int, str]] = {}  # time and version of a session's first decision
    continued = Counter[tuple[str, str]]()  # choices of other versions in it
    for record in records:
        if not isinstance(record, Decision):
            continue
        user = user_name(record)
        if record.session and user in judges:
            key = user, record.session
            begun[key] = min(begun.get(key, (record.time, record.version)), (record.time, record.version))
            continued[key] += len(record.items) * (record.version != live)
        if record.version in versions:
            continue
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
    left = [key for key, (_, version) in begun.items() if version == live and continued[key] and key not in named]
    n_choices += sum(continued[key] for key in left)
    table, earned = sessions.behaviour_set.rewards, (sessions.rewards * sessions.mask).sum(dtype=np.float64)
    largest = max(map(abs, table))
    n_parts = len(parts) + len(left)
    if n_parts <= tolerance * len(judging) and n_choices * largest <= tolerance * abs(float(earned)):
        return ""
    if len(left) > len(parts):
        return (
            f"{len(left):,} sessions of the live version, beside {len(judging):,} that judge, went on with another one: "
            "judge by a log in which versions did not change so often, or serve all of a visit by one version"
        )
    return (
        f"in or within {IDLE / 60:.0f} minutes of {len(parts):,} of {len(judging):,} judging sessions decided a version "
        "that is not among those compared: serve all of a visit by one version"
    )
