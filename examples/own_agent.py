"""A method of one's own in one file: GRU4Rec that shies away from what users might dislike.

Run:  mbcal experiment newsfeed --agents gru4rec,examples/own_agent.py:Cautious --seeds 1 --out mine

It learns behaviours as GRU4Rec does, and beside them how far the reward of a step usually falls short of what was expected;
it ranks by expected reward minus a share of that shortfall.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent, AgentConfig
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.agents.values import reward_term, value_term
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import RecurrentNet, ValueNet
from mbcal.scoring.scorers import NetScorer
from mbcal.training.losses import behaviour_nll
from mbcal.types import SessionTensors


@dataclass(frozen=True)
class CautiousConfig(AgentConfig):
    """Settings."""

    caution: float = 0.5
    """Weight of the expected shortfall."""


class Cautious(Agent):
    """Score = expected reward - caution x expected shortfall."""

    name = "cautious"
    Config = CautiousConfig
    config: CautiousConfig

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        """One network of behaviours, one of a number."""
        known = (domain.catalog, domain.behaviours, self.config.net)
        return {
            "behaviour": RecurrentNet(*known, len(domain.behaviours), domain.n_users),
            "shortfall": ValueNet(*known, domain.n_users, domain.horizon),
        }

    def learn(self, context: FitContext) -> None:
        """First the behaviours, then what the first network was wrong by."""
        context.train("behaviour", behaviour_nll(self.nets["behaviour"], context.data))
        context.fit_values("shortfall", context.label("labels of shortfall", self.label))

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """-caution x how far the reward fell short, at every step."""
        rewards = torch.tensor(self.domain.behaviours.rewards, device=self.device)
        expected = expected_reward(self.nets["behaviour"].forward_batch(batch), rewards)
        short = (expected - batch.rewards).clamp(min=0)
        return torch.where(batch.mask, -self.config.caution * short, 0)

    def build_scorer(self) -> NetScorer:
        """The sum of two terms."""
        terms = {
            "instant": reward_term(self.nets["behaviour"], self.domain.behaviours),
            "caution": value_term(self.nets["shortfall"]),
        }
        return NetScorer(terms, self.domain.behaviours.start)
