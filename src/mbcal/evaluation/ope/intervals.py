"""Confidence intervals of a mean of contributions, one per session, where sessions of one user are dependent.

*Bootstrap*: asymptotically exact. It needs a few hundred users and weights that are not dominated by a handful of sessions;
with a small effective sample the sessions that matter are missing, and it is too narrow.

*Empirical Bernstein* (Maurer and Pontil, 2009): valid for any number of users and any distribution within bounds that are
known beforehand. Several times wider. It bounds the mean of the contributions: with clipped weights that is a clipped value,
which for rewards of 0 or more is at most the value itself, so that the lower bound stays valid and the upper one does not.

*Betting* (Waudby-Smith and Ramdas, 2024): a lower bound that is valid for any number of users and any distribution that is
bounded below, with nothing known about its largest values. Rare large weights, seen or not, cannot invalidate it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, OptionError
from mbcal.evaluation.ope.estimators import Floats
from mbcal.training.random import derive_seed

Method = Literal["bca", "empirical bernstein", "betting"]
"""How an interval is computed: the BCa bootstrap, the empirical Bernstein bound, or the betting bound."""
DRAWS_PER_BLOCK = 1 << 16
"""Users resampled at a time, so that the arrays stay in a cache."""
RESAMPLES = 2000
"""With a few hundred, the noise of resampling itself costs a percent of coverage."""
STAKES = np.geomspace(1e-3, 0.9, 12)
"""Shares of the capital that the betting bound stakes; it averages over them."""


@dataclass(frozen=True)
class Estimate:
    """A value per session by one estimator, with an interval."""

    of: str
    """What is estimated: the value of `policy`, `baseline` or `log`, or the `difference`."""
    name: str
    """The estimator (a key of `ESTIMATORS`), or `mean` for the log's own mean."""
    value: float
    low: float
    high: float
    method: Method
    """How the interval was computed."""
    ess: float
    """Effective number of sessions (Kish); of a difference, the smaller of the two."""
    n: int
    """Number of sessions."""
    weight: float = 1.0
    """Mean weight before clipping. Its expectation is 1: far from it, sessions that matter are missing, and a bootstrap
    interval cannot be trusted."""
    clip: float | None = None
    """The largest weight; None if weights were not clipped."""
    clipped: float = 0.0
    """Share of sessions with a clipped weight."""

    def __str__(self) -> str:
        text = f"{self.of} {self.name} {self.value:.3f} [{self.low:.3f}, {self.high:.3f}] {self.method}"
        return f"{text}, {self.ess:.1f} of {self.n} sessions effective, mean weight {self.weight:.2f}"


def bootstrap(
    contributions: Floats, user: NDArray[Any], *, seed: int = 0, level: float = 0.95, resamples: int = RESAMPLES
) -> Floats:
    """Return BCa bootstrap intervals of the means per session of K estimators, all on the same resamples.

    Users are resampled with all their sessions. BCa (Efron, 1987) corrects the quantiles for bias and skew:
    z -> Phi(z0 + (z0 + z) / (1 - a (z0 + z))), with z0 from the share of resampled means below the estimate and a from the
    skewness of the leave-one-user-out means.

    Args:
        contributions: (K, N) one number per estimator and session.
        user: (N,) user of each session.
        seed: Seed of the resamples.
        level: Nominal coverage.
        resamples: Number of resamples.

    Returns:
        (K, 2) lower and upper ends; infinite if there is one user.

    Raises:
        OptionError: If `level` or `resamples` is out of range.
        InputError: If there are no contributions, or one is not finite.
    """
    _require_valid(contributions, level)
    if resamples < 1:
        raise OptionError(f"resamples: must be at least 1, got {resamples}")
    by_user = [user_sums(row, user) for row in contributions]
    sums, counts = np.stack([row_sums for row_sums, _ in by_user]), by_user[0][1]
    if len(counts) < 2:
        return np.tile([-np.inf, np.inf], (len(contributions), 1))
    means = _resampled_means(sums, counts, resamples, np.random.default_rng(derive_seed(seed, "bootstrap")))
    tails = np.array([0.5 - level / 2, 0.5 + level / 2])
    intervals = np.empty((len(sums), 2))
    for index, row_means in enumerate(means):
        quantiles = _bca_quantiles(tails, row_means, sums[index], counts)
        # the (B + 1) p-th of B resamples: other conventions are too narrow with few resamples
        intervals[index] = np.quantile(row_means, quantiles, method="weibull")
    return intervals


def _resampled_means(sums: Floats, counts: Floats, resamples: int, generator: np.random.Generator) -> Floats:
    """(K, resamples) means per session of as many users as there are, sampled with replacement."""
    users, means = len(counts), np.empty((len(sums), resamples))
    block = max(DRAWS_PER_BLOCK // users, 1)
    for begin in range(0, resamples, block):
        size = min(block, resamples - begin)
        sampled = generator.integers(0, users, (size, users)) + np.arange(size)[:, None] * users
        times = np.bincount(sampled.ravel(), minlength=size * users).reshape(size, users).astype(np.float64)
        means[:, begin : begin + size] = sums @ times.T / (times @ counts)
    return means


def _bca_quantiles(tails: Floats, means: Floats, sums: Floats, counts: Floats) -> Floats:
    """The quantiles of the resampled means that BCa takes in place of the nominal tails."""
    value = sums.sum() / counts.sum()
    below = float((means < value).mean() + (means == value).mean() / 2)
    normal, edge = NormalDist(), 0.5 / len(means)
    bias = normal.inv_cdf(min(max(below, edge), 1 - edge))
    leave_one_out = (sums.sum() - sums) / (counts.sum() - counts)
    deviation = leave_one_out.mean() - leave_one_out
    spread = float(np.square(deviation).sum()) ** 1.5
    skew = float((deviation**3).sum()) / (6 * spread) if spread else 0.0
    shifted = [bias + normal.inv_cdf(tail) for tail in tails]
    return np.array([normal.cdf(bias + z / (1 - skew * z)) for z in shifted])


def empirical_bernstein(
    contributions: Floats, user: NDArray[Any], least: float, most: float, *, level: float = 0.95
) -> tuple[float, float]:
    """Return the empirical Bernstein interval of the mean per session.

    mean -/+ sqrt(2 V ln(2/d) / n) + 7 R ln(2/d) / (3 (n - 1)), each side with d = (1 - level) / 2. The n independent numbers
    are users, each with the sum of its contributions over the mean number of sessions per user; V is their variance, R their
    range given the numbers of sessions. For a one-sided bound of 95% take level = 0.9.

    Args:
        contributions: (N,) one number per session.
        user: (N,) user of each session.
        least: Lower bound of contributions, known beforehand.
        most: Upper bound of contributions, known beforehand.
        level: Nominal coverage.

    Returns:
        Lower and upper end, within the bounds.

    Raises:
        InputError: If a contribution is out of bounds or not finite.
        OptionError: If `level` is out of range.
    """
    _require_valid(contributions, level)
    tolerance = 1e-9 * max(abs(least), abs(most), 1.0)
    if contributions.min() < least - tolerance or contributions.max() > most + tolerance:
        actual = f"{contributions.min():.6g}..{contributions.max():.6g}"
        raise InputError(f"empirical Bernstein: contributions must lie in {least:.6g}..{most:.6g}, got {actual}")
    sums, counts = user_sums(contributions - least, user)
    users = len(sums)
    if users < 2:
        return least, most
    scaled, width = sums / counts.mean(), (most - least) * float(counts.max() / counts.mean())
    log_term = math.log(4 / (1 - level))
    margin = math.sqrt(2 * float(scaled.var(ddof=1)) * log_term / users) + 7 * width * log_term / (3 * (users - 1))
    mean = float(contributions.mean())
    return max(mean - margin, least), min(mean + margin, most)


def betting_lower_bound(values: Floats, least: float, *, level: float = 0.95) -> float:
    """Return a lower bound of the mean of independent values that are known to be at least `least`.

    If the mean were m or less, a capital that stakes a share s on every value, Π (1 + s (x - m) / (m - least)), would not
    grow on average, and its mean over all stakes would exceed 1 / (1 - level) with a probability of at most 1 - level
    (Markov). The bound is the smallest m at which the capital does not exceed that.

    Args:
        values: (n,) independent numbers with one mean.
        least: Lower bound of the values, known beforehand.
        level: One-sided coverage.

    Returns:
        The bound, in [least, mean of the values].

    Raises:
        InputError: If a value is below `least` or not finite.
        OptionError: If `level` is out of range.
    """
    _require_valid(values, level)
    if values.min() < least - 1e-9 * max(abs(least), 1.0):
        raise InputError(f"betting: values must be at least {least:.6g}, got {values.min():.6g}")
    gains, needed = np.maximum(values - least, 0.0), -math.log(1 - level)

    def log_capital(mean: float) -> float:
        by_stake = np.log1p(STAKES[:, None] * (gains / mean - 1)).sum(1)
        return float(np.logaddexp.reduce(by_stake)) - math.log(len(STAKES))

    low, high = 0.0, float(gains.mean())
    if high == 0.0:
        return least
    for _ in range(40):  # the capital falls as the mean rises
        middle = (low + high) / 2
        low, high = (middle, high) if middle > 0 and log_capital(middle) > needed else (low, middle)
    return least + low


def user_means(contributions: Floats, user: NDArray[Any]) -> Floats:
    """Return the mean of each user's contributions, (users,): independent numbers, where sessions of a user are not."""
    sums, counts = user_sums(contributions, user)
    means: Floats = sums / counts
    return means


def user_sums(contributions: Floats, user: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the sum of each user's contributions and their number, (users,) each."""
    _, index = np.unique(user, return_inverse=True)
    return np.bincount(index, contributions).astype(np.float64), np.bincount(index).astype(np.float64)


def _require_valid(contributions: Floats, level: float) -> None:
    if not 0 < level < 1:
        raise OptionError(f"level: must be between 0 and 1, got {level}")
    if not len(contributions) or not np.isfinite(contributions).all():
        raise InputError("interval: contributions must be finite numbers, at least one")
