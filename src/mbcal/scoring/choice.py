"""From scores to a choice and its propensity, on numpy arrays and torch tensors alike.

`available` (B, C) bool is true where a candidate may be chosen. Randomness is given as uniform numbers in [0, 1), so that
two policies can share it.
"""

from __future__ import annotations

import numpy as np

from mbcal.kernels import triton
from mbcal.scoring.backend import Array, as_index, exp, where
from mbcal.types import MASK_ROW

LOWEST_SCORE = -3e38
"""Scores are raised to it, so that even a score of minus infinity beats a candidate that is not available."""


def greedy(scores: Array, available: Array) -> Array:
    """Choose the best available candidate, the first among equals. Its propensity is 1.

    Args:
        scores: (B, C).
        available: (B, C).

    Returns:
        Indices (B,).

    Raises:
        ValueError: If a session has no available candidate.
    """
    _require_available(available)
    return where(available, scores.clip(LOWEST_SCORE, None), -np.inf).argmax(1)


def epsilon_greedy(scores: Array, available: Array, epsilon: float, uniform: Array) -> tuple[Array, Array]:
    """Choose a random available candidate with probability epsilon, else the best.

    The random candidate may be the best one, so the propensity of the best is 1 - epsilon + epsilon / n, and that of the
    others epsilon / n, with n the number available.

    Args:
        scores: (B, C).
        available: (B, C).
        epsilon: In [0, 1].
        uniform: (B, 2): whether to explore, and which candidate.

    Returns:
        Indices (B,) and propensities (B,).

    Raises:
        ValueError: If a session has no available candidate; not checked on a GPU, where it would have to wait.
    """
    fast = triton.epsilon_greedy(scores, available, epsilon, uniform)
    if fast is not None:
        return fast
    best = greedy(scores, available)
    count = available.sum(1)
    explored = _nth_available(available, uniform[:, 1])
    chosen = where(uniform[:, 0] < epsilon, explored, best)
    return chosen, epsilon / count + (1 - epsilon) * (chosen == best)


def softmax(scores: Array, available: Array, temperature: float, uniform: Array) -> tuple[Array, Array]:
    """Choose an available candidate with probability proportional to exp(score / temperature).

    Args:
        scores: (B, C).
        available: (B, C).
        temperature: Above 0.
        uniform: (B,).

    Returns:
        Indices (B,) and propensities (B,).

    Raises:
        ValueError: If a session has no available candidate.
    """
    best = greedy(scores, available)
    index = _candidate_index(available)
    top = where(index == best[:, None], scores, 0).sum(1)[:, None]
    weights = exp(where(available, (scores - top) / temperature, -np.inf))
    probabilities = weights / weights.sum(1)[:, None]
    cumulative = probabilities.cumsum(1)
    # the first candidate whose cumulative probability exceeds the uniform number; one that is not available adds nothing
    chosen = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(1).clip(0, scores.shape[1] - 1)
    return chosen, (probabilities * (index == chosen[:, None])).sum(1)


def available_by_step(candidates: Array, items: Array) -> list[Array]:
    """Which candidates could be shown at each step of logged sessions.

    With one set per session, an item that was shown is not available again until all have been, as in roll-outs. Sets per
    step are taken as they are. In the padding, where a step has no candidates, all are available.

    Args:
        candidates: (B, C) one set per session, or (B, T, C) one per step; padding is `MASK_ROW`.
        items: (B, T) the items shown.

    Returns:
        T arrays (B, C), bool.
    """
    real = candidates != MASK_ROW
    if candidates.ndim == 3:
        return [real[:, step] | ~real[:, step].any(1)[:, None] for step in range(items.shape[1])]
    steps, available = [], real
    for step in range(items.shape[1]):
        available = where(available.any(1)[:, None], available, real)
        steps.append(available)
        available = available & (candidates != items[:, step][:, None])
    return steps


def candidates_at(candidates: Array, step: int) -> Array:
    """The candidates (B, C) of a step, from one set per session (B, C) or one per step (B, T, C)."""
    return candidates if candidates.ndim == 2 else candidates[:, step]


def _nth_available(available: Array, uniform: Array) -> Array:
    """The index (B,) of a random available candidate: the floor(u n)-th of n."""
    count = available.sum(1)
    nth = as_index(uniform * count).clip(0)
    nth = where(nth < count, nth, count - 1)
    return (available.cumsum(1) <= nth[:, None]).sum(1)


def _candidate_index(available: Array) -> Array:
    """0, 1, 2, … along the candidates, (B, C), on the array's device."""
    return (available | True).cumsum(1) - 1


def _require_available(available: Array) -> None:
    if not bool((available.sum(1) > 0).all()):
        raise ValueError("every session needs at least one available candidate")
