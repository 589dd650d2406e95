"""From scores to a choice and its propensity."""

from __future__ import annotations

import numpy as np

from mbcal.kernels import triton as fused
from mbcal.scoring.backend import Array, as_index, exp, where
from mbcal.types import MASK_ROW


def greedy(scores: Array, available: Array) -> Array:
    """Index (B,) of the best available candidate; among equals the first. Its propensity is 1."""
    _require_choice(available)
    return where(available, scores.clip(-3e38, None), -np.inf).argmax(1)  # even a score of -inf beats what is gone


def epsilon_greedy(scores: Array, available: Array, epsilon: float, uniform: Array) -> tuple[Array, Array]:
    """With probability epsilon any available candidate, else the best: index and propensity (B,), from uniforms (B, 2).

    The best may also be drawn by the way, so its propensity is 1 - epsilon + epsilon / n, that of the others epsilon / n.
    """
    made = fused.epsilon_greedy(scores, available, epsilon, uniform)
    if made is not None:
        return made
    best = greedy(scores, available)
    count = available.sum(1)
    drawn = _nth_available(available, uniform[:, 1])
    chosen = where(uniform[:, 0] < epsilon, drawn, best)
    return chosen, epsilon / count + (1 - epsilon) * (chosen == best)


def softmax(scores: Array, available: Array, temperature: float, uniform: Array) -> tuple[Array, Array]:
    """An available candidate in proportion to exp(score / temperature): index and propensity (B,), from uniforms (B,)."""
    best = greedy(scores, available)
    place = _places(available)
    top = where(place == best[:, None], scores, 0).sum(1)[:, None]
    weights = exp(where(available, (scores - top) / temperature, -np.inf))
    chances = weights / weights.sum(1)[:, None]
    reach = chances.cumsum(1)
    # the first candidate whose cumulated chance exceeds the draw; one that is gone adds nothing and is never it
    chosen = (reach <= uniform[:, None] * reach[:, -1:]).sum(1).clip(0, scores.shape[1] - 1)
    return chosen, (chances * (place == chosen[:, None])).sum(1)


def _nth_available(available: Array, uniform: Array) -> Array:
    """An available candidate by a uniform number: the floor(u n)-th of n."""
    count = available.sum(1)
    nth = as_index(uniform * count).clip(0)
    nth = where(nth < count, nth, count - 1)
    return (available.cumsum(1) <= nth[:, None]).sum(1)


def _places(available: Array) -> Array:
    """0, 1, 2, … along the candidates, wherever the array lives."""
    return (available | True).cumsum(1) - 1


def _require_choice(available: Array) -> None:
    if not bool((available.sum(1) > 0).all()):
        raise ValueError("every session needs at least one available candidate")


def available_by_step(candidates: Array, items: Array) -> list[Array]:
    """T times (B, C): which candidates could be shown at each step, given the items (B, T) shown.

    Of one set a session, (B, C), what was shown is gone until all have been, as in roll-outs. Sets of each step's own,
    (B, T, C), are taken as they are. At a step of the padding, where nothing is offered, anything is open.
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
    """(B, C) of a step, from one set a session or one a step."""
    return candidates if candidates.ndim == 2 else candidates[:, step]
