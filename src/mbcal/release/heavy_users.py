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
