"""Which differences are real: paired tests on common random numbers, corrected for asking many questions at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.metrics import Mean, mean_interval

Rewards = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Comparison:
    """One method against another on the same sessions."""

    gap: Mean
    p: float
    """Two-sided, of no difference."""
    adjusted: float
    """The same after Holm's correction over the family of questions asked together."""


def paired_difference(first: Rewards, second: Rewards, users: NDArray[Any]) -> tuple[Mean, float]:
    """first - second over sessions that share user, candidates and luck: the mean with its interval, and p of no difference.

    Sessions of one user count as alike (clustered standard error). Rewards may be (N,) or (seeds, N): then sessions are
    averaged over seeds first (as many as each has, in a run under way), and the verdict is about these trained models; how
    much another seed would change is told by the spread over seeds.
    """
    one, other = (np.atleast_2d(np.asarray(rewards, np.float64)).mean(0) for rewards in (first, second))
    gap = mean_interval(one - other, users)
    if gap.stderr == 0:
        return gap, 1.0 if gap.mean == 0 else 0.0
    return gap, 2 * NormalDist().cdf(-abs(gap.mean) / gap.stderr) if np.isfinite(gap.stderr) else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m is multiplied by m - k + 1, never falling, never above 1."""
    order = np.argsort(p_values, kind="stable")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, p_values[place] * (len(p_values) - rank)))
        adjusted[place] = highest
    return adjusted


def compare_to(base: str, rewards: Mapping[str, Rewards], users: NDArray[Any]) -> dict[str, Comparison]:
    """Every other method against `base`, one family of questions."""
    others = [name for name in rewards if name != base]
    tests = [paired_difference(rewards[name], rewards[base], users) for name in others]
    adjusted = holm([p for _, p in tests])
    return {name: Comparison(gap, p, q) for name, (gap, p), q in zip(others, tests, adjusted, strict=True)}


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Agreement of two rankings: (pairs in the same order - pairs in the other) / all pairs; ties count as neither."""
    a, b = np.asarray(first), np.asarray(second)
    upper = np.triu_indices(len(a), 1)
    signs = np.sign(a[:, None] - a)[upper] * np.sign(b[:, None] - b)[upper]
    return float(signs.mean()) if len(signs) else 1.0


def rounds_to(curve: Sequence[float], share: float = 0.99) -> int | None:
    """The first round (counted from 1) whose reward is at least this share of the last one's, and stays so."""
    if not curve:
        return None
    enough = np.asarray(curve) >= share * curve[-1]
    late = np.flatnonzero(~enough)
    return int(late[-1]) + 2 if len(late) else 1
