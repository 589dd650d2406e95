"""Which differences between methods are real: paired tests on common random numbers, corrected for multiple testing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.metrics import Mean, mean_interval

Rewards = NDArray[np.floating[Any]]
"""Reward of each session, (N,), or of each seed and session, (S, N)."""
ALMOST = 0.99
"""Share of the last round's reward with which a curve has reached its end."""


@dataclass(frozen=True)
class Comparison:
    """One method against another on the same sessions."""

    gap: Mean
    """Mean difference per session."""
    p: float
    """Two-sided p-value of no difference."""
    adjusted: float
    """The p-value after Holm's correction over all comparisons made together."""


def paired_difference(first: Rewards, second: Rewards, users: NDArray[Any]) -> tuple[Mean, float]:
    """Compare two methods on sessions that share users, candidates and noise.

    The standard error is clustered by user. Seeds are averaged session by session first, so the result is about these
    trained models; how much another seed would change is measured by the spread over seeds.

    Args:
        first: Rewards (N,), or (S, N) for S seeds. In an unfinished run the two methods may have different S.
        second: Likewise, of the method to subtract.
        users: (N,) user of each session.

    Returns:
        The mean of first - second with its interval, and the two-sided p-value of no difference.
    """
    first_mean, second_mean = (np.atleast_2d(np.asarray(rewards, np.float64)).mean(0) for rewards in (first, second))
    gap = mean_interval(first_mean - second_mean, users)
    if gap.stderr == 0:
        return gap, 1.0 if gap.mean == 0 else 0.0
    return gap, 2 * NormalDist().cdf(-abs(gap.mean) / gap.stderr) if np.isfinite(gap.stderr) else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down correction.

    The k-th smallest of m p-values is multiplied by m - k + 1; adjusted values never fall along that order nor exceed 1.

    Args:
        p_values: The p-values of one family of tests.

    Returns:
        The adjusted p-values, in the given order.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return adjusted


def compare_to(base: str, rewards: Mapping[str, Rewards], users: NDArray[Any]) -> dict[str, Comparison]:
    """Compare every other method with `base`, as one family of tests.

    Args:
        base: Name of the method that is subtracted.
        rewards: Rewards (N,) or (S, N) by method.
        users: (N,) user of each session.

    Returns:
        One comparison for each method but `base`.
    """
    others = [name for name in rewards if name != base]
    tests = [paired_difference(rewards[name], rewards[base], users) for name in others]
    adjusted = holm([p for _, p in tests])
    return {name: Comparison(gap, p, q) for name, (gap, p), q in zip(others, tests, adjusted, strict=True)}


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Kendall's tau-a of two lists of scores: (concordant - discordant pairs) / all pairs; ties count as neither."""
    a, b = np.asarray(first), np.asarray(second)
    upper = np.triu_indices(len(a), 1)
    signs = np.sign(a[:, None] - a)[upper] * np.sign(b[:, None] - b)[upper]
    return float(signs.mean()) if len(signs) else 1.0


def rounds_to(curve: Sequence[float]) -> int | None:
    """Return the first round, counted from 1, from which on the reward stays at or above `ALMOST` of the last round's.

    None for an empty curve.
    """
    if not curve:
        return None
    enough = np.asarray(curve) >= ALMOST * curve[-1]
    below = np.flatnonzero(~enough)
    return int(below[-1]) + 2 if len(below) else 1
