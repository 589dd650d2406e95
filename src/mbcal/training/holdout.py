"""Which users are held out of training, for early stopping."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mbcal.training.random import hash_fractions

Rows = NDArray[np.int64]


def split_held_out_users(users: NDArray[np.int32], share: float, seed: int) -> tuple[Rows, Rows]:
    """Split sessions into those to train on and those held out, no user in both.

    A user is held out if a hash of seed and user number falls below the share. So the decision depends on nothing else: in
    a larger log, or in a later fit, the same users are held out. With two users or more, at least one is on either side.

    Args:
        users: (N,) the user of every session.
        share: Expected share of users to hold out, in [0, 1).
        seed: Decides who.

    Returns:
        Indices of the sessions to train on, and of those held out.
    """
    if not share:
        return np.arange(len(users)), np.zeros(0, np.int64)
    distinct = np.unique(users)
    fractions = hash_fractions(distinct, seed, "held-out users")
    held_out = fractions < share
    if len(distinct) > 1 and not held_out.any():
        held_out[fractions.argmin()] = True
    if held_out.all():
        held_out[fractions.argmax()] = False
    is_held_out = np.isin(users, distinct[held_out])
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
