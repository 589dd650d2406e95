"""Variants of MBCAL that were tried beside its options, as agents of one's own: `benchmarks/trials.py:Ensemble`.

What came of them stands in docs/LOG.md; `python benchmarks/results.py run DATA-trials` runs them again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.agents import MBCAL, Domain
from mbcal.agents.fit_context import FitContext
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

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        made = super().build_networks(domain)
        for name in self.more:
            made[name] = RecurrentNet(
                domain.catalog, domain.behaviours, self.config.net, len(domain.behaviours), domain.n_users
            )
        return made

    def learn(self, context: FitContext) -> None:
        for name in self.more:
            context.train(name, behaviour_nll(self.nets[name], context.data, self.config.mask_rate))
        super().learn(context)

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

    def learn(self, context: FitContext) -> None:
        environment = self.nets["environment"]
        context.train("environment", behaviour_nll(environment, context.data, self.config.mask_rate))
        if context.is_first_fit:
            encoders = {key: value for key, value in environment.state_dict().items() if not key.startswith("head.")}
            self.nets["advantage"].load_state_dict(encoders, strict=False)
        context.fit_values("advantage", context.label("labels of advantage", self.advantage))


class SharedEncoder(SharedStart):
    """… and never leaves them: only its head learns."""

    name = "mbcal-shared-encoder"

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        made = super().build_networks(domain)
        for name, parameter in made["advantage"].named_parameters():
            parameter.requires_grad_(name.startswith("head."))
        return made
