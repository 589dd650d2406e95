"""Random: every candidate is as good as any other. The floor that every method must leave."""

from __future__ import annotations

from torch import nn

from mbcal.agents.base import Agent, Domain, Lesson
from mbcal.scoring.scorers import ChanceScorer
from mbcal.training.random import seed_of


class Random(Agent):
    """Scores drawn by hashing the seed and everything seen, so that the same session gets the same ranking."""

    name = "random"

    def networks(self, domain: Domain) -> dict[str, nn.Module]:  # noqa: ARG002 - as every agent's
        return {}

    def learn(self, lesson: Lesson) -> None:
        """Nothing to learn."""

    def scorer(self) -> ChanceScorer:
        return ChanceScorer(seed_of(self.config.seed, self.name) & 0x7FFFFFFF)
