"""Whether a candidate may go live."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mbcal.agents import Agent
from mbcal.decision_log.join import JoinCounts
from mbcal.environments.rollout import rollout
from mbcal.environments.simulator import Simulator
from mbcal.errors import OptionError
from mbcal.evaluation.ope.estimate import Nuisance, estimate_value
from mbcal.evaluation.ope.intervals import Estimate
from mbcal.metrics import mean_interval
from mbcal.progress import Progress
from mbcal.types import Sessions

JUDGED_BY = "dr"
"""The estimator that decides; the others are told."""


@dataclass(frozen=True)
class GateConfig:
    """When a candidate may go live."""

    sessions: int = 200
    """Logged sessions there must be."""
    judges: float = 0.3
    """Share of users who judge instead of teaching."""
    effective: float = 20.0
    """Effective sessions (Kish) there must be for the log to judge: with fewer, long sessions or a policy far from the live
    one, only a simulator can."""
    bias: float = 0.3
    """How far from 1 the mean weight may be: further, and the sessions that matter are not in the log."""
    tolerance: float = 0.01
    """How much worse a lower bound may be, as a share of what sessions earned: no log is long enough to prove equality."""
    clip: float = 20.0
    """Weights of sessions are cut off here."""
    values: Nuisance = "means"
    """The model within the doubly robust estimate: `means` is quick, `fitted` learns one."""

    def __post_init__(self) -> None:
        if not 0 < self.judges < 1 or not 0 <= self.tolerance < 1:
            raise OptionError("gate: judges must be in (0, 1), tolerance in [0, 1)")


@dataclass(frozen=True)
class Check:
    """One reason to publish, or not to."""

    name: str
    passed: bool
    detail: str


@dataclass
class Verdict:
    """What became of an update."""

    live: str
    """The version the candidate would replace."""
    published: str | None = None
    checks: list[Check] = field(default_factory=list)
    estimates: list[Estimate] = field(default_factory=list)
    counts: JoinCounts | None = None

    @property
    def reasons(self) -> list[str]:
        """Why not."""
        return [f"{check.name}: {check.detail}" for check in self.checks if not check.passed]


def _judge_by_log(
    verdict: Verdict,
    candidate: Agent,
    now: Agent,
    sessions: Sessions,
    gate: GateConfig,
    epsilon: float,
    seed: int,
    others: bool,
    progress: Progress,
) -> None:
    """Where too few logged sessions speak for the candidate, their estimates decide nothing, and `others` must."""
    found = estimate_value(
        candidate, now, sessions, epsilon=epsilon, seed=seed, clip=gate.clip, values=gate.values, progress=progress
    )
    verdict.estimates = found
    least = -gate.tolerance * abs(float(sessions.rewards.sum(1).mean()))
    gap = next(each for each in found if (each.of, each.name) == ("difference", JUDGED_BY))
    said = f"{gap.ess:.0f} effective sessions, {gate.effective:.0f} needed; mean weight {gap.weight:.2f}, near 1 needed"
    if gap.ess < gate.effective or abs(gap.weight - 1) > gate.bias:
        said += " for the log to judge" + (
            "; the simulator alone decides" if others else "; explore more, or give a simulator"
        )
        verdict.checks.append(Check("overlap", others, said))
        return
    verdict.checks.append(Check("overlap", True, said))
    said = f"{gap.value:+.3f} a session [{gap.low:+.3f}, {gap.high:+.3f}], at least {least:+.3f} needed"
    verdict.checks.append(Check("off-policy", gap.low >= least, said))


def _judge_by_simulator(
    verdict: Verdict,
    candidate: Agent,
    now: Agent,
    users: Simulator,
    sessions: Sessions,
    gate: GateConfig,
    seed: int,
    progress: Progress,
) -> None:
    """Both serve the same users in the same luck. Numbers of logged users are not those of the simulator's own."""
    sessions.require_compatible(users.catalog, users.behaviours, "the simulator")
    earned = [
        rollout(policy, users, sessions, seed=seed, title=title, progress=progress).rewards.sum(1)
        for policy, title in ((candidate, "simulated users: candidate"), (now, "simulated users: live"))
    ]
    gap = mean_interval(earned[0] - earned[1], sessions.user)
    least = -gate.tolerance * abs(float(np.mean(earned[1])))
    said = f"{gap.mean:+.3f} a session [{gap.low:+.3f}, {gap.high:+.3f}], at least {least:+.3f} needed"
    verdict.checks.append(Check("simulator", gap.low >= least, said))
