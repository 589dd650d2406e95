"""MBCAL with planning: the advantage of an item under the policy's own continuation, imagined in environment models.

MBCAL's advantage keeps the logged continuation: one step of improvement over the policy that made the log. An environment
model can answer the present policy. So, where that pays:

1. E environment models learn the behaviours, from different initial weights (`losses.behaviour_nll`);
2. the policy serves the train users in them. Every imagined session branches at one step into M items, and each branch is
   continued by the policy under the same noise (`environments.branches`)::

       Y(s_t, a) = sum_{tau > t} gamma^(tau - t) r_e(s_tau, a_tau)       r_e: the reward that environment model e expects

3. the advantage model g learns the differences between the items of a state (`losses.branch_mse`);
4. the policy becomes argmax r_1 + g, and 2 and 3 are repeated.

Only the first model is used for ranking. g also learns by how much the mean of the E models expects another instant reward
than that model, so the ensemble costs nothing when items are ranked.

What is added to the instant reward, this advantage, MBCAL's or none, is chosen from data (`advantage_choice`) in the first
fit, and again in growing rounds whenever the log has doubled. Derivation and measurements: docs/methods/mbcal-plan.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from mbcal.agents.advantage_choice import CANDIDATES, AdvantageKind, choose_advantage
from mbcal.agents.base import Agent
from mbcal.agents.config import AgentConfig
from mbcal.agents.cross_fitting import should_choose_again
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.mbcal import counterfactual_labels, noise_draws
from mbcal.agents.values import require_discount, reward_term, value_term
from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.environments.branches import PredictingEnvironment, imagine_branches
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.rollout import Policy
from mbcal.errors import OptionError
from mbcal.nn.base import expected_reward
from mbcal.nn.embeddings import fill_unknown_items
from mbcal.nn.fields import centre_fields
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.progress import Progress
from mbcal.scoring.scorers import NetScorer
from mbcal.training.branches import Branches
from mbcal.training.device_data import DeviceSessions
from mbcal.training.losses import base_branch_mse, branch_mse
from mbcal.training.random import Noise, derive_seed, permutation
from mbcal.types import MASK_ROW, SessionTensors

MIN_BRANCHES, MAX_BRANCHES = 8_192, 100_000
"""Imagined sessions of an iteration: one per train session, but at least and at most this many."""
MIN_CANDIDATES, CANDIDATES_PER_STEP = 128, 10
"""Candidates of an imagined session, at most: so many in all or per step, whichever is more, since each is shown once. They
are taken at random."""
BLOCK = 4_096
"""Imagined sessions whose instant rewards are compared at a time."""
EPSILON = 0.3
"""Probability of a random item at each step before the branch, so that g meets the states beside the policy's path."""


@dataclass(frozen=True)
class PlanConfig(AgentConfig):
    """Settings of MBCAL with planning."""

    advantage: Literal["auto"] | AdvantageKind = "auto"
    """What is added to the instant reward. `auto` chooses it in the first fit (`advantage_choice`). The config of the fitted
    agent has the chosen kind, which warm starts keep."""
    gamma: float = 1.0
    """Discount of future rewards, in [0, 1]."""
    models: int = 2
    """E, environment models."""
    iterations: int = 5
    """Times that sessions are imagined in the first fit; later fits go on from their policy, with one."""
    width: int = 4
    """M, items compared in every imagined session, at least 2."""
    branches: int | None = None
    """Sessions imagined in an iteration. None: one per train session, but at least 8,192 and at most 100,000."""
    mask_rate: float = 0.05
    """Probability with which an item is masked when environment models are trained, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_discount(self.gamma)
        known = ("auto", *get_args(AdvantageKind))
        if self.advantage not in known:
            raise OptionError(f"advantage: {self.advantage!r} is unknown; known are {', '.join(known)}")
        for name, least in (("models", 1), ("iterations", 1), ("width", 2), ("branches", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise OptionError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.mask_rate < 1:
            raise OptionError(f"mask_rate: must be in [0, 1), got {self.mask_rate}")


class MBCALPlan(Agent):
    """Score = expected instant reward + advantage, which is planned where that pays."""

    name = "mbcal-plan"
    Config = PlanConfig
    config: PlanConfig
    needs_candidates = True

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        shape = (domain.catalog, domain.behaviours, self.config.net)
        behaviours = (len(domain.behaviours), domain.n_users, domain.fields)
        nets: dict[str, nn.Module] = {name: RecurrentNet(*shape, *behaviours) for name in self._model_names}
        return {**nets, "advantage": ValueNet(*shape, domain.n_users, domain.horizon, domain.fields)}

    @property
    def _model_names(self) -> list[str]:
        """Names of the environment models; only the first is used for ranking."""
        return ["environment", *(f"environment-{number}" for number in range(2, self.config.models + 1))]

    def learn(self, context: FitContext) -> None:
        before = None if context.is_first_fit else self.fitted_scorer  # the weights may be shrunk, its tables are not
        if self.config.advantage == "auto" or self._should_choose_again(context):
            choice = choose_advantage(context, self.config, self._fit_policies)
            self.config, self.choices["advantage"] = replace(self.config, advantage=choice.kind), choice.record()
        self._choose_draws(context, is_update=not context.is_first_fit)
        self._fit_models(context)
        self._fit_advantage(context, before)

    def _choose_draws(self, context: FitContext, is_update: bool) -> None:
        """Let counterfactual labels keep the noise of sessions that earlier policies of this agent chose, as in MBCAL."""
        if is_update:
            self.choices["noise_draws"] = noise_draws(context.worker_slice.total)

    def _should_choose_again(self, context: FitContext) -> bool:
        """Whether it was chosen from a log of at most half the size, and the labels may change their scale."""
        if "advantage" not in self.choices or context.config.shrink == 1:
            return False
        return should_choose_again(self.choices["advantage"]["sessions"], context.worker_slice.total)

    @property
    def _advantage(self) -> AdvantageKind:
        if self.config.advantage == "auto":
            raise self._not_fitted()
        return self.config.advantage

    def _fit_policies(self, sessions: SessionTensors, settings: AgentConfig, progress: Progress) -> list[NetScorer]:
        """One policy for each of `CANDIDATES`, all with the same environment models and initial weights."""
        config = replace(self.config, net=settings.net, training=settings.training, seed=settings.seed)
        agent = _Candidates(replace(config, advantage=CANDIDATES[0]), self.device.type)
        agent.is_update = self.n_fits > 0
        return agent.fit(sessions, progress=progress).policies

    def _fit_models(self, context: FitContext) -> None:
        for name in self._model_names:
            context.fit_behaviours(name, self.config.mask_rate)

    def _fit_advantage(self, context: FitContext, policy: Policy | None = None) -> None:
        """Fit g. Planning begins with a policy, by default the instant reward alone."""
        if self._advantage == "planned":
            iterations = self.config.iterations if policy is None else 1
            for number in range(1, iterations + 1):
                self._fit_branches(context, policy or self._scorer_of(with_future=False), number)
                policy = self._scorer_of(with_future=True)
        elif self._uses_advantage:
            context.fit_values("advantage", context.label("labels of advantage", self._labels))

    @property
    def _uses_advantage(self) -> bool:
        """Whether the score has g: it also corrects the instant reward of the first of several models."""
        return self._advantage != "none" or self.config.models > 1

    # ---- planning

    def _fit_branches(self, context: FitContext, policy: Policy, iteration: int) -> None:
        """One iteration: imagine branches by the policy, and fit g to them."""
        net: ValueNet = self.nets["advantage"]
        fit, branches, draws = self._imagine(context, policy, iteration)
        group = context.worker_slice.group
        if iteration == 1 and (context.is_first_fit or context.config.shrink < 1):
            net.label_scaler.shift.zero_()
            net.label_scaler.scale.fill_(branches.scale(group))
        base_loss = base_branch_mse(net, branches, fit.held_out_rows, fit.worker_slice)
        stage = f"advantage, iteration {iteration}"
        fit.train("advantage", branch_mse(net, branches), copies=draws, base_loss=base_loss, stage=stage)

    def _imagine(self, context: FitContext, policy: Policy, iteration: int) -> tuple[FitContext, Branches, int]:
        """Imagine sessions of this worker's users.

        Returns:
            A context of the imagined sessions, their branches, and how many sessions were imagined per user session, one
            copy after another.
        """
        seed = derive_seed(context.seed, "imagination", iteration)
        total = context.worker_slice.total
        wanted = self.config.branches or min(max(total, MIN_BRANCHES), MAX_BRANCHES)
        chosen = permutation(seed, total)[:wanted].sort().values  # numbers over all workers
        rows = context.worker_slice.local_rows(chosen)
        numbers, draws = rows + context.worker_slice.begin, math.ceil(wanted / len(chosen))
        sessions = context.data.tensors[rows.to(context.data.tensors.device)]
        candidates = _sample_columns(sessions.require_candidates(), sessions.horizon, numbers, seed)
        parts = [
            self._imagine_once(context, policy, sessions, candidates, numbers + draw * context.worker_slice.total, seed)
            for draw in range(draws)
        ]
        branches = self._corrected(Branches.concat(parts))
        begin = int(torch.searchsorted(chosen, context.worker_slice.begin))
        is_held_out = np.isin(chosen.numpy(), context.held_out_rows)
        fit = replace(
            context,
            data=DeviceSessions(branches.sessions, self.device),
            worker_slice=WorkerSlice(begin, len(rows), len(chosen), context.worker_slice.group),
            train_rows=np.flatnonzero(~is_held_out),
            held_out_rows=np.flatnonzero(is_held_out),
            weights=None,
        )
        return fit, branches, draws

    def _imagine_once(
        self,
        context: FitContext,
        policy: Policy,
        sessions: SessionTensors,
        candidates: Tensor,
        numbers: Tensor,
        seed: int,
    ) -> Branches:
        """Imagine every session once, each in one of the environment models."""
        parts, places = [], []
        for model, name in enumerate(self._model_names):
            rows = (numbers % self.config.models == model).nonzero().squeeze(1)
            if not len(rows):
                continue
            local = rows.to(sessions.device)
            branches = imagine_branches(
                policy,
                self.environment(name),
                sessions[local],
                candidates[local],
                numbers[rows],
                width=self.config.width,
                gamma=self.config.gamma,
                epsilon=EPSILON,
                seed=seed,
                progress=context.progress,
            )
            parts.append(branches)
            places.append(rows)
        return Branches.concat(parts)[torch.cat(places).argsort().to(self.device)]

    @torch.no_grad()
    def _corrected(self, branches: Branches) -> Branches:
        """The branches with the difference of the mean instant reward of all models to that of the first added."""
        if self.config.models == 1:
            return branches
        parts = []
        for rows in torch.split(torch.arange(len(branches), device=self.device), BLOCK):
            part = branches[rows]
            outputs = [net.outputs_at(part.sessions, part.step, part.items) for net in self._models]
            parts.append(self._correction(outputs))
        return replace(branches, futures=branches.futures + torch.cat(parts))

    def environment(self, name: str = "environment") -> PredictingEnvironment:
        """Return an environment model as an environment, for imagined sessions."""
        return ModelEnvironment(self.nets[name], self.domain.catalog, self.domain.behaviours)

    @property
    def _models(self) -> list[RecurrentNet]:
        return [self.nets[name] for name in self._model_names]

    @torch.no_grad()
    def _correction(self, logits: Sequence[Tensor]) -> Tensor:
        """Mean reward expected by the models less that of the first, (…), by their logits (…, K)."""
        rewards = self.domain.behaviours.reward_table(self.device)
        expected = torch.stack([expected_reward(outputs, rewards) for outputs in logits])
        return expected.mean(0) - expected[0]

    # ---- labels of logged steps

    @torch.no_grad()
    def _labels(self, batch: SessionTensors) -> Tensor:
        """What g learns at logged steps, (B, T): MBCAL's advantage, averaged over the models, and their correction."""
        correction = torch.where(batch.mask, self._correction([net.forward_batch(batch) for net in self._models]), 0)
        if self._advantage == "none":
            return correction
        rewards, gamma = self.domain.behaviours.reward_table(self.device), self.config.gamma
        draws = self.choices.get("noise_draws", 0)
        labels = [counterfactual_labels(net, rewards, batch, gamma, draws) for net in self._models]
        return torch.stack(labels).mean(0) + correction

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor] | None:
        if self._advantage == "planned" or not self._uses_advantage:
            return None  # labels of planning are not of logged steps; without an advantage there are none
        return self._labels(batch), self.nets["advantage"].values(batch)

    # ---- ranking

    def build_scorer(self) -> NetScorer:
        return self._scorer_of(with_future=self._uses_advantage)

    def _scorer_of(self, with_future: bool) -> NetScorer:
        terms = {"instant": reward_term(self.nets["environment"], self.domain.behaviours)}
        if with_future:
            terms["future"] = value_term(self.nets["advantage"])
        return NetScorer(terms, self.domain.behaviours.start, self.domain.fields)


class _Candidates(MBCALPlan):
    """Fits one policy per candidate of a choice."""

    policies: list[NetScorer]
    is_update = False
    """Whether the sessions were chosen by earlier policies of the agent that chooses."""

    def learn(self, context: FitContext) -> None:
        self._choose_draws(context, self.is_update)
        self._fit_models(context)
        untrained, fitted = self.nets["advantage"], {}
        for candidate in CANDIDATES:
            net = fitted[candidate] = self.nets["advantage"] = untrained.copy()
            optimisers = {**context.optimisers, "advantage": self.create_optimiser(net)}
            self.config = replace(self.config, advantage=candidate)
            self._fit_advantage(replace(context, nets=self.nets, optimisers=optimisers))
        for trained in (*self._models, *fitted.values()):  # after all candidates, so that they learn from the same models
            fill_unknown_items(trained)
            centre_fields(trained, context.data.tensors, context.worker_slice.group)
        self.policies = []
        for candidate, net in fitted.items():
            self.config, self.nets["advantage"] = replace(self.config, advantage=candidate), net
            self.policies.append(self.build_scorer())


def _sample_columns(candidates: Tensor, horizon: int, numbers: Tensor, seed: int) -> Tensor:
    """Some of candidates (N, C) or (N, T, C), at random, if there are too many; padding is taken last."""
    most = max(MIN_CANDIDATES, CANDIDATES_PER_STEP * horizon)
    if candidates.shape[-1] <= most:
        return candidates
    device = candidates.device
    noise = Noise(torch.tensor(derive_seed(seed, "candidates"), device=device), numbers.to(device))
    order = noise.uniform(candidates.shape).masked_fill(candidates == MASK_ROW, -1.0)
    return candidates.gather(-1, order.topk(most, -1).indices)
