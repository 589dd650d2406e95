"""Does a policy stay within what the log covers? Models are fitted to what was shown; elsewhere they guess."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mbcal.data.store import Store

WELL_COVERED = 5
"""An item is well covered if it was shown at least this often."""
FAR_MORE = 10.0
"""A policy shows an item far more often than the log if its share of steps is more than this many times as large."""
MANY_RARE, MANY_SHIFTED = 0.1, 0.5
"""Shares above which a policy leaves what the log covers."""


@dataclass(frozen=True)
class Coverage:
    """How far the choices of a policy lie outside the log, as shares of the steps that it served."""

    rare: float
    """Steps whose item was logged fewer than five times."""
    shifted: float
    """Steps whose item the policy shows more than ten times as often as the log does."""

    @property
    def is_low(self) -> bool:
        """Whether the policy leaves what the log covers."""
        return self.rare > MANY_RARE or self.shifted > MANY_SHIFTED

    def warning(self, model: str) -> str:
        """What that means, in words."""
        return (
            f"{model} leaves what the log covers: {self.rare:.0%} of its choices are items logged fewer than {WELL_COVERED} "
            f"times, {self.shifted:.0%} are items that it shows more than {FAR_MORE:g} times as often as the log. A learned "
            "judge guesses there; try the policy on a few users before trusting its reward."
        )


def coverage(served: NDArray[np.int64], logged: NDArray[np.int64]) -> Coverage:
    """Compare what a policy shows with what was logged.

    Args:
        served: Times that the policy showed each catalogue row, (rows,).
        logged: Times that each row was logged, (rows,).

    Returns:
        Shares of the served steps; 0 if there are none.
    """
    steps = max(int(served.sum()), 1)
    ratio = served / steps * max(int(logged.sum()), 1)  # times it would be logged if the log showed it as often
    return Coverage(
        rare=float(served[logged < WELL_COVERED].sum() / steps),
        shifted=float(served[ratio > FAR_MORE * logged].sum() / steps),
    )


def times_logged(store: Store) -> NDArray[np.int64]:
    """Return how often each catalogue row was shown in the train part of a store, (rows,)."""
    counts = np.zeros(store.catalog.n_rows, np.int64)
    for shard in store.shards("train"):
        counts += np.bincount(shard.items, minlength=len(counts))
    return counts
