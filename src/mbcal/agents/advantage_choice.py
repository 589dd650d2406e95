"""Choose what a policy adds to the instant reward: nothing, the counterfactual advantage, or a planned one.

Policies are compared by cross-fitting (`cross_fitting`) with several judges, each fitted on resampled users. The interval of
a gain covers the uncertainty of both the served sessions and the judges, so that small errors of a judge decide nothing. The
first candidate, MBCAL's, stays unless another is better beyond chance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mbcal.agents.config import AgentConfig
from mbcal.agents.cross_fitting import PolicyFit, Trial, choose_best, cross_fit
from mbcal.agents.fit_context import FitContext
from mbcal.config import from_dict, to_dict

AdvantageKind = Literal["counterfactual", "none", "planned"]
"""The advantage of the logged continuation (`labels`), none, or that of the policy's own continuation (`plan`)."""

JUDGES = 4
"""Models of other users that every policy is judged by."""
LEVEL = 0.9
"""Level of the confidence interval of a gain, which must lie above 0: a candidate is taken if it is better with 95%
confidence."""
STAGE = "advantage choice"
"""Name of the choice in checkpoints."""


CANDIDATES: tuple[AdvantageKind, ...] = ("counterfactual", "none", "planned")
"""In the order in which they are tried: a later one must be better beyond chance."""


@dataclass(frozen=True)
class AdvantageTrial(Trial):
    """An advantage and what its policy earned."""

    kind: AdvantageKind = field(kw_only=True)


@dataclass(frozen=True)
class AdvantageChoice:
    """The chosen advantage and the evidence for it."""

    kind: AdvantageKind
    sessions: int
    """Sessions that took part: of both halves."""
    trials: tuple[AdvantageTrial, ...]
    """In the order of the candidates; empty if there were too few users to compare them."""

    def record(self) -> dict[str, Any]:
        """Return it as plain values, as JSON can hold them; `from_dict` reads them."""
        return {**to_dict(self), "trials": [to_dict(trial) for trial in self.trials]}


def choose_advantage(context: FitContext, config: AgentConfig, fit_policies: PolicyFit) -> AdvantageChoice:
    """Choose the advantage, or return the choice that a checkpoint holds.

    Args:
        context: The fit that has to choose. Its checkpoints keep the choice.
        config: Networks, training settings and seed of the agent.
        fit_policies: Fits one policy for each of `CANDIDATES` to sessions.

    Returns:
        The choice: the first candidate if there were too few users to compare them.
    """
    checkpoints = context.checkpoints
    record = checkpoints.stage(STAGE)[0] if checkpoints else None
    if record is not None:
        return from_dict(AdvantageChoice, record)
    folds = cross_fit(context, config, "advantage", fit_policies, JUDGES)
    if not folds:
        return AdvantageChoice(CANDIDATES[0], 0, ())
    best, trials = choose_best(folds, LEVEL)
    named = (AdvantageTrial(**vars(trial), kind=kind) for trial, kind in zip(trials, CANDIDATES, strict=True))
    choice = AdvantageChoice(CANDIDATES[best], sum(len(fold.users) for fold in folds), tuple(named))
    if checkpoints and context.worker_slice.group.rank == 0:
        checkpoints.save(STAGE, choice.record(), {})
    return choice
