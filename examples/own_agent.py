"""A method in a file of your own: GRU4Rec that avoids items which users might dislike.

Run:  mbcal experiment newsfeed --agents gru4rec,examples/own_agent.py:Cautious --seeds 1 --out mine

It learns behaviours as GRU4Rec does. A second network learns by how much the reward of a step falls short, on average, of
the expected one. It ranks by the expected reward minus a share of that shortfall. docs/new-method.md explains the hooks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.config import AgentConfig
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.values import reward_term, value_term
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.scorers import NetScorer
from mbcal.types import SessionTensors


@dataclass(frozen=True)
class CautiousConfig(AgentConfig):
    """Settings: those of every agent, and one more."""

    caution: float = 0.5
    """Weight of the expected shortfall."""


class Cautious(Agent):
    """Score = expected reward - caution * expected shortfall."""

    name = "cautious"
    Config = CautiousConfig
    config: CautiousConfig

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        """Create a network of behaviours and a network of values."""
        shape = (domain.catalog, domain.behaviours, self.config.net)
        return {
            "behaviour": RecurrentNet(*shape, len(domain.behaviours), domain.n_users, domain.fields),
            "shortfall": ValueNet(*shape, domain.n_users, domain.horizon, domain.fields),
        }

    def learn(self, context: FitContext) -> None:
        """Fit the network of behaviours; then fit the other to the first one's errors."""
        context.fit_behaviours("behaviour")
        context.fit_values("shortfall", context.label("labels of shortfall", self.label))

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """Return by how much the reward of every step fell short of the expected one, (B, T)."""
        rewards = self.domain.behaviours.reward_table(self.device)
        expected = expected_reward(self.nets["behaviour"].forward_batch(batch), rewards)
        return torch.where(batch.mask, (expected - batch.rewards).clamp(min=0), 0)

    def build_scorer(self) -> NetScorer:
        """Rank by the sum of two terms."""
        terms = {
            "instant": reward_term(self.nets["behaviour"], self.domain.behaviours),
            "caution": value_term(self.nets["shortfall"], -self.config.caution),
        }
        return NetScorer(terms, self.domain.behaviours.start, self.domain.fields)
