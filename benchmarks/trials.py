"""Variants of MBCAL that were tried and are not part of the library, as agents in a file: `benchmarks/trials.py:Ensemble`.

Their results are in docs/LOG.md; `python benchmarks/results.py run DATA-trials` runs them again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.agents import MBCAL, Domain
from mbcal.agents.fit_context import FitContext
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.labels import counterfactual_future_advantage
from mbcal.training.losses import behaviour_nll
from mbcal.types import SessionTensors


class Ensemble(MBCAL):
    """Several environment models; the label is the mean of their advantages, less a multiple of the standard deviation."""

    name = "mbcal-ensemble"
    further_models = ("second", "third")
    brake = 0.0
    """How many standard deviations are subtracted."""

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        nets = super().build_networks(domain)
        shape = (domain.catalog, domain.behaviours, self.config.net, len(domain.behaviours), domain.n_users)
        return nets | {name: RecurrentNet(*shape) for name in self.further_models}

    def learn(self, context: FitContext) -> None:
        for name in self.further_models:
            context.train(name, behaviour_nll(self.nets[name], context.data, self.config.mask_rate))
        super().learn(context)

    def advantage(self, batch: SessionTensors) -> Tensor:
        rewards = self.domain.behaviours.reward_table(self.device)
        models = [self.nets[name] for name in ("environment", *self.further_models)]
        advantages = torch.stack(
            [counterfactual_future_advantage(model, rewards, batch, self.config.gamma) for model in models]
        )
        return advantages.mean(0) - self.brake * advantages.std(0)


class Braked(Ensemble):
    """The less the models agree, the smaller the label."""

    name = "mbcal-braked"
    brake = 1.0


class SharedStart(MBCAL):
    """The advantage model starts with the encoders of the trained environment model."""

    name = "mbcal-shared-start"

    def learn(self, context: FitContext) -> None:
        environment = self.nets["environment"]
        context.train("environment", behaviour_nll(environment, context.data, self.config.mask_rate))
        if context.is_first_fit:
            encoders = {key: value for key, value in environment.state_dict().items() if not key.startswith("head.")}
            self.nets["advantage"].load_state_dict(encoders, strict=False)
        context.fit_values("advantage", context.label("labels of advantage", self.advantage))


class SharedEncoder(SharedStart):
    """The advantage model keeps the encoders of the environment model: only its head is trained."""

    name = "mbcal-shared-encoder"

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        nets = super().build_networks(domain)
        for name, parameter in nets["advantage"].named_parameters():
            parameter.requires_grad_(name.startswith("head."))
        return nets
