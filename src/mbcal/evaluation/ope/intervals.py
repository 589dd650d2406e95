"""Intervals around a mean of contributions, one a session, where a user's sessions are alike.

*Bootstrap*: right in the limit. It needs some hundred users and weights of which no handful decides the mean; where the
effective sample is small it has not seen the sessions that matter and is too short.

*Empirical Bernstein* (Maurer and Pontil, 2009): right for any number of users and any distribution within bounds that were
known beforehand. Several times wider. It speaks of the mean of what it is given: clipped weights make a clipped value, which
for rewards of 0 or more is at most the value itself, so that the lower bound stays honest and the upper one does not.
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

Method = Literal["bca", "percentile", "empirical bernstein"]
AT_ONCE = 1 << 16
"""Draws at a time: what stays in a cache."""
RESAMPLES = 2000
"""With a few hundred, chance in the draws themselves costs a percent of coverage."""


@dataclass(frozen=True)
class Estimate:
    """A value per session, by one estimator, with an interval."""

    of: str
    """Whose value: `policy`, `baseline`, `log`, or `difference`."""
    name: str
    """The estimator."""
    value: float
    low: float
    high: float
    method: Method
    """How the interval was made."""
    ess: float
    """Effective sessions (Kish); of a difference, the smaller of the two."""
    n: int
    weight: float = 1.0
    """Mean weight before clipping. Its expectation is 1: far from it, sessions that matter are missing and no interval
    of the bootstrap is to be believed."""
    clip: float | None = None
    """Where weights were cut off."""
    clipped: float = 0.0
    """Share of sessions this happened to."""

    def __str__(self) -> str:
        text = f"{self.of} {self.name} {self.value:.3f} [{self.low:.3f}, {self.high:.3f}] {self.method}"
        return f"{text}, {self.ess:.1f} of {self.n} sessions effective, mean weight {self.weight:.2f}"


def bootstrap(
    contributions: Floats,
    user: NDArray[Any],
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    method: Literal["bca", "percentile"] = "bca",
) -> tuple[float, float]:
    """Users drawn with replacement, all their sessions with them; the mean per session of each draw, and its quantiles.

    BCa (Efron, 1987) corrects the quantiles for bias and skew: z -> Phi(z0 + (z0 + z) / (1 - a (z0 + z))), z0 from the share
    of draws below the estimate, a from the skew of the estimate with one user left out. One user alone: infinite.
    """
    low, high = bootstrap_all(contributions[None], user, seed=seed, level=level, resamples=resamples, method=method)[0]
    return float(low), float(high)


def bootstrap_all(
    contributions: Floats,
    user: NDArray[Any],
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    method: Literal["bca", "percentile"] = "bca",
) -> Floats:
    """The same for several estimators (K, N), on the same draws of users: (K, 2)."""
    _require(contributions, level)
    if resamples < 1:
        raise OptionError(f"resamples: must be at least 1, got {resamples}")
    by_user = [user_sums(each, user) for each in contributions]
    sums, counts = np.stack([each for each, _ in by_user]), by_user[0][1]
    if len(counts) < 2:
        return np.tile([-np.inf, np.inf], (len(contributions), 1))
    means = _resampled(sums, counts, resamples, np.random.default_rng(derive_seed(seed, "bootstrap")))
    tails = np.array([0.5 - level / 2, 0.5 + level / 2])
    made = np.empty((len(sums), 2))
    for place, each in enumerate(means):
        read = _corrected(tails, each, sums[place], counts) if method == "bca" else tails
        # the (B + 1) p-th of B draws: other conventions are too short where draws are few
        made[place] = np.quantile(each, read, method="weibull")
    return made


def _resampled(sums: Floats, counts: Floats, resamples: int, draw: np.random.Generator) -> Floats:
    """(K, resamples): means per session of as many users as there are, drawn with replacement."""
    users, means = len(counts), np.empty((len(sums), resamples))
    block = max(AT_ONCE // users, 1)
    for begin in range(0, resamples, block):
        size = min(block, resamples - begin)
        drawn = draw.integers(0, users, (size, users)) + np.arange(size)[:, None] * users
        times = np.bincount(drawn.ravel(), minlength=size * users).reshape(size, users).astype(np.float64)
        means[:, begin : begin + size] = sums @ times.T / (times @ counts)
    return means


def _corrected(tails: Floats, means: Floats, sums: Floats, counts: Floats) -> Floats:
    """The tails at which BCa reads the draws."""
    value = sums.sum() / counts.sum()
    below = float((means < value).mean() + (means == value).mean() / 2)
    normal, edge = NormalDist(), 0.5 / len(means)
    bias = normal.inv_cdf(min(max(below, edge), 1 - edge))
    without = (sums.sum() - sums) / (counts.sum() - counts)
    gap = without.mean() - without
    spread = float(np.square(gap).sum()) ** 1.5
    skew = float((gap**3).sum()) / (6 * spread) if spread else 0.0
    moved = [bias + normal.inv_cdf(tail) for tail in tails]
    return np.array([normal.cdf(bias + z / (1 - skew * z)) for z in moved])


def empirical_bernstein(
    contributions: Floats, user: NDArray[Any], least: float, most: float, *, level: float = 0.95
) -> tuple[float, float]:
    """mean -/+ sqrt(2 V ln(2/d) / n) + 7 R ln(2/d) / (3 (n - 1)), each side with d = (1 - level) / 2.

    Contributions lie in `least` … `most`, known beforehand. The n independent numbers are users, each with the sum of its
    sessions over the mean number of sessions a user; V is their variance, R how far apart they can be, the numbers of
    sessions being given. For a one-sided bound of 95% take level = 0.9.
    """
    _require(contributions, level)
    room = 1e-9 * max(abs(least), abs(most), 1.0)
    if contributions.min() < least - room or contributions.max() > most + room:
        found = f"{contributions.min():.6g}..{contributions.max():.6g}"
        raise InputError(f"empirical Bernstein: contributions must lie in {least:.6g}..{most:.6g}, got {found}")
    sums, counts = user_sums(contributions - least, user)
    users = len(sums)
    if users < 2:
        return least, most
    each, width = sums / counts.mean(), (most - least) * float(counts.max() / counts.mean())
    unlikely = math.log(4 / (1 - level))
    margin = math.sqrt(2 * float(each.var(ddof=1)) * unlikely / users) + 7 * width * unlikely / (3 * (users - 1))
    mean = float(contributions.mean())
    return max(mean - margin, least), min(mean + margin, most)


def user_sums(contributions: Floats, user: NDArray[Any]) -> tuple[Floats, Floats]:
    """(users,) each: the sum of a user's contributions, and how many they are."""
    _, place = np.unique(user, return_inverse=True)
    return np.bincount(place, contributions).astype(np.float64), np.bincount(place).astype(np.float64)


def _require(contributions: Floats, level: float) -> None:
    if not 0 < level < 1:
        raise OptionError(f"level: must be between 0 and 1, got {level}")
    if not len(contributions) or not np.isfinite(contributions).all():
        raise InputError("interval: contributions must be finite numbers, at least one")
