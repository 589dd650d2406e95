"""Who leads, by how much, and whether that means anything: the statistics behind the headline of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from mbcal.evaluation.comparison import LOG_ROW
from mbcal.evaluation.significance import Rewards, paired_difference
from mbcal.metrics import Mean
from mbcal.report.formats import format_interval, format_mean

BASELINES = ("gru4rec", "popular", "random")
"""Methods that others are compared with, in order of preference: the first that a run has is its baseline."""
MOST_NAMED = 3
"""Methods that a sentence names; the rest is counted."""
FEWEST_USERS = 6
"""With fewer users, a gap that is the same for all of them may be chance: by a sign test, p is 2 / 2^users."""


@dataclass(frozen=True)
class MethodGap:
    """One method against another on the same sessions."""

    method: str
    other: str
    gap: Mean
    """Reward per session of `method` minus that of `other`, paired."""
    trust: Trust | None = None
    """What the judge can be trusted for, if it is a simulator."""
    overlap: bool = False
    """Whether some training of the method that is behind earned as much as some training of the one ahead."""

    @property
    def relation(self) -> str:
        """`level` if the interval contains zero, `untrusted` if the judge is not good enough, else `ahead` or `behind`.

        An interval that is none, because a reward is NaN, excludes nothing.
        """
        if not (self.gap.low > 0 or self.gap.high < 0):
            return "level"
        if self.trust is not None and not self.trust.covers(self.gap.mean):
            return "untrusted"
        return "ahead" if self.gap.mean > 0 else "behind"

    @property
    def amount(self) -> str:
        """The gap with its interval, signed."""
        return f"{format_mean(self.gap, sign=True)} {format_interval(self.gap, sign=True)}".rstrip()


@dataclass(frozen=True)
class Standing:
    """The methods under one protocol and one judge."""

    best: str
    """The method with the highest mean reward."""
    close: tuple[MethodGap, ...]
    """The best against each method that it is not distinguishable from (level, or untrusted), best first."""
    runner_up: MethodGap | None
    """The best against the second; None if there is one method."""
    baseline: MethodGap | None
    """The best against the baseline; None if it is the best itself, or there is none."""
    log: MethodGap | None = None
    """The best against the log, in the same sessions; None if there is no log."""
    logged: float = np.nan
    """What the log earned per session."""

    @property
    def leaders(self) -> set[str]:
        """The best method and those that it is not distinguishable from."""
        return {self.best, *(gap.other for gap in self.close)}

    def sentence(self) -> str:
        """Return who leads, in a sentence."""
        if self.runner_up is None:
            return f"{self.best} is the only method, so there is nothing to compare it with."
        told = self._draw() if self.close else _lead(self.runner_up, "the runner-up ")
        text, named = f"{self.best} is {told}", self.leaders if self.close else {self.runner_up.other}
        if self.baseline is not None and self.baseline.other not in named:
            text += f", and {_lead(self.baseline)}"
        return f"{text}."

    def log_sentence(self) -> str:
        """Return that no method earns more than the log, or that this cannot be told, in a sentence; empty otherwise.

        A simulator does not tell: what it can be trusted for are differences between methods.
        """
        if self.log is None or (self.log.relation == "ahead" and self.log.trust is None):
            return ""
        if self.log.trust is not None:
            return (
                f"{self.best} against the log ({self.logged:.2f}): {self.log.amount} per session, which a simulator cannot "
                "judge; its gaps to the log may be further off than those between methods."
            )
        if self.log.gap.mean <= 0:
            return f"No method earns more than the log ({self.logged:.2f})."
        return (
            f"Whether {self.best} earns more than the log ({self.logged:.2f}) cannot be told: {self.log.amount} per session."
        )

    def _draw(self) -> str:
        """The methods that the best one is not distinguishable from, in words, to follow `X is`."""
        first, names = self.close[0], _listed([gap.other for gap in self.close])
        against = f"{first.amount} per session against {first.other}"
        if all(gap.relation == "level" for gap in self.close):
            return f"level with {names} ({against})"
        return f"not distinguishable from {names} ({against}; this judge can be trusted for {_limit(first.trust)})"


def baseline_of(methods: Sequence[str]) -> str | None:
    """Return the method that others are compared with, None if no known baseline is among them."""
    return next((name for name in BASELINES if name in methods), None)


def standing(
    rewards: Mapping[str, Rewards],
    users: NDArray[Any],
    baseline: str | None,
    trust: Trust | None = None,
    logged: Rewards | None = None,
) -> Standing:
    """Compare the best method with all others.

    Args:
        rewards: Rewards (S, N) by method, at least one.
        users: (N,) user of each session.
        baseline: The method that others are compared with.
        trust: What the judge can be trusted for; None if it is the truth.
        logged: (N,) rewards of the same sessions as they were logged; None if there is no log.
    """
    ordered = sorted(rewards, key=lambda name: -float(rewards[name].mean()))
    best = ordered[0]
    gaps = {other: compare(best, other, rewards, users, trust) for other in ordered[1:]}
    close = tuple(gap for gap in gaps.values() if gap.relation in ("level", "untrusted"))
    found = Standing(best, close, gaps[ordered[1]] if gaps else None, gaps.get(baseline or ""))
    if logged is None:
        return found
    against = compare(best, LOG_ROW, {best: rewards[best], LOG_ROW: logged}, users, trust)
    return replace(found, log=against, logged=float(logged.mean()))


def compare(
    method: str, other: str, rewards: Mapping[str, Rewards], users: NDArray[Any], trust: Trust | None = None
) -> MethodGap:
    """Compare two methods on the same sessions; arguments are those of `standing`."""
    first, second = (np.atleast_2d(rewards[name]) for name in (method, other))
    gap = paired_difference(first, second, users)[0]
    if gap.mean and gap.low == gap.high and len(np.unique(users)) < FEWEST_USERS:
        gap = Mean(gap.mean, -np.inf, np.inf, gap.count, np.inf)
    means = sorted((first.mean(1), second.mean(1)), key=lambda seeds: -float(seeds.mean()))
    overlap = min(len(first), len(second)) > 1 and bool(means[0].min() <= means[1].max())
    return MethodGap(method, other, gap, trust, overlap)


def _lead(gap: MethodGap, title: str = "") -> str:
    """A lead in words, to follow `X is`."""
    amount = f"{format_mean(gap.gap)} per session {format_interval(gap.gap)}".rstrip()
    unsteady = ", though another training could turn it around" if gap.overlap else ""
    return f"ahead of {title}{gap.other} by {amount}{unsteady}"


def _limit(trust: Trust | None) -> str:
    """For what differences a judge can be trusted, in words."""
    return "nothing" if trust is None or trust.problem else f"{trust.difference:.3g} or more"


def _listed(names: Sequence[str]) -> str:
    """Names joined by commas and `and`; the rest of many is counted."""
    shown = [*names[:MOST_NAMED], *([f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
