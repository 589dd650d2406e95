"""Two versions compared while sessions arrive: a difference of means with limits that hold at every look.

Users are assigned to a version at random. A few may meet both, for example after the share was changed, so standard errors
are clustered by user. Everything is computed from sums by user, so a look costs one pass over the users::

    UserSums of a, of b  (…, G)  ──▶  compare_means  ──▶  SequentialDifference: value, standard error
                                                           ├─▶ interval   valid at one look, fixed in advance
                                                           ├─▶ lower, upper   valid at all looks together
                                                           └─▶ safe_lower     also if rare large rewards were not met yet

`lower` and `upper` are asymptotic confidence sequences (Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas: Time-uniform central
limit theory and asymptotic confidence sequences, Annals of Statistics 2024), with a standard error by user. Why this one,
and how it was checked: docs/decisions/0019-comparison-of-versions.md. All functions accept leading axes (replications).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.metrics import Mean, t_expansion, t_quantile

Floats = NDArray[np.float64]

TUNED_SESSIONS = 100.0
"""Sessions of the smaller version at which the sequence is tightest. It is little wider within a factor of ten."""
FEWEST_USERS = 10
"""Fewest users of either version for limits to be finite: with fewer, no standard error by user can be trusted."""
FEWEST_SESSIONS = 20
"""Fewest sessions of either version for limits to be finite."""
POWER = 0.8
"""Probability with which `sessions_needed` sessions show the difference."""


@dataclass(frozen=True)
class UserSums:
    """What a version earned, by user. All arrays are (…, G) for G users; two versions list the same users."""

    sessions: Floats
    """Number of sessions."""
    total: Floats
    """Sum of their values: rewards, or lengths."""
    squares: Floats
    """Sum of their squares."""

    @classmethod
    def of(cls, values: NDArray[Any], users: NDArray[Any], n_users: int, weights: Floats | None = None) -> UserSums:
        """Sum values (N,) by user number (N,).

        Args:
            values: One per session.
            users: Number of the session's user.
            n_users: How many users there are.
            weights: (N,) how much each session counts, 0 or more; by default all alike. They are scaled so that they sum to
                the number of sessions that would be as good without weights (Kish).
        """
        sizes = np.ones(len(values)) if weights is None else weights * (weights.sum() / np.square(weights).sum())
        columns = (sizes, sizes * values, sizes * np.square(values, dtype=np.float64))
        return cls(*(np.bincount(users, column, n_users).astype(np.float64) for column in columns))

    def mean(self, level: float = 0.95) -> Mean:
        """Return the mean per session with a t interval clustered by user, valid at one look. No leading axes.

        Without sessions the mean is NaN; with one user the interval is infinite.
        """
        size, users = float(self.sessions.sum()), int((self.sessions > 0).sum())
        count, mean = round(size), float(self.total.sum() / size) if size else float("nan")
        if users < 2:
            return Mean(mean, -np.inf, np.inf, count, np.inf)
        residuals = self.total - self.sessions * mean
        stderr = float(np.sqrt(users / (users - 1) * np.square(residuals).sum())) / size
        width = t_quantile(0.5 + level / 2, users - 1) * stderr
        return Mean(mean, mean - width, mean + width, count, stderr)


@dataclass(frozen=True)
class SequentialDifference:
    """The difference of two means, a - b. All arrays have the leading axes of the sums; numbers are 0-dimensional arrays."""

    value: Floats
    stderr: Floats
    """Clustered by user; infinite if there are too few sessions or users."""
    boundary_time: Floats
    """The time of `boundary`: sessions of the smaller version, times the design effect of users with many sessions."""
    degrees_of_freedom: Floats
    """Users of the version with fewer, less one."""
    rare_loss: Floats
    """By how much one session that differs as much as it can from its version's mean would lower the value."""

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Return the two-sided t interval. It covers with this probability at one look whose time was fixed in advance."""
        width = t_expansion(NormalDist().inv_cdf(0.5 + level / 2), self.degrees_of_freedom) * self.stderr
        return self.value - width, self.value + width

    def lower(self, alpha: float = 0.05) -> Floats:
        """Return a lower limit. The probability that it ever exceeds the true difference, at any look, is at most alpha."""
        return self.value - self._width(alpha)

    def safe_lower(self, alpha: float = 0.05) -> Floats:
        """Return a lower limit that also allows for rewards too rare to have been met.

        Where z standard errors are the width of `lower`, outcomes that together are expected fewer than z^2 / 2 times in the
        sessions so far may be absent from them with probability alpha. So this many of them are taken off, each as bad for
        the difference as a session can be. It is the range term of Bernstein's inequality, and vanishes as 1 / sessions.
        """
        limits: Floats = self.lower(alpha) - np.square(self._quantile(alpha)) / 2 * self.rare_loss
        return limits

    def upper(self, alpha: float = 0.05) -> Floats:
        """Return an upper limit. The probability that it ever falls below the true difference is at most alpha."""
        return self.value + self._width(alpha)

    def _width(self, alpha: float) -> Floats:
        return self._quantile(alpha) * self.stderr

    def _quantile(self, alpha: float) -> Floats:
        quantile: Floats = t_expansion(boundary(self.boundary_time, alpha), self.degrees_of_freedom)
        return quantile


def boundary(time: Floats, alpha: float) -> Floats:
    """Return how many standard errors a sum may ever be above its mean: one-sided, by a half-normal mixture.

    The probability that a Brownian motion, divided by its standard deviation, ever exceeds the boundary at its time is at
    most alpha.

    Args:
        time: Time, in sessions; positive.
        alpha: Probability, in (0, 0.5).
    """
    two_sided = -2 * np.log(2 * alpha)
    scaled = time * (two_sided + np.log(two_sided) + 1) / TUNED_SESSIONS
    widths: Floats = np.sqrt(2 * (1 + 1 / scaled) * np.log1p(np.sqrt(scaled + 1) / (2 * alpha)))
    return widths


def compare_means(
    a: UserSums, b: UserSums, below: Floats | float = 0.0, above: Floats | float = 0.0
) -> SequentialDifference:
    """Compare the means per session of two versions, with a standard error by user.

    The variance is the larger of two. The jackknife over users allows for a difference that varies between users; it is
    right whatever the versions do. The other is that of equal versions: the variance of all sessions, pooled, with the
    correlation within users, or with each user as likely to have met the other version. It takes over while the smaller
    version has not met the rare rewards, or the few users with many sessions, yet.

    Args:
        a: Sums of one version, (…, G).
        b: Sums of the other, of the same users.
        below: How far below a's mean a session of a may lie, for `safe_lower`.
        above: How far above b's mean a session of b may lie.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        n_a, n_b, total_a, total_b = (sums.sum(-1) for sums in (a.sessions, b.sessions, a.total, b.total))
        value = total_a / n_a - total_b / n_b
        independent, variance = _variance_if_equal(a, b)
        variance = np.maximum(variance, _jackknife(a, b, value))
        design_effect = np.where(independent > 0, variance / independent, 1.0)
        users = np.minimum((a.sessions > 0).sum(-1), (b.sessions > 0).sum(-1))
        enough = (users >= FEWEST_USERS) & (np.minimum(n_a, n_b) >= FEWEST_SESSIONS) & np.isfinite(variance)
        boundary_time = np.where(enough, n_a * n_b / (n_a + n_b) * design_effect, 1.0)
        rare_loss = np.maximum(below / n_a, above / n_b) * np.maximum(design_effect, 1.0)
    stderr = np.where(enough, np.sqrt(np.where(enough, variance, 0.0)), np.inf)
    degrees_of_freedom = np.maximum(users - 1.0, FEWEST_USERS - 1)
    return SequentialDifference(
        np.asarray(value), stderr, boundary_time, degrees_of_freedom, rare_loss=np.where(enough, rare_loss, 0.0)
    )


def _jackknife(a: UserSums, b: UserSums, value: Floats) -> Floats:
    """Variance of the difference by leaving out one user after the other; infinite if one user has all of a version."""

    def without_each(sums: UserSums) -> Floats:
        rest: Floats = (sums.total.sum(-1, keepdims=True) - sums.total) / (
            sums.sessions.sum(-1, keepdims=True) - sums.sessions
        )
        return rest

    present = (a.sessions + b.sessions) > 0
    count = present.sum(-1)
    deviations = np.where(present, without_each(a) - without_each(b) - value[..., None], 0.0)
    variance = (count - 1) / count * np.square(deviations).sum(-1)
    return np.where(np.isnan(variance), np.inf, variance)


def _variance_if_equal(a: UserSums, b: UserSums) -> tuple[Floats, Floats]:
    """Variance of the difference of equal versions: with independent sessions, and with correlated sessions of a user.

    The latter is the larger of two. One has one correlation for all users. The other is that of assigning users to versions:
    a few users with many sessions and little reward (bots), all of whom happened to meet one version, tell of no difference.
    """
    sessions, total = a.sessions + b.sessions, a.total + b.total
    n, n_a, n_b = sessions.sum(-1), a.sessions.sum(-1, keepdims=True), b.sessions.sum(-1, keepdims=True)
    mean = total.sum(-1) / n
    variance = np.maximum((a.squares + b.squares).sum(-1) - n * mean**2, 0.0) / (n - 1)
    clustered = np.square(total - sessions * mean[..., None]).sum(-1)
    pairs = np.maximum(np.square(sessions).sum(-1) - n, 1.0)
    correlation = np.where(variance > 0, np.clip((clustered / variance - n) / pairs, 0.0, 1.0), 0.0)
    independent = variance * (1 / n_a + 1 / n_b)[..., 0]
    shared = variance * np.square(a.sessions / n_a - b.sessions / n_b).sum(-1)
    excess_a, excess_b = (
        sums.total - sums.sessions * sums.total.sum(-1, keepdims=True) / size for sums, size in ((a, n_a), (b, n_b))
    )
    met_one = (a.sessions == 0) | (b.sessions == 0)
    assigned = np.where(met_one, np.square(excess_a + excess_b) / (n_a * n_b), np.square(excess_a / n_a - excess_b / n_b))
    return independent, np.maximum((1 - correlation) * independent + correlation * shared, assigned.sum(-1))


def sessions_needed(difference: SequentialDifference, sessions: float, effect: float, alpha: float = 0.05) -> float:
    """Return how many sessions in all, split as so far, show a true difference of this size at any look, 4 times in 5.

    Args:
        difference: The comparison so far. No leading axes.
        sessions: Sessions of both versions so far.
        effect: The true difference of the means, not 0.
        alpha: Probability of an error, as for `lower`.

    Returns:
        The number of sessions; infinite while the standard error is unknown.
    """
    stderr, margin = float(difference.stderr), NormalDist().inv_cdf(POWER)
    if not np.isfinite(stderr):
        return float("inf")
    needed = float(sessions)
    for _ in range(8):  # the boundary grows slowly with the sessions, so this settles
        limit = float(boundary(np.asarray(difference.boundary_time * needed / sessions), alpha))
        needed = max(sessions * ((limit + margin) * stderr / effect) ** 2, 1.0)
    return needed
