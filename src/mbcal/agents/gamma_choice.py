"""Choose the discount of MBCAL from data, by cross-fitting (`cross_fitting`): one policy per candidate serves other users.

A larger discount replaces a smaller one only if the confidence interval of its gain lies above 0: ties go to the smaller.
Measurements: docs/decisions/0018-gamma-from-data.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.config import AgentConfig
from mbcal.agents.cross_fitting import Trial, cross_fit, last_better
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.values import reward_term, value_term
from mbcal.config import from_dict, to_dict
from mbcal.metrics import Floats
from mbcal.nn.embeddings import fill_unknown_items
from mbcal.nn.fields import centre_fields
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.progress import Progress
from mbcal.scoring.scorers import NetScorer, ScoreTerm
from mbcal.types import SessionTensors

GAMMAS = (0.95, 1.0)
"""Candidates, in rising order."""
GAMMA_LEVEL = 0.99
"""Level of the confidence interval of a gain, which must lie above 0."""
STAGE = "gamma choice"
"""Name of the choice in checkpoints."""

LabelFunction = Callable[[RecurrentNet, Tensor, SessionTensors, Sequence[float]], Tensor]
"""(environment model, rewards (K,), B sessions, G discounts) -> labels of the future advantage model (B, G, T)."""


@dataclass(frozen=True)
class Candidate(Trial):
    """A discount and what its policy earned."""

    gamma: float = field(kw_only=True)


@dataclass(frozen=True)
class GammaChoice:
    """The chosen discount and the evidence for it."""

    gamma: float
    sessions: int
    """Sessions that every candidate served."""
    candidates: tuple[Candidate, ...]
    """In rising order; empty if there were too few users to compare them."""

    def record(self) -> dict[str, Any]:
        """Return it as plain values, as JSON can hold them; `from_dict` reads them."""
        return {**to_dict(self), "candidates": [to_dict(candidate) for candidate in self.candidates]}


def choose_gamma(context: FitContext, config: AgentConfig, mask_rate: float, labels: LabelFunction) -> GammaChoice:
    """Choose the discount, or return the choice that a checkpoint holds.

    Args:
        context: The fit that needs a discount. Its checkpoints keep the choice.
        config: Networks, training settings and seed of the agent.
        mask_rate: Probability with which an item is masked when the environment model is trained.
        labels: The labels that the agent's future advantage model learns.

    Returns:
        The choice: the smallest candidate if there were too few users to compare them.
    """
    checkpoints = context.checkpoints
    record = checkpoints.stage(STAGE)[0] if checkpoints else None
    if record is not None:
        return from_dict(GammaChoice, record)

    def fit_policies(sessions: SessionTensors, settings: AgentConfig, progress: Progress) -> list[NetScorer]:
        planner = _Planner(settings, context.data.device.type, mask_rate, labels).fit(sessions, progress=progress)
        return [planner.policies[gamma] for gamma in GAMMAS]

    result = cross_fit(context, config, "gamma", fit_policies)
    if result is None:
        return GammaChoice(GAMMAS[0], 0, ())
    choice = largest_better(GAMMAS, result.rewards, result.users)
    if checkpoints and context.worker_slice.group.rank == 0:
        checkpoints.save(STAGE, choice.record(), {})
    return choice


def largest_better(gammas: Sequence[float], rewards: Floats, users: NDArray[Any]) -> GammaChoice:
    """Choose a discount by the rewards of its policy, ties to the smaller (`cross_fitting.last_better`).

    Args:
        gammas: P discounts in rising order.
        rewards: (P, J, n) reward of every session by discount and judge.
        users: (n,) the user of every session; at least two differ.
    """
    best, trials = last_better(rewards, users, GAMMA_LEVEL)
    candidates = (Candidate(**vars(trial), gamma=gamma) for trial, gamma in zip(trials, gammas, strict=True))
    return GammaChoice(gammas[best], len(users), tuple(candidates))


class _Planner(Agent):
    """One environment model, and one policy per candidate.

    The future advantage models have the same initial weights, order of sessions and noise, so that they differ by the
    discount alone.
    """

    name = "gamma-choice"

    def __init__(self, config: AgentConfig, device: str, mask_rate: float, labels: LabelFunction) -> None:
        super().__init__(config, device)
        self.mask_rate, self.labels = mask_rate, labels
        self.values: dict[float, ScoreTerm] = {}
        """By candidate: the term of its future advantage model."""
        self.policies: dict[float, NetScorer] = {}
        """By candidate."""

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        shape = (domain.catalog, domain.behaviours, self.config.net)
        return {
            "environment": RecurrentNet(*shape, len(domain.behaviours), domain.n_users, domain.fields),
            "advantage": ValueNet(*shape, domain.n_users, domain.horizon, domain.fields),
        }

    def learn(self, context: FitContext) -> None:
        context.fit_behaviours("environment", self.mask_rate)
        rewards = self.domain.behaviours.reward_table(self.device)
        labels = context.label(
            "labels of advantage", lambda batch: self.labels(self.nets["environment"], rewards, batch, GAMMAS)
        )
        for column, gamma in enumerate(GAMMAS):
            net = self.nets["advantage"].copy()
            fit = replace(context, nets={"advantage": net}, optimisers={"advantage": self.create_optimiser(net)})
            fit.fit_values("advantage", labels[:, column])
            fill_unknown_items(net)
            centre_fields(net, context.data.tensors, context.worker_slice.group)
            self.values[gamma] = value_term(net)

    def build_scorer(self) -> NetScorer:
        behaviours = self.domain.behaviours
        instant = reward_term(self.nets["environment"], behaviours)
        for gamma, value in self.values.items():
            terms = {"instant": instant, "future": value}
            self.policies[gamma] = NetScorer(terms, behaviours.start, self.domain.fields)
        return self.policies[GAMMAS[0]]
