"""MCPE: Monte Carlo policy evaluation, which learns the return of the logged session itself.

Dimitrakakis and Lagoudakis, *Rollout Sampling Approximate Policy Iteration* (2008), a baseline of the MBCAL paper. The label
of step t is the discounted sum of the rewards from t on (`labels.discounted_returns`): no model, no bootstrapping, all the
noise of the user's behaviours. Ranking by it is one step of policy improvement over the logging policy.

Deviations: (1) the return counts from the step itself, not over the whole session, since an item has no effect on what came
before it; (2) labels are normalised inside the network and restored at its output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.values import ValueConfig, session_returns, value_term
from mbcal.nn.recurrent import ValueNet
from mbcal.scoring.scorers import NetScorer
from mbcal.training.labels import discounted_returns
from mbcal.types import SessionTensors


class MCPE(Agent):
    """Score = expected return of the candidate, then of the logging policy."""

    name = "mcpe"
    Config = ValueConfig
    config: ValueConfig

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        shape = (domain.catalog, domain.behaviours, self.config.net, domain.n_users, domain.horizon)
        return {"value": ValueNet(*shape, domain.fields)}

    def learn(self, context: FitContext) -> None:
        context.fit_values("value", session_returns(context.data, self.config.gamma))

    def label(self, batch: SessionTensors) -> Tensor:
        """Return the labels G_t of B sessions, (B, T)."""
        return discounted_returns(batch.rewards, batch.mask, self.config.gamma)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        return self.label(batch), self.nets["value"].values(batch)

    def build_scorer(self) -> NetScorer:
        terms = {"value": value_term(self.nets["value"])}
        return NetScorer(terms, self.domain.behaviours.start, self.domain.fields)
