"""One question, all estimators: what would a policy have earned on logged sessions, and more than what did?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

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
from mbcal.evaluation.ope.intervals import RESAMPLES, Estimate, Method, bootstrap_all, empirical_bernstein
from mbcal.evaluation.ope.propensity import PolicyChoices, policy_choices
from mbcal.progress import SILENT, Progress
from mbcal.types import Sessions

Nuisance = Literal["fitted", "means", "none"]
"""Where q and v come from: fitted Q evaluation, the mean reward-to-go of each step, or nowhere."""


def estimate_value(
    policy: Policy,
    baseline: Policy | None,
    sessions: Sessions,
    *,
    epsilon: float,
    seed: int = 0,
    folds: int = 2,
    gamma: float = 1.0,
    clip: float | None = None,
    values: Nuisance = "fitted",
    config: DQNConfig | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    choices: tuple[PolicyChoices, PolicyChoices | None] | None = None,
    progress: Progress = SILENT,
) -> list[Estimate]:
    """Values per session of the epsilon-greedy policy, of the baseline served likewise, of the log, and the difference.

    The difference is to the baseline, or to the log where there is none, session by session. All have bootstrap intervals;
    with a `clip`, IPS and PDIS have empirical Bernstein bounds too. The policy must not have learned from these sessions.
    `choices` are the policy's and the baseline's along these sessions, where somebody has them already.
    """
    _require(policy, baseline, sessions, values)
    how = _Intervals(sessions, gamma, clip, level, resamples, seed)
    judged: dict[str, _Judged] = {}
    known = choices or (None, None)
    for name, each, chosen in (("policy", policy, known[0]), ("baseline", baseline, known[1])):
        if each is not None:
            # one seed for both: the same folds and first weights, so that their luck cancels in the difference
            evidence = logged_data(
                each,
                sessions,
                epsilon=epsilon,
                values=values,
                seed=seed,
                folds=folds,
                gamma=gamma,
                config=config,
                choices=chosen,
                progress=progress,
            )
            judged[name] = _judge(evidence, gamma, clip, values)
            judged["log"] = _Judged({"mean": logged_return(evidence, gamma)}, float(len(evidence)))
    judged["difference"] = judged["policy"].minus(judged["log" if baseline is None else "baseline"])
    return [estimate for name, each in judged.items() for estimate in how.of(name, each, baseline is None)]


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
    """Logged sessions as a policy sees them: its propensities of what was shown, and a model's values where asked for."""
    if sessions.propensities is None:
        raise InputError(
            "sessions: these have no propensities, so they say nothing about another policy; "
            "log the probability of every choice, or judge by a simulator"
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
    target = choices.propensities(epsilon)
    rewards, logged = sessions.rewards.astype(np.float64), sessions.propensities.astype(np.float64)
    evidence = LoggedData(rewards, sessions.mask, logged, target, sessions.user, q, v)
    if values != "means":
        return evidence
    q, v = step_means(evidence, assign_folds(sessions.user, folds, seed), gamma)
    return LoggedData(rewards, sessions.mask, logged, target, sessions.user, q, v)


@dataclass(frozen=True, eq=False)
class _Judged:
    """Contributions by estimator, and how much of the log spoke."""

    contributions: Mapping[str, Floats]
    ess: float
    weight: float = 1.0
    clipped: float = 0.0

    def minus(self, other: _Judged) -> _Judged:
        """Session by session; a log has one way of being judged, which stands against each."""
        paired = {
            name: mine - other.contributions["mean" if "mean" in other.contributions else name]
            for name, mine in self.contributions.items()
        }
        weight = max(self.weight, other.weight, key=lambda mean: abs(mean - 1))
        return _Judged(paired, min(self.ess, other.ess), weight, max(self.clipped, other.clipped))


def _judge(evidence: LoggedData, gamma: float, clip: float | None, values: Nuisance) -> _Judged:
    without = {"fitted": frozenset[str](), "means": {"direct"}, "none": NEED_VALUES}[values]
    made = {name: estimator(evidence, gamma, clip) for name, estimator in ESTIMATORS.items() if name not in without}
    seen = overlap(evidence, clip)
    return _Judged(made, seen.ess, seen.mean_weight, seen.clipped)


@dataclass(frozen=True, eq=False)
class _Intervals:
    """How all estimates of one question get their intervals."""

    sessions: Sessions
    gamma: float
    clip: float | None
    level: float
    resamples: int
    seed: int

    def of(self, whose: str, judged: _Judged, against_log: bool) -> Iterator[Estimate]:
        user = self.sessions.user
        every = np.stack(list(judged.contributions.values()))
        drawn = bootstrap_all(every, user, seed=self.seed, level=self.level, resamples=self.resamples)
        for (name, each), (low, high) in zip(judged.contributions.items(), drawn.tolist(), strict=True):
            yield self._estimate(whose, name, judged, (low, high), "bca")
            if self.clip is not None and name in BOUNDED:
                bounds = self._bounds(self.clip, whose == "difference", against_log)
                sure = empirical_bernstein(each, user, *bounds, level=self.level)
                yield self._estimate(whose, name, judged, sure, "empirical bernstein")

    def _bounds(self, clip: float, difference: bool, against_log: bool) -> tuple[float, float]:
        least = 0.0 if not difference else -1.0 if against_log else -clip
        most = clip - 1 if difference and against_log else clip
        table = self.sessions.behaviour_set.rewards
        return contribution_range((min(table), max(table)), self.sessions.horizon, self.gamma, (least, most))

    def _estimate(self, whose: str, name: str, judged: _Judged, interval: tuple[float, float], method: Method) -> Estimate:
        value, weighted = float(judged.contributions[name].mean()), name not in ("mean", "direct")
        sessions = len(self.sessions)
        if not weighted:
            return Estimate(whose, name, value, *interval, method, float(sessions), sessions)
        return Estimate(
            whose, name, value, *interval, method, judged.ess, sessions, judged.weight, self.clip, judged.clipped
        )


def _require(policy: Policy, baseline: Policy | None, sessions: Sessions, values: str) -> None:
    if values not in ("fitted", "means", "none"):
        raise OptionError(f"values: must be fitted, means or none, got {values!r}")
    if not len(sessions):
        raise InputError("off-policy: there are no sessions to judge by")
    for each in (policy, baseline):
        if isinstance(each, Agent):
            each.domain.require_compatible(sessions, f"the {each.name} agent")
