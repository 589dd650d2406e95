"""A method of one's own in one file: GRU4Rec that shies away from what users might dislike.

Run:  mbcal experiment newsfeed --agents gru4rec,examples/own_agent.py:Cautious --seeds 1 --out mine

It learns behaviours as GRU4Rec does, and beside them how far the reward of a step usually falls short of what was expected;
it ranks by expected reward minus a share of that shortfall.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent, AgentConfig, Domain, Lesson, instant_term, value_term
from mbcal.nn.base import expected_reward
from mbcal.nn.recurrent import SequenceNet, ValueNet
from mbcal.scoring.scorers import NetScorer
from mbcal.training.device_data import blocks
from mbcal.training.losses import behaviour_likelihood, value_error
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

    def networks(self, domain: Domain) -> dict[str, nn.Module]:
        """One network of behaviours, one of a number."""
        known = (domain.catalog, domain.behaviours, self.config.net)
        return {
            "behaviour": SequenceNet(*known, len(domain.behaviours), domain.users),
            "shortfall": ValueNet(*known, domain.users, domain.horizon),
        }

    def learn(self, lesson: Lesson) -> None:
        """First the behaviours, then what the first network was wrong by."""
        lesson.train("behaviour", behaviour_likelihood(self.nets["behaviour"], lesson.data))
        labels = torch.cat([self.label(lesson.data[rows]) for rows in blocks(lesson.data)])
        if lesson.first:
            self.nets["shortfall"].unit.fit(labels, lesson.data.mask)
        lesson.train("shortfall", value_error(self.nets["shortfall"], lesson.data, labels))

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        """-caution x how far the reward fell short, at every step."""
        rewards = torch.tensor(self.domain.behaviours.rewards, device=self.device)
        expected = expected_reward(self.nets["behaviour"].run(batch), rewards)
        short = (expected - batch.rewards).clamp(min=0)
        return torch.where(batch.mask, -self.config.caution * short, 0)

    def scorer(self) -> NetScorer:
        """The sum of two terms."""
        terms = {
            "instant": instant_term(self.nets["behaviour"], self.domain.behaviours),
            "caution": value_term(self.nets["shortfall"]),
        }
        return NetScorer(terms, self.domain.behaviours.start)
