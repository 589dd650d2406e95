"""Whether a canary is promoted or withdrawn, given what its sessions and those of the live version earned. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mbcal.errors import OptionError
from mbcal.release.comparison import Side, VersionComparison
from mbcal.release.ignored import Ignored, PartialVisits
from mbcal.release.outcomes import SessionRule
from mbcal.release.plain import rounded

DAY = 86400.0
Action = Literal["promote", "withdraw", "wait"]
Decision = tuple[Action, str]
"""What to do, and why in words."""
MAX_PARTIAL = 0.01
"""Nothing is promoted where `PartialVisits.count` is more than this share of a version's compared sessions."""
MAX_PARTIAL_REWARD = 0.03
"""Nor where `PartialVisits.reward` is more than this share of their reward, without signs: as much may still come. Up
to there a canary must earn more by what is known of it (`_hidden_loss`)."""
ENOUGH_DAYS = 3.0
"""Days with about as much traffic, of those that a canary has to serve at least: beyond these any count."""
MAX_STEPS_LOST = 0.05
"""Where rewards may be negative, nothing is promoted while the feedback on more than this share of steps may be lost."""
REPORTS_ALL = 0.9
"""Where so many items of a canary have feedback, clients report on all items."""
LEAST_EXPLORATION = 1e-6
"""Differences of epsilon that are no more than rounding."""
SEND_NAMES = "send a session with every request of a visit, and the user with all of them or with none"
PARTIAL_KINDS = {
    "missing_start": ("sessions have no beginning in the log", SEND_NAMES),
    "unattributed": ("decisions have neither session nor user", SEND_NAMES),
    "late": (
        "decisions have rewards that came after the end of their session",
        "give a longer --lifetime, or --idle, and send what ends a visit last",
    ),
    "unmatched": ("visits may be known by user alone at first and by session alone later", SEND_NAMES),
    "changed": (
        "further behaviours were reported on items that had one, as a purchase after a click",
        "the first one counts: report one behaviour per item, when it is final",
    ),
}
"""By field of `PartialVisits`: what is counted, and what to do about it."""
UNSERVED = (
    "no finished sessions of both versions yet: a session is finished --lifetime seconds after its last record, and servers "
    "started with --canary give the canary some"
)
"""Why nothing is known of a trial."""


@dataclass(frozen=True)
class CanaryConfig:
    """When a canary is promoted or withdrawn without a person."""

    promote_after: int = 200
    """Fewest finished sessions of the canary before it is promoted."""
    withdraw_below: float = 0.0
    """Withdrawn when its reward is surely below the live version's by more than this share of it, in [0, 1)."""
    min_seconds: float = 3 * DAY
    """Seconds that a canary serves a share of users before it is promoted. What users do later cannot be seen."""
    max_seconds: float = 7 * DAY
    """Seconds after which a trial ends."""
    undecided: Action = "withdraw"
    """What happens then: `withdraw`, `promote`, or `wait` for a person. A canary is promoted only if `promote_after` of its
    sessions were compared and nothing but its reward is undecided; if not, it waits. That its users earned less so far
    counts only where its sessions surely earn more: users of an equal one earn less in half of trials."""
    promote_alpha: float = 0.05
    """Probability that a canary no better than the live version is ever promoted by its reward."""
    withdraw_alpha: float = 0.1
    """Probability that a canary no worse is ever withdrawn by its reward. An error costs less here than a late end."""
    user_loss: float = 0.1
    """Promoted only if a user earned no less than one of the live version, and surely no less than that less this share, in
    [0, 1]. With 1 that is not asked, for requests that name no user."""
    sessions: SessionRule = field(default_factory=SessionRule)
    """What a session is; its horizon is taken from the live version."""

    def __post_init__(self) -> None:
        if self.promote_after < 1 or self.max_seconds <= 0 or not 0 <= self.withdraw_below < 1:
            raise OptionError("canary: promote_after must be at least 1, max_seconds positive, withdraw_below in [0, 1)")
        if not 0 <= self.min_seconds <= self.max_seconds:
            days = f"{self.min_seconds / DAY:.4g} (--canary-min-days) and {self.max_seconds / DAY:.4g} (--canary-max-days)"
            raise OptionError(f"canary: a trial cannot last at least and at most {days} days; give fewer days at least")
        if not 0 <= self.user_loss <= 1:
            raise OptionError(f"canary: user_loss (--user-loss) must be in [0, 1], got {self.user_loss:g}")
        if not (0 < self.promote_alpha < 0.5 and 0 < self.withdraw_alpha < 0.5):
            raise OptionError("canary: promote_alpha and withdraw_alpha must be in (0, 0.5)")


def losses_of(comparison: VersionComparison) -> list[str]:
    """Return in words what speaks against a version (a) that may earn more per session; empty if nothing does."""
    earlier = comparison.earlier_visits
    return [
        *(["its sessions are shorter"] if comparison.length.anytime_high < 0 else []),
        *(["its users have fewer sessions"] if comparison.visits.ci_high < 0 else []),
        *(["its users earn less in all their sessions"] if comparison.user_reward.ci_high < 0 else []),
        *(
            ["its users had fewer sessions before its share was changed"]
            if earlier is not None and earlier.ci_high < 0
            else []
        ),
        *([f"it explored less than {comparison.b.version}"] if comparison.exploration.ci_high < -LEAST_EXPLORATION else []),
    ]


def judge_canary(
    comparison: VersionComparison | None,
    config: CanaryConfig,
    elapsed: float,
    ignored: Ignored | None = None,
    served: float | None = None,
) -> Decision:
    """Decide about a canary.

    Args:
        comparison: The canary (a) against the live version (b); None while one has no finished session.
        config: The limits.
        elapsed: Seconds since the trial began.
        ignored: What did not count in the trial; by default nothing.
        served: Seconds since the canary's first session began, or its share was changed
            (`VersionComparison.assignment_fixed_since`); by default as long as the trial.

    Returns:
        What to do, and why in words.
    """
    ignored, is_over = ignored or Ignored(), elapsed > config.max_seconds
    not_whole = _partial_visits_problem(comparison, ignored) or _lost_records_problem(ignored)
    words, may_promote = [UNSERVED], False
    if comparison is not None:
        if withdrawal := _withdrawal(comparison, config, ignored):
            return withdrawal
        difference, sentence, caution = comparison.reward_difference, comparison.sentence(), comparison.caution()
        known = float(difference.lower(config.promote_alpha))
        with_rare = float(difference.safe_lower(config.promote_alpha))
        sure = with_rare - sum(_hidden_loss(comparison, ignored))
        blockers = _blockers(comparison, config, is_over)
        less = _user_reward_problem(comparison, config.user_loss) if sure > 0 else ""
        missing = _seconds_missing(comparison, config, elapsed if served is None else served)
        is_enough = comparison.is_concurrent and comparison.a.sessions >= config.promote_after
        is_ready = is_enough and not (not_whole or blockers)
        may_promote = is_ready and missing <= 0 and not less
        if may_promote and sure > 0:
            return "promote", f"earns more: {_size(comparison)}, at least {sure:+.3g}, after {_counts(comparison)}"
        words = [_counts(comparison), sentence]
        if is_ready and sure > 0 and missing > 0:
            share_changed = comparison.assignment_fixed_since > comparison.began
            words.append(_still_waits(missing, share_changed, left=config.max_seconds - elapsed))
        if known > 0 >= with_rare and caution not in sentence:
            words.append(caution)
        if known > 0 >= sure:
            words += _hidden_hints(comparison, ignored)
        if sure > 0 or is_over:
            words += blockers or ([less] if less else [])
    if not_whole:
        words.append(not_whole)
    return _end_of_trial(config, elapsed, may_promote, words) if is_over else ("wait", "; ".join(words))


def _withdrawal(comparison: VersionComparison, config: CanaryConfig, ignored: Ignored) -> Decision | None:
    """Return the decision on a canary that surely earns less per session; None if it may earn as much."""
    upper = float(comparison.reward_difference.upper(config.withdraw_alpha)) + _hidden_gain(comparison, ignored)
    if not (comparison.is_concurrent and upper < -config.withdraw_below * abs(comparison.b.reward.mean)):
        return None
    size, counts = _size(comparison), _counts(comparison)
    if more := _what_users_gain(comparison, config.withdraw_below):
        return "wait", f"earns less per session: {size}, after {counts}; but {more}, so a person has to decide"
    return "withdraw", f"earns less: {size}, at most {upper:+.3g}, after {counts}{_feedback_hint(comparison)}"


def _blockers(comparison: VersionComparison, config: CanaryConfig, is_over: bool) -> list[str]:
    """Return in words what keeps a canary from being promoted, however much its sessions earn."""
    if losses := " and ".join(losses_of(comparison)):
        is_withdrawn = is_over and config.undecided == "withdraw"
        return [losses if is_withdrawn else f"{losses}, so a person has to decide"]
    problems = _user_loss_problem(comparison, config.user_loss), _missing_feedback_problem(comparison)
    return [problem for problem in problems if problem]


def _end_of_trial(config: CanaryConfig, elapsed: float, may_promote: bool, words: list[str]) -> Decision:
    """Return what becomes of a canary that is still undecided when its trial ends."""
    action: Action = "wait" if config.undecided == "promote" and not may_promote else config.undecided
    return action, f"undecided after {_duration(elapsed)}: {'; '.join(words)}"


def _seconds_missing(comparison: VersionComparison, config: CanaryConfig, served: float) -> float:
    """Return for how many seconds a canary has to serve until it may be promoted; 0 or less if it may be now."""
    days = min(config.min_seconds, ENOUGH_DAYS * DAY) - comparison.days * DAY
    return max(config.min_seconds - served, days)


def _counts(comparison: VersionComparison) -> str:
    """The sessions that were compared, in words."""
    return f"{comparison.a.sessions:,} sessions against {comparison.b.sessions:,} of {comparison.b.version}"


def _size(comparison: VersionComparison) -> str:
    """The difference in reward, in words."""
    gap = comparison.reward
    return f"{gap.value:+.3g} per session" + ("" if gap.share is None else f" ({gap.share:+.1%})")


def _still_waits(seconds: float, share_changed: bool, left: float) -> str:
    """Say that a canary is better so far, and how long and why it is not promoted all the same, or that time runs out."""
    why = "users met both versions as the share was changed" if share_changed else "rewards may come later than sessions end"
    text = f"better so far; promoted after {_duration(seconds)} more of usual traffic, since {why}"
    return f"{text}; the trial ends before: give more --canary-max-days" if left < seconds else text


def _duration(seconds: float) -> str:
    """A time in the largest unit of which it has one or more."""
    units = (("days", DAY), ("hours", 3600.0), ("minutes", 60.0))
    return next((f"{seconds / size:.1f} {unit}" for unit, size in units if seconds >= size), f"{seconds:.0f} seconds")


def _what_users_gain(comparison: VersionComparison, withdraw_below: float) -> str:
    """Say that users of a canary surely earn more, or come more often and may earn as much; empty if neither."""
    visits, earned = comparison.visits, comparison.user_reward
    if earned.ci_low > 0:
        return f"its users earn more in all their sessions ({earned.value:+.3g} per user)"
    if visits.ci_low > 0 and earned.ci_high >= -withdraw_below * abs(earned.base):
        return f"its users have more sessions ({visits.share:+.1%}), and may earn as much"
    return ""


def _user_loss_problem(comparison: VersionComparison, user_loss: float) -> str:
    """Say that users of a canary may earn less than `user_loss` allows, and what is missing; empty if they do not."""
    earned, spare = comparison.user_reward, comparison.user_reward.value + user_loss * abs(comparison.user_reward.base)
    if user_loss == 1:
        return ""
    if not math.isfinite(earned.ci_low):
        hint = "send the user with every request, or give --user-loss 1 to do without"
        return f"not promoted, since too little is known of what users earn in all their sessions: {hint}"
    width = earned.value - earned.ci_low
    if width <= spare:
        return ""
    less = f"{-earned.ci_low / abs(earned.base):.0%} less" if earned.base else "less"
    words = f"not promoted, since its users could earn {less} in all their sessions"
    if spare <= 0:
        return words
    users = comparison.a.users + comparison.b.users
    more = rounded(users * (width / spare) ** 2 - users)
    return f"{words}; about {more} more users are needed, fewer with a larger --canary share, none with --user-loss 1"


def _user_reward_problem(comparison: VersionComparison, user_loss: float) -> str:
    """Say that users of a canary earned less, though its sessions earn more; empty if they did not, or nobody asks."""
    earned = comparison.user_reward
    if earned.value >= 0 or user_loss == 1:
        return ""
    return f"not promoted, since its users earned less so far in all their sessions ({earned.value:+.3g} per user)"


def _missing_feedback_problem(comparison: VersionComparison) -> str:
    """Say that feedback may be lost, as one version's items have it less often than the other's; else empty.

    Lost feedback of the canary hides what it costs where rewards can be negative. Lost feedback of the live version makes
    the canary look better, which shows where nearly all items of the canary have some: else users may just do more.
    """
    gap = comparison.feedback_gap
    if comparison.a.answered >= REPORTS_ALL and gap.anytime_low > MAX_STEPS_LOST * gap.base:
        shares = (
            f"{comparison.a.answered:.0%} of its items have feedback and {comparison.b.answered:.0%} of the live version's"
        )
        return f"not promoted, since {shares}, whose rewards may be lost"
    if comparison.min_reward >= 0 or gap.anytime_low >= -MAX_STEPS_LOST * gap.base:
        return ""
    fewer = f"{-gap.anytime_low / gap.base:.0%} fewer" if math.isfinite(gap.anytime_low) and gap.base else "fewer"
    return f"not promoted, since {fewer} of its items could have feedback, and lost feedback may have negative rewards"


def _feedback_hint(comparison: VersionComparison) -> str:
    """Say that a canary has fewer steps with feedback, if it surely has: its feedback may be lost on the way."""
    if comparison.length.anytime_high >= 0:
        return ""
    steps = f"{comparison.a.length.mean:.3g} steps with feedback per session against {comparison.b.length.mean:.3g}"
    return f"; it has {steps}: its sessions are shorter, or its feedback does not arrive"


def _partial_visits_problem(comparison: VersionComparison | None, ignored: Ignored) -> str:
    """Say why sessions of a version may be parts of visits only, and what to do; empty if they are not."""
    if comparison is None:
        partial = [total] if (total := ignored.total()) else []
        found = [_counted_kinds(part) for part in partial]
    else:
        sides = [
            (side, part)
            for side, part in _sides(comparison, ignored)
            if part.count > MAX_PARTIAL * side.sessions or part.reward > MAX_PARTIAL_REWARD * side.size
        ]
        partial = [part for _, part in sides]
        found = [
            f"{_counted_kinds(part)}{f', worth {part.reward:.4g}' if part.reward else ''}, beside "
            f"{side.sessions:,} sessions of {side.version}, worth {side.size:.4g}"
            for side, part in sides
        ]
    kinds = [kind for kind in PARTIAL_KINDS if any(getattr(part, kind) for part in partial)]
    hints = dict.fromkeys(PARTIAL_KINDS[kind][1] for kind in kinds)
    return f"not promoted, since {', and '.join(found)}: {'; '.join(hints)}" if found else ""


def _counted_kinds(partial: PartialVisits) -> str:
    """Say what may belong to other sessions, or would change their rewards."""
    counts = {words: getattr(partial, kind) for kind, (words, _) in PARTIAL_KINDS.items()}
    return ", ".join(f"{count:,} {words}" for words, count in counts.items() if count)


def _lost_records_problem(ignored: Ignored) -> str:
    """Say that the logs have lost records, which may show what a canary costs; empty if they have not."""
    if not ignored.lost:
        return ""
    return f"not promoted, since {ignored.lost:,} records of its trial are lost (mbcal log show): begin it anew"


def _sides(comparison: VersionComparison, ignored: Ignored) -> tuple[tuple[Side, PartialVisits], tuple[Side, PartialVisits]]:
    """Return the canary and the live version, each with its partial visits. Those of neither count for the live one."""
    a, b = comparison.a, comparison.b
    return (a, ignored.total([a.version])), (b, ignored.total(ignored.partial_visits.keys() - {a.version}))


def _hidden_loss(comparison: VersionComparison, ignored: Ignored) -> tuple[float, float, float]:
    """Return the uncounted reward per session that could turn the canary's lead into a loss.

    Returns:
        Reward cut from very long sessions; late rewards and those in partial visits; and negative rewards that the canary
        may have lost with missing feedback. The first two are of the live version, and of the canary too if rewards can be
        negative. The third is at most what the share of items with feedback allows. What further behaviours on an item
        would lower is charged to the canary, too.
    """
    own, live = _sides(comparison, ignored)
    sides = [own, live] if comparison.min_reward < 0 else [live]
    cut = sum(side.cut / side.sessions for side, _ in sides)
    partial = sum(visits.reward / side.sessions for side, visits in sides)
    if comparison.min_reward >= 0:
        partial += own[1].lowered / own[0].sessions
    fewer = max(comparison.b.negative - comparison.a.negative, 0.0)
    steps_lost = max(-comparison.feedback_gap.anytime_low, 0.0)
    most_lost = -comparison.min_step_reward * steps_lost if comparison.min_step_reward else 0.0  # steps may be infinite
    return cut, partial, min(fewer, most_lost)


def _hidden_gain(comparison: VersionComparison, ignored: Ignored) -> float:
    """Return the uncounted reward per session that the canary may have earned.

    Cut rewards without those of the user with most, who must not stop a withdrawal, plus its surplus of late and
    partial-visit rewards. If rewards can be negative: the absolute difference, and the live version's cut rewards too.
    """
    (a, own), (b, other) = _sides(comparison, ignored)
    cut, surplus = (a.cut - a.most_cut) / a.sessions, own.reward / a.sessions - other.reward / b.sessions
    if comparison.min_reward < 0:
        return cut + (b.cut - b.most_cut) / b.sessions + abs(surplus)
    return cut + max(surplus, 0.0)


def _hidden_hints(comparison: VersionComparison, ignored: Ignored) -> list[str]:
    """Say how much does not count and may be what a canary loses; empty if all counts."""
    sources = (
        f"that long sessions earned beyond {comparison.max_reward:.4g}",
        "that came late or in parts of visits",
        "of negative rewards that it has less of, and whose feedback may be lost,",
    )
    parts = zip(_hidden_loss(comparison, ignored), sources, strict=True)
    return [f"{hidden:.3g} per session {source} do not count" for hidden, source in parts if hidden]
