"""Choose the discount of MBCAL from data: let policies serve other users, as a model of those users imagines them.

A policy cannot be judged in the environment model it was made with, which shares its errors. So the users are split::

    half A   environment model + one future advantage model per candidate   ──▶  one policy per candidate
                                                                                   │ serves, in common noise
    half B   a second model of behaviours, the judge                        ──▶  the users of B

A larger discount replaces a smaller one only if the confidence interval of its gain lies above 0: ties go to the smaller.
Measurements: docs/decisions/0018-gamma-from-data.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.config import AgentConfig
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.gru4rec import GRU4Rec
from mbcal.agents.values import reward_term, value_term
from mbcal.config import from_dict, to_dict
from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.environments.candidates import session_candidates
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.rollout import rollout
from mbcal.metrics import Floats, mean_interval
from mbcal.nn.embeddings import fill_unknown_items
from mbcal.nn.fields import centre_fields
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.progress import Progress
from mbcal.scoring.scorers import UNKNOWN_USER, NetScorer, ScoreTerm
from mbcal.training.random import derive_seed, hash_fractions, hash_order
from mbcal.types import SessionTensors

GAMMAS = (0.95, 1.0)
"""Candidates, in rising order."""
GAMMA_SESSIONS = 20_000
"""Sessions that the choice is made on, of both halves together; no further user is added once this number is reached."""
GAMMA_LEVEL = 0.99
"""Level of the confidence interval of a gain, which must lie above 0."""
STAGE = "gamma choice"
"""Name of the choice in checkpoints."""

LabelFunction = Callable[[RecurrentNet, Tensor, SessionTensors, Sequence[float]], Tensor]
"""(environment model, rewards (K,), B sessions, G discounts) -> labels of the future advantage model (B, G, T)."""


@dataclass(frozen=True)
class Candidate:
    """A discount and what its policy earned."""

    gamma: float
    reward: float
    """Mean reward of a session."""
    gain: float = 0.0
    """Mean gain over the best smaller candidate; 0 for the smallest."""
    low: float = 0.0
    """Lower end of the confidence interval of the gain."""
    high: float = 0.0
    """Upper end."""


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

    Workers that share the fit all compute the choice on the same sessions, so it does not depend on their number; the
    rewards of the first worker decide.

    Args:
        context: The fit that needs a discount. Its checkpoints keep the choice.
        config: Networks, training settings and seed of the agent.
        mask_rate: Probability with which an item is masked when the environment model is trained.
        labels: The labels that the agent's future advantage model learns.

    Returns:
        The choice: the smallest candidate if a half would have fewer than two users.
    """
    checkpoints, group = context.checkpoints, context.worker_slice.group
    record = checkpoints.stage(STAGE)[0] if checkpoints else None
    if record is not None:
        return from_dict(GammaChoice, record)
    users = context.worker_slice.all_gather(context.data.tensors.user).cpu().numpy()
    row_indices = _sample_users(users, config.seed)
    users = users[row_indices]
    in_first = hash_fractions(users, config.seed, "halves of the gamma choice") < 0.5
    if min(len(np.unique(users[half])) for half in (in_first, ~in_first)) < 2:
        return GammaChoice(GAMMAS[0], 0, ())
    sessions = _gather_sessions(context, row_indices)
    halves = [sessions[torch.from_numpy(np.flatnonzero(half)).to(sessions.device)] for half in (in_first, ~in_first)]
    rewards = _serve_all(halves[0], halves[1], context, config, mask_rate, labels)
    if group.rank:
        rewards.zero_()
    group.all_reduce_sum(rewards)
    choice = largest_better(dict(zip(GAMMAS, rewards.cpu().numpy(), strict=True)), users[~in_first])
    if checkpoints and group.rank == 0:
        checkpoints.save(STAGE, choice.record(), {})
    return choice


def has_outgrown(served: int, sessions: int) -> bool:
    """Whether a choice should be made again for a log that has grown.

    Args:
        served: Sessions that the candidates of the last choice served (`GammaChoice.sessions`), about half of those it was
            made on.
        sessions: Sessions of the log.

    Returns:
        Whether about twice as many sessions can now take part.
    """
    return min(sessions, GAMMA_SESSIONS) >= 3.5 * served


def largest_better(rewards: Mapping[float, Floats], users: NDArray[Any]) -> GammaChoice:
    """Choose a discount by the rewards of its policy, ties to the smaller.

    In rising order, a discount replaces the best smaller one if the confidence interval of its gain lies above 0.

    Args:
        rewards: By discount in rising order: (N,) reward of every session, under common random numbers.
        users: (N,) the user of every session; at least two differ.
    """
    (best, _), *others = rewards.items()
    candidates = [Candidate(best, float(rewards[best].mean()))]
    for gamma, earned in others:
        gain = mean_interval(earned - rewards[best], users, GAMMA_LEVEL)
        candidates.append(Candidate(gamma, float(earned.mean()), gain.mean, gain.low, gain.high))
        if gain.low > 0:
            best = gamma
    return GammaChoice(best, len(users), tuple(candidates))


def _sample_users(users: NDArray[np.int32], seed: int) -> NDArray[np.int64]:
    """Indices in rising order of the sessions of about `GAMMA_SESSIONS` sessions' users, out of users (N,).

    Users are taken in the order of a hash. Sessions of unknown users are left out: they belong to no half.
    """
    distinct, counts = np.unique(users[users != UNKNOWN_USER], return_counts=True)
    order = hash_order(distinct, seed, "users of the gamma choice")
    sessions_before = np.cumsum(counts[order]) - counts[order]
    return np.flatnonzero(np.isin(users, distinct[order[sessions_before < GAMMA_SESSIONS]]))


def _gather_sessions(context: FitContext, row_indices: NDArray[np.int64]) -> SessionTensors:
    """The sessions with these indices (n,), in rising order, from all workers to every worker."""
    worker_slice = context.worker_slice
    local = context.data[worker_slice.local_rows(torch.from_numpy(row_indices))]
    begin = int(np.searchsorted(row_indices, worker_slice.begin))
    part = WorkerSlice(begin, len(local), len(row_indices), worker_slice.group)
    gathered: dict[str, Any] = {name: part.all_gather(tensor) for name, tensor in local.tensors()}
    return replace(local, **gathered)


def _serve_all(
    first: SessionTensors,
    second: SessionTensors,
    context: FitContext,
    config: AgentConfig,
    mask_rate: float,
    labels: LabelFunction,
) -> Tensor:
    """Rewards (G, n) of the n sessions of the second half, served by the policies of the first, in the second's model."""
    progress, device = _ChoiceProgress(context.progress), context.data.device.type
    training = replace(context.config, propensity_weights=False)  # the gathered sessions have no propensities
    planner_config, judge_config = (
        AgentConfig(config.net, training, derive_seed(config.seed, STAGE, role)) for role in ("planner", "judge")
    )
    planner = _Planner(planner_config, device, mask_rate, labels).fit(first, progress=progress)
    judge = GRU4Rec(judge_config, device).fit(second, progress=progress)
    environment = ModelEnvironment(judge.nets["behaviour"], first.catalog, first.behaviour_set)
    served = replace(second, user=torch.full_like(second.user, UNKNOWN_USER))
    candidates = session_candidates(served, context.seed)
    rewards = [
        rollout(
            planner.policies[gamma],
            environment,
            served,
            candidates=candidates,
            seed=context.seed,
            title=f"serving with {gamma}",
            progress=progress,
        ).rewards.sum(1)
        for gamma in GAMMAS
    ]
    return torch.stack(rewards)


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
            net = copy.deepcopy(self.nets["advantage"])
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


class _ChoiceProgress:
    """Reports the phases of the choice under its name."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def phase(self, title: str, total: int | None = None) -> None:
        self._progress.phase(f"choosing gamma: {title}", total)

    def advance(self, amount: int) -> None:
        self._progress.advance(amount)
