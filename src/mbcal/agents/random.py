"""Random: uniformly random scores, the baseline that every method must beat."""

from __future__ import annotations

from torch import nn

from mbcal.agents.base import Agent
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.scoring.scorers import RandomScorer
from mbcal.training.random import derive_seed


class Random(Agent):
    """Score = a hash of the seed, the user, everything shown so far and the item; a session always gets the same ranking."""

    name = "random"

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:  # noqa: ARG002 - the signature of every agent
        return {}

    def learn(self, context: FitContext) -> None:
        """Nothing to learn."""

    def build_scorer(self) -> RandomScorer:
        return RandomScorer(derive_seed(self.config.seed, self.name) & 0x7FFFFFFF)
