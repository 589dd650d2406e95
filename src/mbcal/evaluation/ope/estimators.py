"""What would another policy have earned? Estimators from logged sessions with true propensities. Plain numpy.

Every estimator gives one number a session, its contribution, whose mean is the estimate; intervals and paired differences
are made of contributions (`intervals.py`). With pi the target policy and mu the logging policy,

    rho_t = pi(a_t | s_t) / mu(a_t | s_t)          w_t = rho_1 rho_2 … rho_t, cut off at `clip` where one is given

and after the end of a session rho = 1 and r = 0. Self-normalised estimators are ratios of means; their contributions are
linearised, V + (w / mean w) (G - V), so that both their mean and their spread are the estimate's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, OptionError

Floats = NDArray[np.float64]
Estimator = Callable[..., Floats]
"""(evidence, gamma, clip) -> contributions (N,)."""


@dataclass(frozen=True, eq=False)
class LoggedData:
    """N logged sessions of up to T steps, as seen by a target policy. Checked; what lies in the padding is forgotten."""

    rewards: Floats  # (N, T)
    mask: NDArray[np.bool_]  # (N, T), true where a step counts
    logged: Floats  # (N, T) mu(a_t | s_t), in (0, 1]
    target: Floats  # (N, T) pi(a_t | s_t), in [0, 1]
    user: NDArray[Any]  # (N,)
    q: Floats | None = None  # (N, T) what a model expects of the logged action and of all that follows under the target
    v: Floats | None = None  # (N, T) the same of the state: q averaged over the target's choices

    def __post_init__(self) -> None:
        shape = np.shape(self.rewards)
        if len(shape) != 2 or not shape[0] or np.shape(self.user) != shape[:1]:
            raise InputError(f"evidence: rewards must be (N, T) with a user (N,) each, got {shape}, {np.shape(self.user)}")
        if (self.q is None) != (self.v is None):
            raise InputError("evidence: q and v come together; give both or neither")
        mask = np.asarray(self.mask, bool)
        for name, padding in (("rewards", 0.0), ("logged", 1.0), ("target", 1.0), ("q", 0.0), ("v", 0.0)):
            given = getattr(self, name)
            if given is None:
                continue
            if np.shape(given) != shape or mask.shape != shape:
                raise InputError(f"evidence: {name} and mask must be {shape}, got {np.shape(given)} and {mask.shape}")
            array = np.where(mask, np.asarray(given, np.float64), padding)
            if not np.isfinite(array).all():
                raise InputError(f"evidence: {name} must be finite at every step")
            object.__setattr__(self, name, array)
        if not mask[:, 0].all() or (mask[:, 1:] & ~mask[:, :-1]).any():
            raise InputError("evidence: every session must begin at its first step and have no gaps")
        if self.logged.min() <= 0 or self.logged.max() > 1:
            raise InputError("evidence: logged propensities must lie in (0, 1] at every step")
        if self.target.min() < 0 or self.target.max() > 1 + 1e-6:
            raise InputError("evidence: target propensities must lie in [0, 1] at every step")
        object.__setattr__(self, "mask", mask)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def values(self) -> tuple[Floats, Floats]:
        """q and v, for whom they cannot be missing."""
        if self.q is None or self.v is None:
            raise InputError("evidence: this estimator needs the values q and v of a model; fit them first")
        return self.q, self.v


def weights(evidence: LoggedData, clip: float | None = None) -> Floats:
    """w_t = min(rho_1 … rho_t, clip), (N, T)."""
    if clip is not None and not clip >= 1:
        raise OptionError(f"clip: must be at least 1, got {clip}")
    unclipped: Floats = np.multiply.accumulate(evidence.target / evidence.logged, 1)
    return unclipped if clip is None else np.minimum(unclipped, clip)


def logged_return(evidence: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:  # noqa: ARG001 - no weights to clip
    """G = sum_t gamma^t r_t: what the logging policy did earn."""
    return _discounted(evidence.rewards, gamma)


def trajectory_ips(evidence: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """w_T G. Unbiased; its variance grows with the horizon as no other's."""
    return weights(evidence, clip)[:, -1] * logged_return(evidence, gamma)


def self_normalised_ips(evidence: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """V = sum w_T G / sum w_T. Consistent, biased by O(1/N), never outside the returns that were logged."""
    return _normalised(weights(evidence, clip)[:, -1:], logged_return(evidence, gamma)[:, None])[:, 0]


def per_decision(evidence: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """sum_t gamma^t w_t r_t. Unbiased; a reward is weighted by the choices before it alone (Precup et al., 2000)."""
    return _discounted(weights(evidence, clip) * evidence.rewards, gamma)


def weighted_per_decision(evidence: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """sum_t gamma^t (sum w_t r_t / sum w_t), normalised at every step over all sessions. Consistent."""
    return _discounted(_normalised(weights(evidence, clip), evidence.rewards), gamma)


def direct(evidence: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:  # noqa: ARG001 - no weights, no sum
    """v_1: what the model says, as right as the model is."""
    return evidence.values[1][:, 0]


def doubly_robust(evidence: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """D_t = v_t + rho_t (r_t + gamma D_{t+1} - q_t), the contribution is D_1 (Jiang and Li, 2016).

    Written as the sum it is, v_1 + sum_t gamma^t w_t (r_t + gamma v_{t+1} - q_t), where weights can be clipped.
    Unbiased if the propensities are right or the model is; the better the model, the smaller the variance.
    """
    q, v = evidence.values
    following = np.pad(v[:, 1:], ((0, 0), (0, 1)))
    return v[:, 0] + _discounted(weights(evidence, clip) * (evidence.rewards + gamma * following - q), gamma)


ESTIMATORS: Mapping[str, Estimator] = {
    "ips": trajectory_ips,
    "snips": self_normalised_ips,
    "pdis": per_decision,
    "wpdis": weighted_per_decision,
    "dr": doubly_robust,
    "direct": direct,
}
NEED_VALUES = frozenset({"dr", "direct"})
BOUNDED = frozenset({"ips", "pdis"})
"""Whose contributions have bounds known before the data: see `contribution_range`."""


def contribution_range(
    rewards: tuple[float, float], horizon: int, gamma: float, factor: tuple[float, float]
) -> tuple[float, float]:
    """The least and the most that sum_t gamma^t f_t r_t can be, r_t and f_t lying between their least and most.

    `factor` is (0, clip) for a value by IPS or PDIS, (-1, clip - 1) for its difference to the log, (-clip, clip) for that to
    another such value. A session may end early, so nothing at all is always possible.
    """
    steps = float((gamma ** np.arange(horizon)).sum())
    corners = [0.0, *(one * steps * other for one in factor for other in rewards)]
    return min(corners), max(corners)


@dataclass(frozen=True, eq=False)
class Overlap:
    """How much of the log speaks about the target policy."""

    ess: float
    """Effective sessions by their whole weights w_T (Kish)."""
    steps: Floats  # (T,) effective sessions by w_t, among those that reach the step
    zero: float
    """Share of steps whose item the target policy never shows: from there on a session says nothing."""
    mean_weight: float
    """Mean of w_T before clipping: near 1 where propensities are right and overlap is good."""
    largest: float
    """The largest w_T before clipping."""
    clipped: float
    """Share of sessions of which a weight was cut off."""


def overlap(evidence: LoggedData, clip: float | None = None) -> Overlap:
    """Of all sessions."""
    plain, used = weights(evidence), weights(evidence, clip)
    reached = [used[evidence.mask[:, step], step] for step in range(used.shape[1])]
    return Overlap(
        ess=effective_size(used[:, -1]),
        steps=np.array([effective_size(part) for part in reached]),
        zero=float((evidence.target[evidence.mask] == 0).mean()),
        mean_weight=float(plain[:, -1].mean()),
        largest=float(plain[:, -1].max()),
        clipped=float((used < plain).any(1).mean()),
    )


def effective_size(weight: Floats) -> float:
    """(sum w)² / sum w² (Kish): how many equally weighted sessions would be as good; 0 where all weights are 0."""
    total = float(np.square(weight).sum())
    return float(weight.sum()) ** 2 / total if total else 0.0


def step_means(evidence: LoggedData, fold: NDArray[np.int64], gamma: float = 1.0) -> tuple[Floats, Floats]:
    """q = v = the mean reward-to-go at each step, over the sessions of all other folds: the cheapest model there is.

    It knows neither items nor the target policy: `doubly_robust` by it loses only the noise that all sessions share, and
    `direct` by it is the log's mean.
    """
    following = np.zeros(len(evidence))
    to_go = np.zeros_like(evidence.rewards)
    for step in range(to_go.shape[1] - 1, -1, -1):
        following = evidence.rewards[:, step] + gamma * following
        to_go[:, step] = following
    made = np.zeros_like(to_go)
    for each in np.unique(fold):
        others = (fold != each)[:, None] & evidence.mask
        means = np.where(others, to_go, 0).sum(0) / np.maximum(others.sum(0), 1)
        made[fold == each] = means
    made = np.where(evidence.mask, made, 0)
    return made, made


def _discounted(values: Floats, gamma: float) -> Floats:
    """sum_t gamma^t x_t: (N, T) -> (N,)."""
    if not 0 <= gamma <= 1:
        raise OptionError(f"gamma: must be in [0, 1], got {gamma}")
    discounted: Floats = values @ (gamma ** np.arange(values.shape[1]))
    return discounted


def _normalised(weight: Floats, values: Floats) -> Floats:
    """V + (w / mean w) (x - V) with V = sum w x / sum w, column by column; no weight at all says nothing about the value."""
    mean = weight.mean(0)
    if not (mean > 0).all():
        raise InputError("off-policy: no logged session could have come from the target policy; raise its epsilon")
    value = (weight * values).mean(0) / mean
    normalised: Floats = value + weight / mean * (values - value)
    return normalised
