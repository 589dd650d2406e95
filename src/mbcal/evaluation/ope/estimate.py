"""Off-policy evaluation with all estimators: the value of a policy on logged sessions, and its difference to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from mbcal.agents.base import Agent
from mbcal.agents.dqn import DQNConfig
from mbcal.environments.rollout import Policy
from mbcal.errors import InputError, OptionError
from mbcal.evaluation.ope.estimators import (
    BOUNDED,
    ESTIMATORS,
    NEED_VALUES,
    Floats,
    LoggedData,
    contribution_range,
    logged_return,
    overlap,
    step_means,
)
from mbcal.evaluation.ope.fitted import assign_folds, fit_q_values
from mbcal.evaluation.ope.intervals import RESAMPLES, Estimate, Method, bootstrap, empirical_bernstein
from mbcal.evaluation.ope.propensity import PolicyChoices, policy_choices
from mbcal.progress import SILENT, Progress
from mbcal.types import Sessions

Nuisance = Literal["fitted", "means", "none"]
"""Source of q and v: fitted Q evaluation, the mean return-to-go of each step, or none."""


def estimate_value(
    policy: Policy,
    sessions: Sessions,
    *,
    baseline: Policy | None = None,
    epsilon: float,
    seed: int = 0,
    folds: int = 2,
    gamma: float = 1.0,
    clip: float | None = None,
    values: Nuisance = "fitted",
    config: DQNConfig | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    choices: tuple[PolicyChoices | None, PolicyChoices | None] = (None, None),
    progress: Progress = SILENT,
) -> list[Estimate]:
    """Estimate what a policy would have earned per session, from sessions that another policy served.

    Args:
        policy: The target policy: anything with begin, score and observe. It must not have learned from these sessions.
        sessions: Logged sessions with propensities and candidates.
        baseline: A second policy to compare with; the log itself if None.
        epsilon: Exploration with which policy and baseline would be served.
        seed: Seed of folds, initial weights and resamples.
        folds: Folds of users for fitted values.
        gamma: The discount.
        clip: Largest importance weight; None does not clip.
        values: Where the values of `dr` and `direct` come from; without values these estimators are left out.
        config: How fitted values are trained.
        level: Nominal coverage of the intervals.
        resamples: Bootstrap resamples.
        choices: Choices of policy and baseline along these sessions; computed where None.
        progress: Notified of epochs and sessions.

    Returns:
        Values of the policy, of the baseline (if any) and of the log, and the difference of the policy to the baseline (else
        to the log), paired session by session; by every estimator, with bootstrap intervals. With a `clip`, IPS and PDIS
        also come with empirical Bernstein bounds.

    Raises:
        InputError: If there are no sessions, or they have no propensities or no candidates.
        ModelError: If an agent knows other items or behaviours.
        OptionError: If an option is out of range.
    """
    _require_valid(policy, baseline, sessions, values)
    intervals = _Intervals(sessions, gamma, clip, level, resamples, seed)
    valued: dict[str, _Valued] = {}
    for name, subject, known_choices in (("policy", policy, choices[0]), ("baseline", baseline, choices[1])):
        if subject is not None:
            # one seed for both: the same folds and initial weights, so that their noise cancels in the difference
            data = logged_data(
                subject,
                sessions,
                epsilon=epsilon,
                values=values,
                seed=seed,
                folds=folds,
                gamma=gamma,
                config=config,
                choices=known_choices,
                progress=progress,
            )
            valued[name] = _apply_estimators(data, gamma, clip, values)
            valued["log"] = _Valued({"mean": logged_return(data, gamma)}, float(len(data)))
    valued["difference"] = valued["policy"].minus(valued["log" if baseline is None else "baseline"])
    return [estimate for name, part in valued.items() for estimate in intervals.estimates(name, part, baseline is None)]


def logged_data(
    policy: Policy,
    sessions: Sessions,
    *,
    epsilon: float,
    values: Nuisance = "fitted",
    seed: int = 0,
    folds: int = 2,
    gamma: float = 1.0,
    config: DQNConfig | None = None,
    choices: PolicyChoices | None = None,
    progress: Progress = SILENT,
) -> LoggedData:
    """Return logged sessions with the propensities, and on request the values, of a target policy.

    Args:
        policy: The target policy.
        sessions: N logged sessions with propensities and candidates.
        epsilon: Exploration with which the policy would be served.
        values: Where q and v come from.
        seed: Seed of folds and initial weights.
        folds: Folds of users for values.
        gamma: The discount.
        config: How fitted values are trained.
        choices: The policy's choices along these sessions; computed if None.
        progress: Notified of epochs and sessions.

    Returns:
        Rewards, mask, propensities and values, (N, T) each.

    Raises:
        InputError: If the sessions have no propensities or no candidates.
    """
    if sessions.propensities is None:
        raise InputError(
            "sessions: these have no propensities, so another policy cannot be estimated from them; "
            "log the probability of every choice, or evaluate with a simulator"
        )
    choices = choices or policy_choices(policy, sessions, progress=progress)
    q = v = None
    if values == "fitted":
        device = getattr(policy, "device", None)
        fitted = fit_q_values(
            sessions,
            policy,
            epsilon=epsilon,
            folds=folds,
            gamma=gamma,
            config=config,
            seed=seed,
            device="cpu" if device is None else device.type,
            choices=choices,
            progress=progress,
        )
        q, v = fitted.q, fitted.v
    rewards, logged = sessions.rewards.astype(np.float64), sessions.propensities.astype(np.float64)
    data = LoggedData(rewards, sessions.mask, logged, choices.propensities(epsilon), sessions.user, q, v)
    if values != "means":
        return data
    q, v = step_means(data, assign_folds(sessions.user, folds, seed), gamma)
    return replace(data, q=q, v=v)


@dataclass(frozen=True, eq=False)
class _Valued:
    """Contributions (N,) by estimator, and the overlap behind them."""

    contributions: Mapping[str, Floats]
    ess: float
    weight: float = 1.0
    clipped: float = 0.0

    def minus(self, other: _Valued) -> _Valued:
        """Differences session by session. The log has one contribution, which is subtracted from all."""
        paired = {
            name: contribution - other.contributions["mean" if "mean" in other.contributions else name]
            for name, contribution in self.contributions.items()
        }
        weight = max(self.weight, other.weight, key=lambda mean: abs(mean - 1))
        return _Valued(paired, min(self.ess, other.ess), weight, max(self.clipped, other.clipped))


def _apply_estimators(data: LoggedData, gamma: float, clip: float | None, values: Nuisance) -> _Valued:
    left_out = {"fitted": frozenset[str](), "means": {"direct"}, "none": NEED_VALUES}[values]
    contributions = {name: estimator(data, gamma, clip) for name, estimator in ESTIMATORS.items() if name not in left_out}
    measured = overlap(data, clip)
    return _Valued(contributions, measured.ess, measured.mean_weight, measured.clipped)


@dataclass(frozen=True, eq=False)
class _Intervals:
    """How all estimates of one call get their intervals."""

    sessions: Sessions
    gamma: float
    clip: float | None
    level: float
    resamples: int
    seed: int

    def estimates(self, of: str, valued: _Valued, against_log: bool) -> Iterator[Estimate]:
        """Estimates of one value, or of the difference (which is to the log if `against_log`)."""
        user = self.sessions.user
        stacked = np.stack(list(valued.contributions.values()))
        intervals = bootstrap(stacked, user, seed=self.seed, level=self.level, resamples=self.resamples)
        for (name, contribution), (low, high) in zip(valued.contributions.items(), intervals.tolist(), strict=True):
            yield self._estimate(of, name, valued, (low, high), "bca")
            if self.clip is not None and name in BOUNDED:
                bounds = self._bounds(self.clip, of == "difference", against_log)
                interval = empirical_bernstein(contribution, user, *bounds, level=self.level)
                yield self._estimate(of, name, valued, interval, "empirical bernstein")

    def _bounds(self, clip: float, difference: bool, against_log: bool) -> tuple[float, float]:
        """Bounds of contributions by IPS or PDIS that are known before the data."""
        least = 0.0 if not difference else -1.0 if against_log else -clip
        most = clip - 1 if difference and against_log else clip
        table = self.sessions.behaviour_set.rewards
        return contribution_range((min(table), max(table)), self.sessions.horizon, self.gamma, (least, most))

    def _estimate(self, of: str, name: str, valued: _Valued, interval: tuple[float, float], method: Method) -> Estimate:
        value, count = float(valued.contributions[name].mean()), len(self.sessions)
        if name in ("mean", "direct"):  # these have no weights
            return Estimate(of, name, value, *interval, method, float(count), count)
        return Estimate(of, name, value, *interval, method, valued.ess, count, valued.weight, self.clip, valued.clipped)


def _require_valid(policy: Policy, baseline: Policy | None, sessions: Sessions, values: str) -> None:
    if values not in get_args(Nuisance):
        raise OptionError(f"values: must be fitted, means or none, got {values!r}")
    if not len(sessions):
        raise InputError("off-policy: there are no sessions to estimate from")
    for subject in (policy, baseline):
        if isinstance(subject, Agent):
            subject.domain.require_compatible(sessions, f"the {subject.name} agent")
