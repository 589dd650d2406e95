"""Variants of MBCAL that were tried beside its options, as agents of one's own: `benchmarks/trials.py:Ensemble`.

What came of them stands in docs/LOG.md; `python benchmarks/results.py run DATA-trials` runs them again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.agents import MBCAL, Domain
from mbcal.agents.base import FitContext
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.losses import behaviour_nll
from mbcal.training.targets import counterfactual_future_advantage
from mbcal.types import SessionTensors


class Ensemble(MBCAL):
    """Several environment models; the advantage learned is the mean of what they say."""

    name = "mbcal-ensemble"
    more = ("second", "third")
    brake = 0.0
    """How many standard deviations of the models' disagreement are taken off."""

    def networks(self, domain: Domain) -> dict[str, nn.Module]:
        made = super().networks(domain)
        for name in self.more:
            made[name] = RecurrentNet(
                domain.catalog, domain.behaviours, self.config.net, len(domain.behaviours), domain.n_users
            )
        return made

    def learn(self, lesson: FitContext) -> None:
        for name in self.more:
            lesson.train(name, behaviour_nll(self.nets[name], lesson.data, self.config.mask_rate))
        super().learn(lesson)

    def advantage(self, batch: SessionTensors) -> Tensor:
        said = torch.stack(
            [
                counterfactual_future_advantage(self.nets[name], self._rewards(), batch, self.config.gamma)
                for name in ("environment", *self.more)
            ]
        )
        return said.mean(0) - self.brake * said.std(0)


class Braked(Ensemble):
    """Where the models disagree, less is promised."""

    name = "mbcal-braked"
    brake = 1.0


class SharedStart(MBCAL):
    """The advantage model begins with the encoders the environment model has learned."""

    name = "mbcal-shared-start"

    def learn(self, lesson: FitContext) -> None:
        environment = self.nets["environment"]
        lesson.train("environment", behaviour_nll(environment, lesson.data, self.config.mask_rate))
        if lesson.first:
            encoders = {key: value for key, value in environment.state_dict().items() if not key.startswith("head.")}
            self.nets["advantage"].load_state_dict(encoders, strict=False)
        self.learn_label(lesson, "advantage", self.advantage)


class SharedEncoder(SharedStart):
    """… and never leaves them: only its head learns."""

    name = "mbcal-shared-encoder"

    def networks(self, domain: Domain) -> dict[str, nn.Module]:
        made = super().networks(domain)
        for name, parameter in made["advantage"].named_parameters():
            parameter.requires_grad_(name.startswith("head."))
        return made
