"""Choose what a policy adds to the instant reward: nothing, the counterfactual advantage, or a planned one.

Policies are compared by cross-fitting (`cross_fitting`) with several judges, each fitted on resampled users. First MBCAL's
discount is chosen as MBCAL does (`gamma_choice`). Then another kind of advantage replaces it only if it is better beyond
chance: the interval of its gain covers the uncertainty of both the served sessions and the judges, so that small errors of a
judge decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mbcal.agents.config import AgentConfig
from mbcal.agents.cross_fitting import Trial, cross_fit, last_better
from mbcal.agents.fit_context import FitContext
from mbcal.agents.gamma_choice import GAMMA_LEVEL, GAMMAS
from mbcal.config import from_dict, to_dict
from mbcal.environments.rollout import Policy
from mbcal.metrics import Floats
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


CANDIDATES = (*(Advantage("counterfactual", gamma) for gamma in GAMMAS), Advantage("none"), Advantage("planned"))
"""In the order in which they are tried, the discounts of the first kind first: a later one must be better beyond chance."""


@dataclass(frozen=True)
class AdvantageTrial(Trial):
    """An advantage and what its policy earned."""

    kind: AdvantageKind = field(kw_only=True)
    gamma: float = field(kw_only=True)


@dataclass(frozen=True)
class AdvantageChoice:
    """The chosen advantage and the evidence for it."""

    kind: AdvantageKind
    gamma: float
    sessions: int
    """Sessions that every policy served."""
    trials: tuple[AdvantageTrial, ...]
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
    choice = best_advantage(candidates, result.rewards, result.users)
    if checkpoints and context.worker_slice.group.rank == 0:
        checkpoints.save(STAGE, choice.record(), {})
    return choice


def best_advantage(candidates: Sequence[Advantage], rewards: Floats, users: NDArray[Any]) -> AdvantageChoice:
    """Choose an advantage by the rewards of its policy (`cross_fitting.last_better`).

    Args:
        candidates: P advantages; those of the first one's kind come first, and differ by their discounts alone.
        rewards: (P, J, n) reward of every session by candidate and judge.
        users: (n,) the user of every session; at least two differ.
    """
    same_kind = sum(candidate.kind == candidates[0].kind for candidate in candidates)
    first, trials = last_better(rewards[:same_kind].mean(1, keepdims=True), users, GAMMA_LEVEL)
    compared = [first, *range(same_kind, len(candidates))]
    last, other_trials = last_better(rewards[np.array(compared)], users, LEVEL)
    named = (
        AdvantageTrial(**vars(trial), kind=candidate.kind, gamma=candidate.gamma)
        for trial, candidate in zip([*trials, *other_trials[1:]], candidates, strict=True)
    )
    best = candidates[compared[last]]
    return AdvantageChoice(best.kind, best.gamma, len(users), tuple(named))
