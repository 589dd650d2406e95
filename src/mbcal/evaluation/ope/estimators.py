"""Off-policy estimators: the value of a target policy from logged sessions with true propensities. Plain numpy.

Every estimator returns one contribution per session, (N,), whose mean is the estimate; intervals and paired differences are
computed from contributions (`intervals.py`). With pi the target policy and mu the logging policy,

    rho_t = pi(a_t | s_t) / mu(a_t | s_t)          w_t = min(rho_1 rho_2 … rho_t, clip)

and after the end of a session rho = 1 and r = 0. Self-normalised estimators are ratios of means; their contributions are
linearised, V + (w / mean w) (G - V), so that both their mean and their variance are those of the estimate.
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
"""(data, gamma, clip) -> contributions (N,). `data` is a `LoggedData`, `gamma` the discount, `clip` the largest weight."""


@dataclass(frozen=True, eq=False)
class LoggedData:
    """N logged sessions of up to T steps, with the propensities of a target policy.

    Values in the padding are replaced by neutral ones (rewards and values by 0, propensities by 1).

    Raises:
        InputError: If shapes differ, a value is not finite, a propensity is out of range, or a session has gaps.
    """

    rewards: Floats
    """(N, T)."""
    mask: NDArray[np.bool_]
    """(N, T) true where there is a step."""
    logged: Floats
    """(N, T) mu(a_t | s_t): propensity of the logged item under the logging policy, in (0, 1]."""
    target: Floats
    """(N, T) pi(a_t | s_t): propensity of the logged item under the target policy, in [0, 1]."""
    user: NDArray[Any]
    """(N,) user of each session."""
    q: Floats | None = None
    """(N, T) a model's value of the logged item, with the target policy followed afterwards."""
    v: Floats | None = None
    """(N, T) a model's value of the state: q averaged over the target policy's choices."""

    def __post_init__(self) -> None:
        shape = np.shape(self.rewards)
        if len(shape) != 2 or not shape[0] or np.shape(self.user) != shape[:1]:
            shapes = f"{shape} and {np.shape(self.user)}"
            raise InputError(f"logged data: rewards must be (N, T) and user (N,), with N at least 1, got {shapes}")
        if (self.q is None) != (self.v is None):
            raise InputError("logged data: q and v come together; give both or neither")
        mask = np.asarray(self.mask, bool)
        for name, padding in (("rewards", 0.0), ("logged", 1.0), ("target", 1.0), ("q", 0.0), ("v", 0.0)):
            values = getattr(self, name)
            if values is None:
                continue
            if np.shape(values) != shape or mask.shape != shape:
                raise InputError(f"logged data: {name} and mask must be {shape}, got {np.shape(values)} and {mask.shape}")
            array = np.where(mask, np.asarray(values, np.float64), padding)
            if not np.isfinite(array).all():
                raise InputError(f"logged data: {name} must be finite at every step")
            object.__setattr__(self, name, array)
        if not mask[:, 0].all() or (mask[:, 1:] & ~mask[:, :-1]).any():
            raise InputError("logged data: every session must begin at its first step and have no gaps")
        if self.logged.min() <= 0 or self.logged.max() > 1:
            raise InputError("logged data: logged propensities must lie in (0, 1] at every step")
        if self.target.min() < 0 or self.target.max() > 1 + 1e-6:
            raise InputError("logged data: target propensities must lie in [0, 1] at every step")
        object.__setattr__(self, "mask", mask)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def values(self) -> tuple[Floats, Floats]:
        """Values q and v, (N, T) each; raises InputError if absent."""
        if self.q is None or self.v is None:
            raise InputError("logged data: this estimator needs the values q and v of a model; fit them first")
        return self.q, self.v


def weights(data: LoggedData, clip: float | None = None) -> Floats:
    """Return the cumulative importance weights w_t = min(rho_1 … rho_t, clip), (N, T)."""
    if clip is not None and not clip >= 1:
        raise OptionError(f"clip: must be at least 1, got {clip}")
    unclipped: Floats = np.multiply.accumulate(data.target / data.logged, 1)
    return unclipped if clip is None else np.minimum(unclipped, clip)


def logged_return(data: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:  # noqa: ARG001 - has no weights
    """G = sum_t gamma^t r_t: the return under the logging policy."""
    return _discounted(data.rewards, gamma)


def trajectory_ips(data: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """w_T G. Unbiased; of all estimators, its variance grows fastest with the horizon."""
    return weights(data, clip)[:, -1] * logged_return(data, gamma)


def self_normalised_ips(data: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """V = sum w_T G / sum w_T. Consistent, with a bias of O(1/N); never outside the range of logged returns."""
    return _normalised(weights(data, clip)[:, -1:], logged_return(data, gamma)[:, None])[:, 0]


def per_decision(data: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """sum_t gamma^t w_t r_t. Unbiased; a reward is weighted only by the choices up to its step (Precup et al., 2000)."""
    return _discounted(weights(data, clip) * data.rewards, gamma)


def weighted_per_decision(data: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """sum_t gamma^t (sum w_t r_t / sum w_t), normalised over all sessions at every step. Consistent."""
    return _discounted(_normalised(weights(data, clip), data.rewards), gamma)


def direct(data: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:  # noqa: ARG001 - has no weights, no sum
    """v_1: the model's value of the first state, with all of the model's bias."""
    return data.values[1][:, 0]


def doubly_robust(data: LoggedData, gamma: float = 1.0, clip: float | None = None) -> Floats:
    """D_t = v_t + rho_t (r_t + gamma D_{t+1} - q_t); the contribution is D_1 (Jiang and Li, 2016).

    Computed as the equal sum v_1 + sum_t gamma^t w_t (r_t + gamma v_{t+1} - q_t), in which weights can be clipped. Unbiased
    if the propensities or the model are right; the better the model, the smaller the variance.
    """
    q, v = data.values
    next_v = np.pad(v[:, 1:], ((0, 0), (0, 1)))
    return v[:, 0] + _discounted(weights(data, clip) * (data.rewards + gamma * next_v - q), gamma)


ESTIMATORS: Mapping[str, Estimator] = {
    "ips": trajectory_ips,
    "snips": self_normalised_ips,
    "pdis": per_decision,
    "wpdis": weighted_per_decision,
    "dr": doubly_robust,
    "direct": direct,
}
NEED_VALUES = frozenset({"dr", "direct"})
"""Estimators that need q and v."""
BOUNDED = frozenset({"ips", "pdis"})
"""Estimators whose contributions have bounds that are known before the data: see `contribution_range`."""


def contribution_range(
    rewards: tuple[float, float], horizon: int, gamma: float, factor: tuple[float, float]
) -> tuple[float, float]:
    """Return the least and the greatest value of sum_t gamma^t f_t r_t.

    Args:
        rewards: Range of r_t.
        horizon: Most steps in a session. Sessions may end early, so 0 is always possible.
        gamma: The discount.
        factor: Range of f_t: (0, clip) for a value by IPS or PDIS, (-1, clip - 1) for its difference to the log,
            (-clip, clip) for its difference to another such value.
    """
    steps = float((gamma ** np.arange(horizon)).sum())
    corners = [0.0, *(f * steps * r for f in factor for r in rewards)]
    return min(corners), max(corners)


@dataclass(frozen=True, eq=False)
class Overlap:
    """How much of the log is informative about the target policy."""

    ess: float
    """Effective number of sessions by their final weights w_T (Kish)."""
    steps: Floats
    """(T,) effective number of sessions by w_t, among those that reach the step."""
    zero: float
    """Share of steps whose item the target policy never shows; from there on a session carries no information."""
    mean_weight: float
    """Mean of w_T before clipping: near 1 if propensities are right and overlap is good."""
    largest: float
    """The largest w_T before clipping."""
    clipped: float
    """Share of sessions with a clipped weight."""


def overlap(data: LoggedData, clip: float | None = None) -> Overlap:
    """Measure the overlap of the logging policy and the target policy."""
    unclipped, clipped = weights(data), weights(data, clip)
    by_step = [clipped[data.mask[:, step], step] for step in range(clipped.shape[1])]
    return Overlap(
        ess=effective_size(clipped[:, -1]),
        steps=np.array([effective_size(weight) for weight in by_step]),
        zero=float((data.target[data.mask] == 0).mean()),
        mean_weight=float(unclipped[:, -1].mean()),
        largest=float(unclipped[:, -1].max()),
        clipped=float((clipped < unclipped).any(1).mean()),
    )


def effective_size(weight: Floats) -> float:
    """Return (sum w)² / sum w² (Kish): the equivalent number of equally weighted sessions; 0 if all weights are 0."""
    total = float(np.square(weight).sum())
    return float(weight.sum()) ** 2 / total if total else 0.0


def step_means(data: LoggedData, fold: NDArray[np.int64], gamma: float = 1.0) -> tuple[Floats, Floats]:
    """Return the cheapest model: q = v = the mean return-to-go at each step, over the sessions of all other folds.

    It ignores items and the target policy: `doubly_robust` with it removes only the noise that all sessions share, and
    `direct` with it is the log's mean.

    Args:
        data: The logged sessions.
        fold: (N,) fold of each session.
        gamma: The discount.

    Returns:
        q and v, (N, T) each, 0 in the padding.
    """
    following = np.zeros(len(data))
    to_go = np.zeros_like(data.rewards)
    for step in range(to_go.shape[1] - 1, -1, -1):
        following = data.rewards[:, step] + gamma * following
        to_go[:, step] = following
    means = np.zeros_like(to_go)
    for number in np.unique(fold):
        others = (fold != number)[:, None] & data.mask
        means[fold == number] = np.where(others, to_go, 0).sum(0) / np.maximum(others.sum(0), 1)
    means = np.where(data.mask, means, 0)
    return means, means


def _discounted(values: Floats, gamma: float) -> Floats:
    """sum_t gamma^t x_t: (N, T) -> (N,)."""
    if not 0 <= gamma <= 1:
        raise OptionError(f"gamma: must be in [0, 1], got {gamma}")
    discounted: Floats = values @ (gamma ** np.arange(values.shape[1]))
    return discounted


def _normalised(weight: Floats, values: Floats) -> Floats:
    """V + (w / mean w) (x - V) with V = sum w x / sum w, column by column; raises InputError if all weights are 0."""
    mean = weight.mean(0)
    if not (mean > 0).all():
        raise InputError("off-policy: no logged session could have come from the target policy; raise its epsilon")
    value = (weight * values).mean(0) / mean
    normalised: Floats = value + weight / mean * (values - value)
    return normalised
