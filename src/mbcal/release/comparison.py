"""Two versions compared on the sessions of a decision log: means, differences, and the result as a sentence. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, nearest
from mbcal.evaluation.sequential import Difference, UserSums, compare_means, sessions_needed
from mbcal.metrics import Mean
from mbcal.release.outcomes import Outcomes

ALPHA = 0.025
"""Probability with which each of the two limits that hold at all looks is wrong: together an interval of 95%."""
WORTH_SEEING = 0.05
"""Difference, as a share of the reward, for which the missing sessions are named."""


@dataclass(frozen=True)
class Gap:
    """The difference between two versions in one measure, a - b, per session."""

    value: float
    low: float
    """Lower end of the 95% interval at one look."""
    high: float
    """Upper end."""
    lower: float
    """Lower end of the 95% interval that holds at all looks together."""
    upper: float
    """Upper end."""
    share: float | None
    """The value as a share of b's mean; None if that is 0."""


@dataclass(frozen=True)
class Side:
    """One version in a comparison. Intervals are clustered by user."""

    version: str
    sessions: int
    users: int
    reward: Mean
    length: Mean


@dataclass(frozen=True)
class VersionComparison:
    """Two versions on sessions that began in the same time."""

    a: Side
    b: Side
    reward: Gap
    length: Gap
    reward_difference: Difference
    """The difference in reward, for limits at other levels."""
    length_difference: Difference
    together: bool
    """Whether the versions served at the same time; if not, a difference may be due to the time."""

    @property
    def answer(self) -> str:
        """`more`, `less` or `cannot tell`: whether a earns more than b, by the limits that hold at all looks."""
        if self.reward.lower > 0:
            return "more"
        return "less" if self.reward.upper < 0 else "cannot tell"

    def sessions_missing(self, share: float = WORTH_SEEING) -> float:
        """Return about how many more sessions would show a difference of this share of b's reward; may be infinite."""
        sessions, effect = self.a.sessions + self.b.sessions, share * abs(self.b.reward.mean)
        if not (sessions and effect > 0):
            return float("inf")
        return max(sessions_needed(self.reward_difference, sessions, effect, ALPHA) - sessions, 0.0)

    def sentence(self, share: float = WORTH_SEEING) -> str:
        """Return the result in words.

        Args:
            share: Difference, as a share of b's reward, for which the missing sessions are named.
        """
        gap = self.reward
        if self.answer != "cannot tell":
            limit, side = (gap.lower, "at least") if self.answer == "more" else (gap.upper, "at most")
            change = f"{_percent(gap.share)} ({gap.value:+.3g} per session, {side} {limit:+.3g})"
            text = f"{self.a.version} earns {self.answer} than {self.b.version}: {change}"
        else:
            missing = self.sessions_missing(share)
            more = f"about {_rounded(missing)} more sessions" if np.isfinite(missing) else "more sessions of more users"
            between = f" (between {gap.lower:+.3g} and {gap.upper:+.3g} per session)" if np.isfinite(gap.lower) else ""
            text = f"cannot tell yet{between}; {more} for a difference of {share:.0%}"
        if not self.together:
            text += "; the versions did not serve at the same time, so a difference may be due to the time"
        return text

    def as_dict(self, share: float = WORTH_SEEING) -> dict[str, Any]:
        """Return plain values for JSON, with the sessions missing for a difference of this share; None if not finite."""
        values: dict[str, Any] = {name: asdict(getattr(self, name)) for name in ("a", "b", "reward", "length")}
        missing = {"sessions_missing": self.sessions_missing(share), "for_difference": share}
        answer = {"answer": self.answer, "sentence": self.sentence(share), "together": self.together}
        plain: dict[str, Any] = _plain({**values, **missing, **answer})
        return plain


def compare_versions(outcomes: Outcomes, a: str, b: str) -> VersionComparison:
    """Compare the reward per session and the length of sessions of two versions.

    Where both served at the same time (a canary), only sessions that began in that time count. Otherwise all do.

    Args:
        outcomes: Finished sessions.
        a: A version.
        b: The version it is compared with.

    Raises:
        InputError: If the versions are the same, or one has no finished session.
    """
    if a == b:
        raise InputError(f"{a}: cannot be compared with itself; name two versions")
    is_a, is_b = (_sessions_of(outcomes, name) for name in (a, b))
    period, together = _common_period(outcomes, is_a, is_b)
    sides = [(name, np.flatnonzero(chosen & period)) for name, chosen in ((a, is_a), (b, is_b))]
    rewards = [_sums(outcomes, rows, outcomes.reward) for _, rows in sides]
    lengths = [_sums(outcomes, rows, outcomes.length) for _, rows in sides]
    reward, length = compare_means(*rewards), compare_means(*lengths)
    side_a, side_b = (
        Side(name, len(rows), len(np.unique(outcomes.user[rows])), earned.mean(), steps.mean())
        for (name, rows), earned, steps in zip(sides, rewards, lengths, strict=True)
    )
    return VersionComparison(
        a=side_a,
        b=side_b,
        reward=_gap(reward, side_b.reward.mean),
        length=_gap(length, side_b.length.mean),
        reward_difference=reward,
        length_difference=length,
        together=together,
    )


def _sessions_of(outcomes: Outcomes, name: str) -> NDArray[np.bool_]:
    if name not in outcomes.versions:
        known = ", ".join(outcomes.versions) or "none"
        hint = nearest(name, outcomes.versions)
        raise InputError(f"{name}: no finished session in the log; versions with sessions are {known}.{hint}")
    chosen: NDArray[np.bool_] = outcomes.version == outcomes.versions.index(name)
    return chosen


def _common_period(outcomes: Outcomes, is_a: NDArray[np.bool_], is_b: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], bool]:
    """Sessions that began while both versions served; all if that is less than half of the version with fewer."""
    begin, end = (
        extreme(other(outcomes.began[is_a]), other(outcomes.began[is_b]))
        for extreme, other in ((max, np.min), (min, np.max))
    )
    common = (outcomes.began >= begin) & (outcomes.began <= end)
    together = 2 * min((is_a & common).sum(), (is_b & common).sum()) >= min(is_a.sum(), is_b.sum())
    return (common, True) if together else (np.ones(len(outcomes), np.bool_), False)


def _sums(outcomes: Outcomes, rows: NDArray[np.int64], values: NDArray[Any]) -> UserSums:
    return UserSums.of(values[rows], outcomes.user[rows], len(outcomes.users))


def _gap(difference: Difference, base: float) -> Gap:
    low, high = difference.interval()
    value, lower, upper = float(difference.value), float(difference.lower(ALPHA)), float(difference.upper(ALPHA))
    return Gap(value, float(low), float(high), lower, upper, value / abs(base) if base else None)


def _percent(share: float | None) -> str:
    return "from nothing" if share is None else f"{share:+.1%}"


def _rounded(count: float) -> str:
    """A count with two significant digits."""
    digits = len(str(int(count))) - 2
    return f"{round(count, -max(digits, 0)):,.0f}"


def _plain(value: Any) -> Any:
    """The value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
