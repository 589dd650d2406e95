"""Parts of judged visits that another version decided: one of another registry, or one that was live for a while."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from mbcal.decision_log.joined import Joined
from mbcal.decision_log.records import Decision, Record
from mbcal.decision_log.visits import IDLE, user_name


def other_version_problem(
    records: Iterable[Record],
    live: str,
    joined: Joined,
    judges: Collection[str],
    judging: NDArray[np.int64],
    tolerance: float,
) -> str:
    """Say that other versions decided parts of the live version's sessions, and so hide what it led to; empty if not.

    A decision of another version is such a part if it has the user and session of a judging session, or if its user had one
    that began, ended or got feedback within `IDLE` seconds of it. Sessions that the live version began and another one went
    on with judge nobody; but to leave out these alone would keep the short ones.

    Args:
        records: All records of the log.
        live: The live version.
        joined: Sessions of the live version and of others.
        judges: Users who judge.
        judging: (N,) which of the sessions judge.
        tolerance: Share of the judging sessions that may have such parts, and share of their reward that these could hold if
            each of their choices earned the most possible.
    """
    sessions, named = joined.sessions[judging], defaultdict[tuple[str, str], list[int]](list)
    began = defaultdict[str, list[tuple[int, int, int]]](list)  # begin, end and number of a user's sessions
    answered = defaultdict[str, list[tuple[int, int]]](list)  # time of feedback, and the session's number
    for number, row in enumerate(judging.tolist()):
        user, times = joined.users[joined.sessions.user[row]], [origin.time for origin in joined.origins[row]]
        named[user, joined.session_names[row]].append(number)
        began[user].append((min(times), max(times), number))
        answered[user] += ((time, number) for origin in joined.origins[row] for time in origin.active)
    for spans in began.values():
        spans.sort()
    for answers in answered.values():
        answers.sort()
    mixed = _mixed_rows(joined, judges)
    parts, left, n_choices, idle = set[int](), set[int](), 0, int(IDLE * 1e6)
    n_others = defaultdict[int, int](int)  # choices of other versions in a mixed row
    for record in records:
        if not isinstance(record, Decision):
            continue
        row = mixed.get(record.id)
        if record.version == live:
            if row is not None and joined.origins[row][0].decision == record.id:
                left.add(row)
            continue
        if row is not None:
            n_others[row] += len(record.items)
        user = user_name(record)
        spans = began.get(user, [])
        place = bisect_right(spans, record.time, key=lambda span: span[0])
        near = [
            number
            for begin, end, number in spans[max(place - 1, 0) : place + 1]
            if begin - idle <= record.time <= end + idle
        ]
        answers = answered.get(user, [])
        place = bisect_right(answers, record.time, key=lambda answer: answer[0])
        near += [number for time, number in answers[max(place - 1, 0) : place] if record.time - time <= idle]
        if near := [*near, *named.get((user, record.session), [])]:
            parts.update(near)
            n_choices += len(record.items)
    n_choices += sum(n_others[row] for row in left)
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
        f"in or within {IDLE / 60:.0f} minutes of {len(parts):,} of {len(judging):,} judging sessions another "
        "version decided: serve all of a visit by one version"
    )


def _mixed_rows(joined: Joined, judges: Collection[str]) -> dict[str, int]:
    """By decision, its row, of the judges' rows that several versions decided."""
    rows = [row for row, version in enumerate(joined.versions) if version is None]
    of_judges = (row for row in rows if joined.users[joined.sessions.user[row]] in judges)
    return {origin.decision: row for row in of_judges for origin in joined.origins[row]}
