"""Blocks of sessions that began one after the other, within which two versions are compared.

Rewards change with the hour, and the share of users that a canary gets may be changed. A block with n_a and n_b sessions
counts n_a n_b / (n_a + n_b), for both versions alike; so what a block earns more than another cancels. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.evaluation.sequential import UserSums
from mbcal.release.outcomes import Outcomes

BLOCK = 100
"""Sessions of both versions in a block. Within so few, neither rewards nor a canary's share change by much."""


@dataclass(frozen=True)
class Blocks:
    """How sessions count in a comparison; arrays are (N,) for N sessions."""

    block: NDArray[np.int64]
    """Number of the session's block."""
    weight: NDArray[np.float64]
    """0 if it does not count. In every block of several the weights of the two versions have the same sum."""
    is_concurrent: bool
    """False if the versions did not serve at the same time; then there is one block."""

    @classmethod
    def of(cls, outcomes: Outcomes, is_a: NDArray[np.bool_], is_b: NDArray[np.bool_]) -> Blocks:
        """Cut the time in which both versions served into blocks.

        Args:
            outcomes: N sessions.
            is_a: (N,) whether one is of version a.
            is_b: (N,) whether it is of b. There must be sessions of both.
        """
        begin, end = (
            extreme(other(outcomes.began[is_a]), other(outcomes.began[is_b]))
            for extreme, other in ((max, np.min), (min, np.max))
        )
        common = np.flatnonzero((is_a | is_b) & (outcomes.began >= begin) & (outcomes.began <= end))
        common = common[np.argsort(outcomes.began[common], kind="stable")]
        numbers = np.minimum(np.arange(len(common)) // BLOCK, max(len(common) // BLOCK - 1, 0))
        block, weight = np.zeros(len(outcomes), np.int64), np.zeros(len(outcomes))
        block[common] = numbers
        share = np.bincount(numbers, is_a[common]) / np.bincount(numbers) if len(common) else np.zeros(1)
        weight[common] = np.where(is_a[common], 1 - share[numbers], share[numbers])
        smaller = min((is_a & (weight > 0)).sum(), (is_b & (weight > 0)).sum())
        if smaller and 2 * smaller >= min(is_a.sum(), is_b.sum()):
            return cls(block, weight, is_concurrent=True)
        return replace(cls.one(is_a | is_b), is_concurrent=False)

    @classmethod
    def one(cls, counts: NDArray[np.bool_]) -> Blocks:
        """Return one block of all that count, (N,)."""
        return cls(np.zeros(len(counts), np.int64), counts.astype(np.float64), is_concurrent=True)

    def sums(self, outcomes: Outcomes, chosen: NDArray[np.bool_], values: NDArray[Any]) -> UserSums:
        """Sum values of a version's sessions by user, each less the mean of its block: drift adds no variance.

        Args:
            outcomes: The N sessions.
            chosen: (N,) whether one is of the version.
            values: (N,) one per session.
        """
        rows, counts = np.flatnonzero(chosen & (self.weight > 0)), np.bincount(self.block, self.weight > 0)
        means = np.bincount(self.block, values * (self.weight > 0)) / np.maximum(counts, 1)
        centred = values[rows] - means[self.block[rows]]
        return UserSums.of(centred, outcomes.user[rows], len(outcomes.users), self.weight[rows])
