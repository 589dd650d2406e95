"""Test sessions are a sample of users: one session of each before a second of any."""

from __future__ import annotations

import numpy as np
import pytest

from mbcal.evaluation.sampling import sample_sessions, sample_test_sessions
from tests.support.toys import logged

BUSY = np.repeat([7, 3, 9, 4], [127, 2, 1, 5])
"""The first user of the store has nearly all sessions."""


def sampled_users(count: int, seed: int = 0) -> dict[int, int]:
    users, counts = np.unique(BUSY[sample_sessions(BUSY, count, seed)], return_counts=True)
    return dict(zip(users.tolist(), counts.tolist(), strict=True))


def test_every_user_has_a_session_before_any_has_two() -> None:
    assert sampled_users(4) == {3: 1, 4: 1, 7: 1, 9: 1}
    assert sampled_users(7) == {3: 2, 4: 2, 7: 2, 9: 1}
    assert sampled_users(12) == {3: 2, 4: 4, 7: 5, 9: 1} or sampled_users(12) == {3: 2, 4: 5, 7: 4, 9: 1}
    assert sampled_users(1000) == {3: 2, 4: 5, 7: 127, 9: 1}


def test_a_smaller_sample_is_a_part_of_a_larger_one() -> None:
    small, large = (sample_sessions(BUSY, count, 5) for count in (6, 40))
    assert set(small.tolist()) < set(large.tolist())
    assert np.array_equal(large, np.sort(large))
    assert np.array_equal(sample_sessions(BUSY, 6, 5), small)
    assert not np.array_equal(sample_sessions(BUSY, 6, 6), small)
    assert np.array_equal(sample_sessions(BUSY, None, 5), np.arange(len(BUSY)))


def test_every_user_and_every_session_can_be_sampled() -> None:
    """Over seeds, each of the four users is the only one equally often, and each session of a user, too."""
    firsts = [int(sample_sessions(BUSY, 1, seed)[0]) for seed in range(400)]
    shares = [np.mean(BUSY[firsts] == user) for user in (7, 3, 9, 4)]
    assert shares == pytest.approx([0.25] * 4, abs=0.07)
    of_busy = [first for first in firsts if BUSY[first] == 7]
    assert min(of_busy) < 20
    assert max(of_busy) > 107


def test_candidates_do_not_depend_on_the_size_of_the_sample() -> None:
    test = logged(30)
    whole, some = sample_test_sessions(test, None, 1), sample_test_sessions(test, 8, 1)
    rows = sample_sessions(test.user, 8, 1)
    assert len(some) == 8
    assert np.array_equal(some.items, test.items[rows])
    assert np.array_equal(some.candidates, whole.candidates[rows])
