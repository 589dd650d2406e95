"""MBCAL: rank by instant reward + counterfactual future advantage.

Wang et al., *MBCAL: Sample Efficient and Variance Reduced Reinforcement Learning for Recommender Systems*. Two networks of
one architecture:

1. the masked environment model f_phi learns the behaviour at every step, items masked at random
   (`losses.behaviour_likelihood`, Eq. environment_loss);
2. it labels every logged step with the rest of the session as it expects it, minus the same with this step's item masked
   (`labels.counterfactual_future_advantage`, Eq. couterfactual_future_advantage);
3. the future advantage model g_eta learns these labels (`losses.value_error`, Eq. CFAApproximator);
4. the policy ranks by r_phi + g_eta (`scoring.NetScorer`, Eq. Recommendation_policy).

Without variance reduction (`mbcal-no-vr`, the paper's ablation) the label is the simulated future reward itself
(`labels.simulated_future_reward`, Eq. future_reward).

Deviations: (1) labels are standardised inside g_eta and restored at its output; (2) a one-off fit stops early on users
held out; (3) sessions may be shorter than the horizon, and losses are means over steps, not over sessions; (4) h_0 is read
from the user's history by a GRU unless told otherwise, where the paper writes Emb(u).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.agent import Agent, AgentConfig, Domain, Lesson, instant_term, value_term
from mbcal.environment import ModelEnvironment
from mbcal.errors import OptionError
from mbcal.labels import counterfactual_future_advantage, simulated_future_reward
from mbcal.losses import behaviour_likelihood, value_error
from mbcal.nets import SequenceNet, ValueNet, expected_reward
from mbcal.scorers import NetScorer
from mbcal.training import blocks
from mbcal.types import SessionTensors


@dataclass(frozen=True)
class MBCALConfig(AgentConfig):
    """Settings of MBCAL."""

    gamma: float = 0.95
    """Discount of the future."""
    mask_rate: float = 0.2
    """Probability with which the environment model is not told an item."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise OptionError(f"gamma: must be in [0, 1], got {self.gamma}")
        if not 0 <= self.mask_rate < 1:
            raise OptionError(f"mask_rate: must be in [0, 1), got {self.mask_rate}")


class MBCAL(Agent):
    """Score = expected instant reward + future advantage."""

    name = "mbcal"
    Config = MBCALConfig
    config: MBCALConfig

    def networks(self, domain: Domain) -> dict[str, nn.Module]:
        known = (domain.catalog, domain.behaviours, self.config.net)
        return {
            "environment": SequenceNet(*known, len(domain.behaviours), domain.users),
            "advantage": ValueNet(*known, domain.users),
        }

    def learn(self, lesson: Lesson) -> None:
        environment, advantage = self.nets["environment"], self.nets["advantage"]
        lesson.train("environment", behaviour_likelihood(environment, lesson.data, self.config.mask_rate))
        lesson.progress.phase("labels", len(lesson.data))
        labels = []
        for rows in blocks(lesson.data):
            labels.append(self.label(lesson.data[rows]))
            lesson.progress.advance(len(labels[-1]))
        label = torch.cat(labels)
        if lesson.first:
            advantage.standardise(label, lesson.data.mask)
        lesson.train("advantage", value_error(advantage, lesson.data, label))

    def label(self, batch: SessionTensors) -> Tensor:
        """What g_eta learns at every step (B, T)."""
        return counterfactual_future_advantage(self.nets["environment"], self._rewards(), batch, self.config.gamma)

    def _rewards(self) -> Tensor:
        return self.domain.behaviours.reward_table(self.device)

    @torch.no_grad()
    def regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        return self.label(batch), self.nets["advantage"].values(batch)

    def scorer(self) -> NetScorer:
        environment, advantage = self.nets["environment"], self.nets["advantage"]
        terms = {"instant": instant_term(environment, self.domain.behaviours), "future": value_term(advantage)}
        return NetScorer(terms, self.domain.behaviours.start)

    def environment(self) -> ModelEnvironment:
        """The environment model as users one can ask: for imagined sessions."""
        domain = self.domain
        return ModelEnvironment(self.nets["environment"], domain.catalog, domain.behaviours)


class MBCALWithoutVarianceReduction(MBCAL):
    """The paper's ablation: the future advantage model learns the simulated future reward."""

    name = "mbcal-no-vr"

    @torch.no_grad()
    def label(self, batch: SessionTensors) -> Tensor:
        predicted = expected_reward(self.nets["environment"].run(batch), self._rewards())
        return simulated_future_reward(predicted, batch.mask, self.config.gamma)
