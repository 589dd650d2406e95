"""Whether a candidate may replace the live version, by sessions of users who did not teach it.

The answer is one of three. *Worse*: the candidate is refused. *No worse*: it becomes the canary, or is published at once if
configured so. *Cannot tell*: it becomes the canary, and is never published on that alone. What a log cannot show counts as
the worst it could be (`mbcal.evaluation.ope.difference`), so a log without exploration mostly cannot tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mbcal.agents.base import Agent
from mbcal.data.user_split import stable_hash
from mbcal.decision_log.joined import JoinCounts
from mbcal.environments.rollout import Policy, rollout
from mbcal.environments.simulator import Simulator
from mbcal.errors import InputError, OptionError
from mbcal.evaluation.ope.difference import LogDifference, bound_difference
from mbcal.evaluation.ope.estimate import estimate_value
from mbcal.evaluation.ope.estimators import Floats
from mbcal.evaluation.ope.intervals import Estimate
from mbcal.evaluation.ope.propensity import PolicyChoices
from mbcal.metrics import mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.release.plain import rounded
from mbcal.types import Sessions

Answer = Literal["worse", "no worse", "cannot tell"]
"""What a check, or all of them, says of a candidate."""
Action = Literal["refused", "published", "canary"]
"""What became of a candidate."""
NoWorse = Literal["publish", "canary"]
"""What happens to a candidate that is no worse."""
JUDGE_SEED = 0
"""Fixed, so that a user judges every update or none."""
SHARES_TO_SEE = 0.01, 0.05, 0.1
"""Differences, as shares of the reward, for which the sessions needed are named."""
ENOUGH_SEEN = 100
"""Differing choices that the log must show for the usual off-policy estimates to mean anything; with fewer they are void."""


UNSHOWN = "there are choices whose effect the log cannot show"
"""Why the log cannot tell, whatever its numbers say; the reason of a verdict says which."""


@dataclass(frozen=True)
class GateConfig:
    """When a candidate may go live."""

    min_sessions: int = 200
    """Fewest logged sessions to learn from and judge by."""
    judge_share: float = 0.3
    """Share of users who judge candidates and never teach them, in (0, 1)."""
    tolerance: float = 0.01
    """A candidate is no worse if the lower bound of its difference is above minus this share of the reward per session. By
    the log it is less, as far as exploration hides the difference (`LogDifference.greedy_share`)."""
    level: float = 0.95
    """Coverage of the bounds, both sides together, in (0, 1)."""
    no_worse: NoWorse = "canary"
    """It is the canary first, since some things no log can show (docs/gate.md), or goes live at once."""

    def __post_init__(self) -> None:
        if not 0 < self.judge_share < 1 or not 0 < self.level < 1 or not 0 <= self.tolerance < 1:
            raise OptionError("gate: judge_share and level must be in (0, 1), tolerance in [0, 1)")


@dataclass(frozen=True)
class Check:
    """What one judge says of a candidate."""

    name: str
    answer: Answer
    detail: str
    """What was found and what was needed, in words."""


@dataclass
class Verdict:
    """The outcome of an update."""

    live: str
    """The version the candidate would replace."""
    time: float = field(default_factory=time.time)
    """When the update began, in seconds since 1970."""
    method: str = ""
    """The candidate's method, such as `mbcal`; empty if none was learned."""
    answer: Answer = "cannot tell"
    action: Action = "refused"
    version: str | None = None
    """The candidate's version; None if it was refused."""
    reason: str = ""
    """Why, in one sentence or two."""
    checks: list[Check] = field(default_factory=list)
    difference: LogDifference | None = None
    """Candidate minus live version by the log; None if the log was not asked."""
    estimates: list[Estimate] = field(default_factory=list)
    """Further off-policy estimates, which decide nothing."""
    void: str | None = None
    """Why the further estimates mean nothing; None if they do."""
    counts: JoinCounts | None = None
    page: Path | None = None
    """Where it is written as a page; None if it could not be."""
    page_problem: str = ""
    """Why it could not be written."""


def split_judges(names: Sequence[str], users: NDArray[np.int32], share: float) -> tuple[NDArray[np.int64], ...]:
    """Split sessions into those that teach a candidate and those that judge it, no user in both.

    Whether a user judges depends on the user's name alone. So a user who judges this update never taught an earlier one, and
    users who taught the live version do not judge its successor.

    Args:
        names: The name of every user number.
        users: (N,) user number of every session.
        share: Expected share of users who judge.

    Returns:
        Indices of the sessions that teach, and of those that judge. With two users or more neither is empty.
    """
    fractions = np.asarray([stable_hash(name, JUDGE_SEED, "judge") / 2**64 for name in names])
    judges = fractions < share
    if len(names) > 1 and not judges.any():
        judges[fractions.argmin()] = True
    if len(names) and judges.all():
        judges[fractions.argmax()] = False
    return np.flatnonzero(~judges[users]), np.flatnonzero(judges[users])


def interval_answer(low: float, high: float, least: float) -> Answer:
    """Return what an interval of a difference says, if differences of `least` (0 or less) are tolerated."""
    return "no worse" if low >= least else "worse" if high < 0 else "cannot tell"


def combined_answer(checks: Sequence[Check]) -> Answer:
    """Return what all checks say together: the log must find the candidate no worse, and no check may find it worse."""
    if any(check.answer == "worse" for check in checks):
        return "worse"
    return "no worse" if any((check.name, check.answer) == ("log", "no worse") for check in checks) else "cannot tell"


def compare_by_log(
    candidate: PolicyChoices,
    live: PolicyChoices,
    sessions: Sessions,
    gate: GateConfig,
    *,
    epsilon: Floats,
    last_served: NDArray[np.int64] | None = None,
    n_unshown: int = 0,
) -> tuple[Check, LogDifference]:
    """Compare a candidate with what the live version earned.

    Args:
        candidate: What would have been served along the sessions, had the candidate been live (`served_choices`).
        live: What the live version serves along them.
        sessions: Logged sessions of the live version with propensities, of users who did not teach the candidate.
        gate: The conditions.
        epsilon: (N, T) exploration with which the live version decided each step. The candidate is judged with the same:
            with less of it, a candidate that is worse would look better than it is.
        last_served: (N, T) the last step that was served before the feedback on each step came; by default the step itself.
        n_unshown: How many things keep the sessions from showing what the candidate's choices lead to. With any, the log
            cannot tell: what it does not show may be a gain or a loss.

    Returns:
        The check `log`, and the difference behind it.
    """
    difference = bound_difference(sessions, candidate, live, epsilon=epsilon, level=gate.level, last_served=last_served)
    least = -gate.tolerance * abs(difference.reward) * difference.greedy_share
    answer, doubt = interval_answer(difference.low, difference.high, least), ""
    if difference.is_contradicted:
        doubt = _contradiction(difference)
    elif difference.hidden > gate.tolerance and answer != "cannot tell":
        doubt = _exploration(difference)
    elif n_unshown and answer != "cannot tell":
        doubt = UNSHOWN
    if doubt:
        answer = "cannot tell"
    value = None if answer == "cannot tell" else difference.value  # beside what is not shown it would mislead
    found = _found(value, difference.low, difference.high, least)
    detail = f"{found} on {difference.sessions:,} sessions of {difference.users:,} users; {difference.support}"
    return Check("log", answer, f"{detail}; but {doubt}" if doubt else detail), difference


def other_estimates(
    candidate: Policy,
    live: Policy,
    sessions: Sessions,
    difference: LogDifference,
    *,
    choices: tuple[PolicyChoices, PolicyChoices],
    epsilon: float,
    seed: int = 0,
) -> tuple[list[Estimate], str | None]:
    """Return the usual off-policy estimates of both policies, none by a single user; and why they are void, if they are.

    The choices along the sessions are those that would have been served, of the candidate and of the live version.
    """
    if difference.users < 2:
        return [], "only one user judges; these estimates compare users with each other"
    try:
        estimates = estimate_value(
            candidate, sessions, baseline=live, epsilon=epsilon, seed=seed, values="means", choices=choices
        )
    except InputError:  # all weights are 0
        return (
            [],
            "the candidate would have served no judging session as it was served; no choice was explored",
        )
    if difference.n_observed >= min(ENOUGH_SEEN, difference.differing):
        return estimates, None
    return estimates, (
        f"the log shows {difference.n_observed} choices of the candidate that differ from those of the live version; with "
        f"fewer than {ENOUGH_SEEN} these estimates and their intervals mean nothing"
    )


def compare_by_simulator(
    candidate: Agent,
    live: Agent,
    simulator: Simulator,
    sessions: Sessions,
    gate: GateConfig,
    *,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Check:
    """Compare candidate and live version on the same simulated users, under the same noise.

    User numbers of a decision log are not those of the simulator's store, so its users are not compared. A difference that
    the simulator's own error may explain (`Simulator.trust`) says nothing.

    Raises:
        ModelError: If the simulator knows other items or behaviours.
    """
    sessions.require_compatible(simulator.catalog, simulator.behaviours, "the simulator")
    candidate_rewards, live_rewards = (
        rollout(policy, simulator, sessions, seed=seed, title=f"simulated users: {name}", progress=progress).rewards.sum(1)
        for policy, name in ((candidate, "candidate"), (live, "live"))
    )
    gain = mean_interval(candidate_rewards - live_rewards, sessions.user)
    least = -gate.tolerance * abs(float(np.mean(live_rewards)))
    answer, trust = interval_answer(gain.low, gain.high, least), simulator.trust
    if not trust.covers(gain.mean):
        answer = "cannot tell"
    detail = f"{_found(gain.mean, gain.low, gain.high, least)} on {len(sessions):,} simulated sessions. {trust.sentence}"
    return Check("simulator", answer, detail)


def undecided_reason(difference: LogDifference, tolerance: float) -> str:
    """Say why the log cannot tell: by what is wrong with it, or how many sessions show differences of `SHARES_TO_SEE`.

    Args:
        difference: What was found.
        tolerance: Share of the reward that may be earned where exploration hides the difference.
    """
    if difference.is_contradicted:
        return f"the log cannot tell: {_contradiction(difference)}"
    if difference.hidden > tolerance:
        return f"the log cannot tell: {_exploration(difference)}"
    if difference.reward_variance == 0:
        return "the log cannot tell: the rewards of its judging sessions do not vary"
    in_log, by_canary = (
        _listed([rounded(max(sessions(share), 1.0)) for share in SHARES_TO_SEE])
        for sessions in (difference.log_sessions_needed, difference.canary_sessions_needed)
    )
    seen = _listed([f"{share:.0%}" for share in SHARES_TO_SEE])
    return (
        f"the log cannot tell; to see a difference of {seen} takes about {in_log} "
        f"judging sessions of such a log, or about {by_canary} sessions of a canary"
    )


def _contradiction(difference: LogDifference) -> str:
    return (
        f"its weights have a mean of at least {difference.least_weight:.3g} instead of 1, so its numbers mean nothing: the "
        "logged propensities are wrong, or feedback is missing for some items more than for others"
    )


def _exploration(difference: LogDifference) -> str:
    return (
        f"{difference.hidden:.1%} of its reward was earned in sessions that explored much more than the others, and so hide "
        "what the candidate costs there: judge them apart"
    )


def _listed(words: Sequence[str]) -> str:
    """`a, b or c`; one word if all are the same."""
    return words[0] if len(set(words)) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _found(value: float | None, low: float, high: float, least: float) -> str:
    """A difference with its bounds, or the bounds alone if it has no value, and what may be lost."""
    found = f"between {low:+.3g} and {high:+.3g}" if value is None else f"{value:+.3g} [{low:+.3g}, {high:+.3g}]"
    return f"{found} per session, where it may lose at most {-least:.3g},"
