"""Users with very many sessions, such as monitors and shared accounts.

A user is one independent unit of the gate, however many sessions it has: one with many makes all bounds as wide as if all of
these could fail together.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from mbcal.data.user_split import stable_hash
from mbcal.decision_log.joined import Joined

LEFT_OUT = 0.005
"""Share of the judging sessions that may be left out for the sake of narrower bounds."""
REWARD_LEFT_OUT = 0.01
"""Share of the reward that these may hold."""
HEAVY = 0.01
"""A user with a larger share of the sessions cannot be judged by others."""


def capped_rows(joined: Joined, judging: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Choose by a hash so many sessions of every user that at most 0.5% of all are left out.

    Args:
        joined: The sessions.
        judging: (N,) which of them judge.

    Returns:
        Those of them that are kept, and the most that a user has of these. All are kept if those to be left out hold more
        than 1% of the reward, rewards without their signs.
    """
    if not len(judging):
        return judging, 0
    users = joined.sessions.user[judging]
    counts = np.bincount(users)
    most = int(counts.max())
    cap = 1 + bisect_left(
        range(1, most), -LEFT_OUT * len(judging), key=lambda cap: -float(np.maximum(counts - cap, 0).sum())
    )
    names = [stable_hash(joined.origins[row][0].decision, 0, "heavy user") for row in judging.tolist()]
    order = np.lexsort((np.asarray(names, np.uint64), users))
    begins = np.cumsum(counts) - counts
    is_kept = np.empty(len(judging), np.bool_)
    is_kept[order] = np.arange(len(judging)) - begins[users[order]] < cap
    sessions = joined.sessions[judging]
    earned = (np.abs(sessions.rewards) * sessions.mask).sum(1, dtype=np.float64)
    if earned[~is_kept].sum() > REWARD_LEFT_OUT * earned.sum():
        return judging, most
    return judging[is_kept], cap


def heavy_rows(joined: Joined, teaching: NDArray[np.int64], sessions: int) -> NDArray[np.int64]:
    """Return those of the teaching sessions whose user has more than 1% of all.

    Args:
        joined: The sessions.
        teaching: (N,) which of them are of users who teach, and so do not judge.
        sessions: Number of all sessions, of users who teach or judge.
    """
    users = joined.sessions.user[teaching]
    return teaching[np.bincount(users)[users] > HEAVY * sessions] if len(users) else teaching


def heavy_user_problem(joined: Joined, heavy: NDArray[np.int64], differs: NDArray[np.bool_], sessions: int) -> str:
    """Say that the candidate chooses otherwise for a user with many sessions who is not among the judges; empty if not.

    Others like such a user judge in place of those who teach; in place of one with so many sessions nobody does.

    Args:
        joined: The sessions.
        heavy: (N,) which of them are of such users (`heavy_rows`).
        differs: (N,) in which of these the candidate chooses otherwise.
        sessions: Number of all sessions, of users who teach or judge.
    """
    most = int(np.bincount(joined.sessions.user[heavy[differs]]).max(initial=0))
    if most <= HEAVY * sessions:
        return ""
    return (
        f"{most / sessions:.1%} of all sessions are of one user and teach the candidate, which chooses otherwise there, so "
        "nobody can judge it: if several people share that name, give each of them their own"
    )
