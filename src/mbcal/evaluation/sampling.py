"""Which test sessions are served when not all are: a sample of users, not the first sessions of a store.

A store keeps the sessions of a user together, so its first sessions are those of few users, and one busy user can be a tenth
of them. Here every user has a session in the sample before any has two, so that the sample has as many users as it can.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.candidates import session_candidates
from mbcal.training.random import derive_seed, permutation
from mbcal.types import Sessions


def sample_sessions(users: NDArray[Any], count: int | None, seed: int) -> NDArray[np.int64]:
    """Choose sessions, one of each user first.

    Users take turns in a random order, and a user's sessions come in a random order. A sample that holds a second session of
    some user holds one of every user.

    Args:
        users: (N,) user of each session.
        count: Size of the sample; all sessions if None or at least N.
        seed: Seed of the sample. With one seed, a smaller sample is a part of a larger one.

    Returns:
        (min(count, N),) indices of the chosen sessions, rising.
    """
    if count is None or count >= len(users):
        return np.arange(len(users))
    numbers = np.unique(users, return_inverse=True)[1]
    shuffled = permutation(derive_seed(seed, "sessions of users"), len(users)).numpy()
    by_user = shuffled[np.argsort(numbers[shuffled], kind="stable")]  # each user's sessions in a random order
    first = np.searchsorted(numbers[by_user], numbers[by_user])
    turn = np.empty(len(users), np.int64)
    turn[by_user] = np.arange(len(users)) - first
    place = permutation(derive_seed(seed, "order of users"), int(numbers.max()) + 1).argsort().numpy()
    order = np.lexsort((place[numbers], turn))
    return np.sort(order[:count])


def sample_test_sessions(test: Sessions, count: int | None, seed: int) -> Sessions:
    """Return a sample of test sessions with their candidates.

    Args:
        test: All test sessions of a store. Where no candidates were logged, they are sampled from all of them, so that
            a session has the same candidates in every sample.
        count: Most sessions to return; all if None.
        seed: Seed of the sample and the candidates.
    """
    with_candidates = replace(test, candidates=session_candidates(test, seed))
    return with_candidates[sample_sessions(test.user, count, seed)]
