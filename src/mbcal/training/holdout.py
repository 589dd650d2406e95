"""Which users are held out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mbcal.training.random import hash_order


def split_held_out_users(
    users_of: NDArray[np.int32], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows held out, no user in both, given the user of every session.

    Who is held out depends on seed and user alone, so that whoever was held out once is held out again.
    """
    if not share:
        return np.arange(len(users_of)), np.zeros(0, np.int64)
    users = np.unique(users_of)
    held = min(max(round(share * len(users)), 1), len(users) - 1)  # of one user alone nobody
    out = np.isin(users_of, users[hash_order(users, seed, "held-out users")[:held]])
    return np.flatnonzero(~out), np.flatnonzero(out)
