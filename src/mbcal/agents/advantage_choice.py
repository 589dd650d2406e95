"""Choose what a policy adds to the instant reward: nothing, the counterfactual advantage, or a planned one.

Policies are compared by cross-fitting (`cross_fitting`) with several judges, each fitted on resampled users. The interval of
a gain covers the uncertainty of both the served sessions and the judges: where small errors of a judge decide, nothing is
decided. The first candidate, the paper's method, stays unless another is better beyond doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mbcal.agents.config import AgentConfig
from mbcal.agents.cross_fitting import cross_fit
from mbcal.agents.fit_context import FitContext
from mbcal.config import from_dict, to_dict
from mbcal.environments.rollout import Policy
from mbcal.metrics import Floats, Mean, mean_interval, t_quantile
from mbcal.progress import Progress
from mbcal.types import SessionTensors

AdvantageKind = Literal["counterfactual", "none", "planned"]
"""The advantage of the logged continuation (`labels`), none, or that of the policy's own continuation (`plan`)."""

JUDGES = 4
"""Models of other users that every policy is judged by."""
LEVEL = 0.95
"""Level of the confidence interval of a gain, which must lie above 0."""
STAGE = "advantage choice"
"""Name of the choice in checkpoints."""


@dataclass(frozen=True)
class Advantage:
    """A kind of advantage and its discount."""

    kind: AdvantageKind
    gamma: float = 1.0


CANDIDATES = (
    Advantage("counterfactual", 0.95),
    Advantage("none"),
    Advantage("counterfactual", 1.0),
    Advantage("planned", 1.0),
)
"""In the order in which they are tried; what cannot be told apart stays the earlier."""


@dataclass(frozen=True)
class Trial:
    """A candidate and what its policy earned."""

    kind: AdvantageKind
    gamma: float
    reward: float
    """Mean reward of a session, over all judges."""
    gain: float = 0.0
    """Mean gain over the best candidate before it; 0 for the first."""
    low: float = 0.0
    """Lower end of the confidence interval of the gain."""
    high: float = 0.0
    """Upper end."""


@dataclass(frozen=True)
class AdvantageChoice:
    """The chosen advantage and the evidence for it."""

    kind: AdvantageKind
    gamma: float
    sessions: int
    """Sessions that every policy served."""
    trials: tuple[Trial, ...]
    """In the order of the candidates; empty if there were too few users to compare them."""

    def record(self) -> dict[str, Any]:
        """Return it as plain values, as JSON can hold them; `from_dict` reads them."""
        return {**to_dict(self), "trials": [to_dict(trial) for trial in self.trials]}


PolicyFit = Callable[[SessionTensors, AgentConfig, Progress, Sequence[Advantage]], Sequence[Policy]]
"""(sessions, settings, progress, candidates) -> one policy per candidate."""


def choose_advantage(
    context: FitContext, config: AgentConfig, fit_policies: PolicyFit, candidates: Sequence[Advantage] = CANDIDATES
) -> AdvantageChoice:
    """Choose the advantage, or return the choice that a checkpoint holds.

    Args:
        context: The fit that has to choose. Its checkpoints keep the choice.
        config: Networks, training settings and seed of the agent.
        fit_policies: Fits the policies of all candidates to sessions.
        candidates: What can be chosen, the simplest first.

    Returns:
        The choice: the first candidate if there were too few users to compare them.
    """
    checkpoints = context.checkpoints
    record = checkpoints.stage(STAGE)[0] if checkpoints else None
    if record is not None:
        return from_dict(AdvantageChoice, record)
    result = cross_fit(
        context,
        config,
        "advantage",
        lambda sessions, settings, progress: fit_policies(sessions, settings, progress, candidates),
        JUDGES,
    )
    if result is None:
        return AdvantageChoice(candidates[0].kind, candidates[0].gamma, 0, ())
    choice = last_better(candidates, result.rewards, result.users)
    if checkpoints and context.worker_slice.group.rank == 0:
        checkpoints.save(STAGE, choice.record(), {})
    return choice


def last_better(candidates: Sequence[Advantage], rewards: Floats, users: NDArray[Any]) -> AdvantageChoice:
    """Choose by rewards, ties to the earlier candidate: each replaces the best before it if its gain is beyond doubt.

    Args:
        candidates: P candidates.
        rewards: (P, J, n) reward of every session by candidate and judge, under common random numbers.
        users: (n,) the user of every session; at least two differ.
    """
    best, trials = 0, [Trial(candidates[0].kind, candidates[0].gamma, float(rewards[0].mean()))]
    for number, candidate in enumerate(candidates[1:], 1):
        gain = judged_gain(rewards[number] - rewards[best], users)
        mean = float(rewards[number].mean())
        trials.append(Trial(candidate.kind, candidate.gamma, mean, gain.mean, gain.low, gain.high))
        if gain.low > 0:
            best = number
    return AdvantageChoice(candidates[best].kind, candidates[best].gamma, len(users), tuple(trials))


def judged_gain(gains: Floats, users: NDArray[Any]) -> Mean:
    """Return the mean gain with an interval that covers chance in the served sessions and in the judges.

    The variance is that of the mean over sessions, clustered by user, plus the variance of the gain between judges: judges
    on resampled users differ as much as another log would make one judge differ. With few judges that variance is itself
    uncertain, hence a t interval.

    Args:
        gains: (J, n) gain of every session by judge.
        users: (n,) the user of every session.
    """
    n_judges = len(gains)
    by_session = mean_interval(gains.mean(0), users, LEVEL)
    if n_judges == 1:
        return by_session
    between = float(np.var(gains.mean(1, dtype=np.float64), ddof=1))
    stderr = float(np.sqrt(by_session.stderr**2 + between))
    width = t_quantile(0.5 + LEVEL / 2, n_judges - 1) * stderr
    return Mean(by_session.mean, by_session.mean - width, by_session.mean + width, by_session.count, stderr)
