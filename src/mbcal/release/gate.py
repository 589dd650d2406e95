"""Whether a candidate may replace the live version: checks on sessions of users who did not teach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mbcal.agents.base import Agent
from mbcal.data.user_split import stable_hash
from mbcal.decision_log.join import JoinCounts
from mbcal.environments.rollout import rollout
from mbcal.environments.simulator import Simulator
from mbcal.errors import OptionError
from mbcal.evaluation.ope.estimate import Nuisance, estimate_value
from mbcal.evaluation.ope.intervals import Estimate
from mbcal.metrics import mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.types import Sessions

DECIDING_ESTIMATOR = "dr"
"""The off-policy estimator that decides; the others are reported."""
JUDGE_SEED = 0
"""Fixed, so that a user judges every update or none."""


@dataclass(frozen=True)
class GateConfig:
    """When a candidate may go live."""

    sessions: int = 200
    """Fewest logged sessions."""
    judges: float = 0.3
    """Share of users who judge candidates and never teach them, in (0, 1)."""
    effective: float = 20.0
    """Fewest effective sessions (Kish) for the log to judge. With fewer, only a simulator can."""
    bias: float = 0.3
    """Largest distance of the mean importance weight from 1. Beyond it, the log lacks the sessions that matter."""
    tolerance: float = 0.01
    """How far below zero a lower bound may lie, as a share of the reward per session."""
    clip: float = 20.0
    """Largest importance weight of a session."""
    values: Nuisance = "means"
    """The value model of the doubly robust estimate: `means` is quick, `fitted` learns one."""

    def __post_init__(self) -> None:
        if not 0 < self.judges < 1 or not 0 <= self.tolerance < 1:
            raise OptionError("gate: judges must be in (0, 1), tolerance in [0, 1)")


@dataclass(frozen=True)
class Check:
    """One condition on a candidate."""

    name: str
    passed: bool
    detail: str
    """What was found and what was needed, in words."""


@dataclass
class Verdict:
    """The outcome of an update."""

    live: str
    """The version the candidate would replace."""
    published: str | None = None
    """The candidate's version; None if it was refused."""
    checks: list[Check] = field(default_factory=list)
    estimates: list[Estimate] = field(default_factory=list)
    counts: JoinCounts | None = None

    @property
    def reasons(self) -> list[str]:
        """The checks that failed, in words."""
        return [f"{check.name}: {check.detail}" for check in self.checks if not check.passed]


def split_judges(names: Sequence[str], users: NDArray[np.int32], share: float) -> tuple[NDArray[np.int64], ...]:
    """Split sessions into those that teach a candidate and those that judge it, no user in both.

    Whether a user judges depends on the user's name alone. So a user who judges this update never taught an earlier one, and
    whoever taught the live version does not judge its successor.

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
    if judges.all():
        judges[fractions.argmax()] = False
    return np.flatnonzero(~judges[users]), np.flatnonzero(judges[users])


def check_by_log(
    candidate: Agent,
    live: Agent,
    sessions: Sessions,
    gate: GateConfig,
    *,
    epsilon: float,
    seed: int = 0,
    has_simulator: bool = False,
    progress: Progress = SILENT,
) -> tuple[list[Check], list[Estimate]]:
    """Compare candidate and live version by off-policy estimates on logged sessions.

    Where too few logged sessions speak for the candidate, the estimates decide nothing: the check fails, unless a simulator
    decides instead.

    Args:
        candidate: The policy that would go live.
        live: The policy it would replace.
        sessions: Logged sessions with propensities, of users who did not teach the candidate.
        gate: The conditions.
        epsilon: Exploration with which either is served.
        seed: Names resamples.
        has_simulator: Whether a simulator is asked, too.
        progress: Notified of sessions.

    Returns:
        The checks `overlap` and, with enough overlap, `off-policy`; and all estimates.
    """
    estimates = estimate_value(
        candidate, live, sessions, epsilon=epsilon, seed=seed, clip=gate.clip, values=gate.values, progress=progress
    )
    gain = next(one for one in estimates if (one.of, one.name) == ("difference", DECIDING_ESTIMATOR))
    overlap = f"{gain.ess:.0f} effective sessions, {gate.effective:.0f} needed; mean weight {gain.weight:.2f}, near 1 needed"
    if gain.ess < gate.effective or abs(gain.weight - 1) > gate.bias:
        remedy = "the simulator alone decides" if has_simulator else "explore more, or give a simulator"
        return [Check("overlap", has_simulator, f"{overlap} for the log to judge; {remedy}")], estimates
    least = -gate.tolerance * abs(float(sessions.rewards.sum(1).mean()))
    detail = f"{gain.value:+.3f} per session [{gain.low:+.3f}, {gain.high:+.3f}], at least {least:+.3f} needed"
    return [Check("overlap", True, overlap), Check("off-policy", gain.low >= least, detail)], estimates


def check_by_simulator(
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

    User numbers of a decision log are not those of the simulator's store, so its users are not compared.

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
    detail = f"{gain.mean:+.3f} per session [{gain.low:+.3f}, {gain.high:+.3f}], at least {least:+.3f} needed"
    return Check("simulator", gain.low >= least, detail)
