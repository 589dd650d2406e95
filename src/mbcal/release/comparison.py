"""Two versions compared on the sessions of a decision log: means, differences, and the result as a sentence.

Sessions are compared within blocks of time (`blocks`), so that neither the hour nor a share that is changed misleads. Users
are compared by what they earn in whole days, since a version may change when they come. No torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, nearest
from mbcal.evaluation.sequential import SequentialDifference, UserSums, compare_means, sessions_needed
from mbcal.metrics import Mean
from mbcal.release.blocks import Blocks
from mbcal.release.outcomes import Outcomes
from mbcal.release.plain import finite, rounded

ALPHA = 0.025
"""Probability with which each of the two limits that hold at all looks is wrong: together an interval of 95%."""
WORTH_SEEING = 0.05
"""Difference, as a share of the reward, for which the missing sessions are named."""
MAX_SWITCHED = 0.01
"""Share of users who may have met both versions since the share of the canary was last changed, as one who used the session
of another user. More of them show another change."""
DAY = 86_400_000_000
"""Microseconds of a day."""


@dataclass(frozen=True)
class Gap:
    """The difference between two versions in one measure, a - b, per session."""

    value: float
    ci_low: float
    """Lower end of the 95% interval, right at one look whose time was fixed in advance."""
    ci_high: float
    """Upper end."""
    anytime_low: float
    """Lower end of the anytime-valid 95% interval, which holds at all looks together."""
    anytime_high: float
    """Upper end."""
    anytime_low_rare: float
    """Lower end of the latter if rewards too rare to have been met are allowed for (`SequentialDifference.safe_lower`)."""
    share: float | None
    """The value as a share of b's mean; None if that is 0."""
    base: float
    """b's mean."""


@dataclass(frozen=True)
class Side:
    """One version in a comparison, on the sessions that count. Means are weighted by block, intervals clustered by user."""

    version: str
    sessions: int
    users: int
    reward: Mean
    length: Mean
    size: float
    """The sum of rewards without their signs, less `cut`."""
    cut: float
    """What sessions earned beyond the bounds of a session, without signs. It does not count."""
    most_cut: float
    """What was cut of the user of whom most was."""
    negative: float
    """The negative rewards of a session, without their sign; weighted as the mean of the reward."""
    answered: float
    """The share of the returned items that have feedback."""


@dataclass(frozen=True)
class VersionComparison:
    """Two versions on sessions that began in the same time."""

    a: Side
    b: Side
    reward: Gap
    length: Gap
    feedback_gap: Gap
    """Steps with feedback beyond what b's share of items with feedback makes of the items that were returned. Below 0 where
    feedback of a is lost, however long its sessions are."""
    visits: Gap
    """Sessions per named user in the whole days since `assignment_fixed_since`. Unknown while no such user has come back."""
    user_reward: Gap
    """Reward per named user in these days, of all sessions together; unknown likewise. It also has what a version earns or
    loses since its users come at other hours, which cancels within blocks of sessions."""
    earlier_visits: Gap | None
    """Those of the trial before; None if the share was not changed. Users whom a version drove away are missing later."""
    exploration: Gap
    """Epsilon of sessions."""
    reward_difference: SequentialDifference
    """The difference in reward, for limits at other levels."""
    is_concurrent: bool
    """Whether the versions served at the same time; if not, they are not compared by block, and a difference may be due to
    the time."""
    min_reward: float
    """The smallest reward that a session may have; below 0 where a behaviour has a negative one."""
    max_reward: float
    """The largest."""
    min_step_reward: float
    """The smallest reward of a step, at most 0."""
    began: int
    """When a's first session began, in microseconds since 1970."""
    assignment_fixed_since: int
    """Since when users have one version each, likewise: the share was last changed before. Not before `began`."""
    last: int
    """When the last session began, likewise."""
    days: float
    """Effective number of days since `assignment_fixed_since` in which a served: (sum of n)² / (sum of n²) of a's sessions n
    by day. Days without traffic do not count, and those with little count little."""

    @property
    def answer(self) -> str:
        """`more`, `less` or `cannot tell`: whether a earns more than b, by the limits that hold at all looks."""
        if self.reward.anytime_low > 0:
            return "more"
        return "less" if self.reward.anytime_high < 0 else "cannot tell"

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
        gap, low, high = self.reward, self.reward.anytime_low, self.reward.anytime_high
        if self.answer != "cannot tell":
            limit, side = (low, "at least") if self.answer == "more" else (high, "at most")
            change = f"{_percent(gap.share)} ({gap.value:+.3g} per session, {side} {limit:+.3g})"
            text = f"{self.a.version} earns {self.answer} than {self.b.version}: {change}"
            if low > 0 >= gap.anytime_low_rare:
                text += f"; {self.caution()}"
        else:
            between = f" (between {low:+.3g} and {high:+.3g} per session)" if np.isfinite(low) and low < high else ""
            text = f"cannot tell yet{between}; {self._what_is_missing(share)}"
        if self.a.cut or self.b.cut:
            text += f"; of the rewards of very long sessions {self.a.cut:.4g} and {self.b.cut:.4g} do not count"
        if not self.is_concurrent:
            text += "; the versions did not serve at the same time, so a difference may be due to the time"
        return text

    def _what_is_missing(self, share: float) -> str:
        """Return in words what would show a difference of this share of b's reward."""
        if float(self.reward_difference.stderr) == 0:
            return "the rewards of these sessions do not vary"
        missing = self.sessions_missing(share)
        if missing < 1:
            return f"these sessions would show a difference of {share:.0%}"
        more = f"about {rounded(missing)} more sessions" if np.isfinite(missing) else "more sessions of more users"
        return f"{more} for a difference of {share:.0%}"

    def caution(self) -> str:
        """Return in words why more was seen to be earned, and yet is not certain."""
        most = f"{self.max_reward:.4g}"
        return f"too few sessions to exclude that {self.b.version} earns rare rewards, of up to {most}, not met yet"

    def as_dict(self, share: float = WORTH_SEEING) -> dict[str, Any]:
        """Return plain values for JSON, with the sessions missing for a difference of this share; None if not finite."""
        values: dict[str, Any] = {
            name: asdict(getattr(self, name))
            for name in ("a", "b", "reward", "length", "visits", "user_reward", "exploration")
        }
        missing = {"sessions_missing": self.sessions_missing(share), "for_difference": share}
        answer = {"answer": self.answer, "sentence": self.sentence(share), "is_concurrent": self.is_concurrent}
        plain: dict[str, Any] = finite({**values, **missing, **answer})
        return plain


def compare_versions(outcomes: Outcomes, a: str, b: str) -> VersionComparison:
    """Compare the reward per session and the length of sessions of two versions.

    Where both served at the same time (a canary), they are compared block by block, and only sessions of blocks in which
    both served count. Otherwise all do.

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
    blocks = Blocks.of(outcomes, is_a, is_b)
    outcomes, cut = _capped(outcomes)
    side_a, side_b = (_side(outcomes, name, chosen, blocks, cut) for name, chosen in ((a, is_a), (b, is_b)))
    below, above = side_a.reward.mean - outcomes.min_reward, outcomes.max_reward - side_b.reward.mean
    reward_a, reward_b = (blocks.sums(outcomes, chosen, outcomes.reward) for chosen in (is_a, is_b))
    length_a, length_b = (blocks.sums(outcomes, chosen, outcomes.length) for chosen in (is_a, is_b))
    reward, length = compare_means(reward_a, reward_b, below, above), compare_means(length_a, length_b)
    offered = outcomes.length if outcomes.offered is None else outcomes.offered
    beyond = outcomes.length - offered * (outcomes.length[is_b].sum() / max(offered[is_b].sum(), 1))
    beyond_a, beyond_b = (blocks.sums(outcomes, chosen, beyond) for chosen in (is_a, is_b))
    epsilon_a, epsilon_b = (blocks.sums(outcomes, chosen, outcomes.epsilon) for chosen in (is_a, is_b))
    began, named = int(outcomes.began[is_a].min()), (is_a & outcomes.is_named, is_b & outcomes.is_named)
    fixed_since, ones = _assignment_fixed_since(outcomes, *named, began), np.ones(len(outcomes))
    last = int(outcomes.began[is_a | is_b].max())
    until = fixed_since + max((last - fixed_since) // DAY, 1) * DAY  # whole days: a version may move visits within one
    return VersionComparison(
        a=side_a,
        b=side_b,
        reward=_gap(reward, side_b.reward.mean),
        length=_gap(length, side_b.length.mean),
        feedback_gap=_gap(compare_means(beyond_a, beyond_b), side_b.length.mean),
        visits=_per_user(outcomes, *named, ones, fixed_since, until),
        user_reward=_per_user(outcomes, *named, outcomes.reward, fixed_since, until),
        earlier_visits=_per_user(outcomes, *named, ones, began, fixed_since, in_blocks=True)
        if fixed_since > began
        else None,
        exploration=_gap(compare_means(epsilon_a, epsilon_b), float(outcomes.epsilon[is_b].mean())),
        reward_difference=reward,
        is_concurrent=blocks.is_concurrent,
        min_reward=outcomes.min_reward,
        max_reward=outcomes.max_reward,
        min_step_reward=outcomes.min_step_reward,
        began=began,
        assignment_fixed_since=fixed_since,
        last=last,
        days=_effective_days(outcomes.began[is_a], fixed_since),
    )


def _effective_days(began: NDArray[np.int64], since: int) -> float:
    """The effective number of days in which sessions began since a time (Kish), 0 without any."""
    counts = np.bincount((began[began >= since] - since) // DAY).astype(np.float64)
    return float(counts.sum() ** 2 / (counts**2).sum()) if counts.any() else 0.0


def _capped(outcomes: Outcomes) -> tuple[Outcomes, NDArray[np.float64]]:
    """Return the sessions with rewards within the bounds, and what was cut of each (N,), without signs.

    One visit with a thousand rewards would hide any difference. The limits stay valid: the bounds depend on the lengths of
    all sessions together and hold for both versions alike, so rewards of equal versions are equally distributed after the
    cut; and they approach constants as sessions are met.
    """
    reward = np.clip(outcomes.reward, outcomes.min_reward, outcomes.max_reward)
    cut = np.abs(outcomes.reward - reward)
    return replace(outcomes, reward=reward, size=outcomes.size - cut), cut


def _sessions_of(outcomes: Outcomes, name: str) -> NDArray[np.bool_]:
    if name not in outcomes.versions:
        known = ", ".join(outcomes.versions) or "none"
        hint = nearest(name, outcomes.versions)
        raise InputError(f"{name}: no finished session in the log; versions with sessions are {known}.{hint}")
    chosen: NDArray[np.bool_] = outcomes.version == outcomes.versions.index(name)
    return chosen


def _side(outcomes: Outcomes, name: str, chosen: NDArray[np.bool_], blocks: Blocks, cut: NDArray[np.float64]) -> Side:
    rows = np.flatnonzero(chosen & (blocks.weight > 0))
    users, weights = outcomes.user[rows], blocks.weight[rows]
    reward, length, negative = (
        replace(UserSums.of(values[rows], users, len(outcomes.users), weights).mean(), count=len(rows))
        for values in (outcomes.reward, outcomes.length, (outcomes.size - outcomes.reward) / 2)
    )
    size, cut_of_users = float(outcomes.size[rows].sum()), np.bincount(users, cut[rows])
    lost, most = float(cut_of_users.sum()), float(cut_of_users.max(initial=0.0))
    offered = outcomes.length if outcomes.offered is None else outcomes.offered
    answered = float(outcomes.length[rows].sum() / max(offered[rows].sum(), 1))
    return Side(name, len(rows), len(np.unique(users)), reward, length, size, lost, most, negative.mean, answered)


def _assignment_fixed_since(outcomes: Outcomes, is_a: NDArray[np.bool_], is_b: NDArray[np.bool_], first: int) -> int:
    """Return since when users have one version each, except a share of `MAX_SWITCHED`; not before a's first session.

    When the share is changed, users get the other version. So the last change was after the last session of those who got
    the other version later, and not after the next session of any of them. Who they are does not depend on what the other
    version does, since they have come back already.
    """
    rows = np.flatnonzero(is_a | is_b)
    rows = rows[np.lexsort((outcomes.began[rows], outcomes.user[rows]))]
    user, began = outcomes.user[rows], outcomes.began[rows]
    switches = np.flatnonzero((user[1:] == user[:-1]) & (is_a[rows[1:]] != is_a[rows[:-1]]))
    switches = switches[np.append(user[switches[1:]] != user[switches[:-1]], True)] if len(switches) else switches
    n_allowed = int(MAX_SWITCHED * len(np.unique(user)))
    if len(switches) <= n_allowed:
        return first
    before, after = int(np.sort(began[switches])[-1 - n_allowed]), began[switches + 1]
    return max(first, int(after[after > before].min(initial=began.max())))


def _per_user(
    outcomes: Outcomes,
    is_a: NDArray[np.bool_],
    is_b: NDArray[np.bool_],
    values: NDArray[np.float64],
    since: int,
    until: int,
    in_blocks: bool = False,
) -> Gap:
    """Sums over the sessions of a user, compared by the version that the user met first.

    Not without those who met both: users who came back would be missing.

    Args:
        outcomes: N sessions.
        is_a: (N,) whether one is of version a.
        is_b: (N,) whether it is of b.
        values: (N,) what is summed.
        since: Sessions that began before this time do not count.
        until: Nor do those that began then or later.
        in_blocks: Compare users whose first sessions began one after the other, who had as much time to come back: needed if
            the share was changed in this time. If it was not, it would only hide what a version does to the hour of that
            session, which need not be the first one that the user has with it.

    Returns:
        The difference per user; unknown if nobody came back, as where requests name no user.
    """
    rows = np.flatnonzero((is_a | is_b) & (outcomes.began >= since) & (outcomes.began < until))
    users, first, place = np.unique(outcomes.user[rows], return_index=True, return_inverse=True)
    is_a, is_b, user = is_a[rows[first]], is_b[rows[first]], np.arange(len(users), dtype=np.int32)
    by_user = replace(outcomes, version=is_b.astype(np.int32), user=user, began=outcomes.began[rows[first]])
    is_known = is_a.any() and is_b.any() and len(users) < len(rows)
    blocks = Blocks.of(by_user, is_a, is_b) if is_known and in_blocks else Blocks.one(is_a | is_b)
    if not (is_known and blocks.is_concurrent):
        unknown = -np.inf, np.inf
        return Gap(0.0, *unknown, *unknown, anytime_low_rare=-np.inf, share=None, base=0.0)
    sums = np.bincount(place, values[rows])
    sums_a, sums_b = (blocks.sums(by_user, chosen, sums) for chosen in (is_a, is_b))
    return _gap(compare_means(sums_a, sums_b), float(sums[is_b].mean()))


def _gap(difference: SequentialDifference, base: float) -> Gap:
    value, (ci_low, ci_high) = float(difference.value), difference.interval()
    return Gap(
        value=value,
        ci_low=float(ci_low),
        ci_high=float(ci_high),
        anytime_low=float(difference.lower(ALPHA)),
        anytime_high=float(difference.upper(ALPHA)),
        anytime_low_rare=float(difference.safe_lower(ALPHA)),
        share=value / abs(base) if base else None,
        base=base,
    )


def _percent(share: float | None) -> str:
    return "from nothing" if share is None else f"{share:+.1%}"
