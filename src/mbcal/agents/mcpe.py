"""MCPE: Monte Carlo policy evaluation, the return of the logged session as it was.

Dimitrakakis and Lagoudakis, *Rollout Sampling Approximate Policy Iteration* (2008), as the MBCAL paper compares with. The
label of step t is the discounted sum of the rewards that followed it (`labels.discounted_returns`): no model, no bootstrap,
all the noise of the user. The policy that ranks by it improves on the policy that made the log by one step.

Deviations: (1) the return counts from the step itself, not over the whole session; what came before an item is no credit
of it; (2) labels are standardised inside the network and restored at its output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent, AgentConfig, Domain, FitContext, value_term
from mbcal.errors import OptionError
from mbcal.nn.recurrent import ValueNet
from mbcal.scoring.scorers import NetScorer
from mbcal.training.device_data import DeviceSessions
from mbcal.training.losses import value_mse
from mbcal.training.targets import discounted_returns
from mbcal.types import SessionTensors


@dataclass(frozen=True)
class ValueConfig(AgentConfig):
    """ExperimentConfig of methods that learn a value."""

    gamma: float = 0.95
    """Discount of the future."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise OptionError(f"gamma: must be in [0, 1], got {self.gamma}")


def session_returns(data: DeviceSessions, gamma: float) -> Tensor:
    """(N, T) discounted returns of sessions, a block at a time."""
    parts = (data[rows] for rows in data.blocks())
    return torch.cat([discounted_returns(part.rewards, part.mask, gamma) for part in parts])


class MCPE(Agent):
    """Score = expected return from here on, under the policy of the log."""

    name = "mcpe"
    Config = ValueConfig
    config: ValueConfig

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"value": ValueNet(domain.catalog, domain.behaviours, self.config.net, domain.n_users, domain.horizon)}

    def learn(self, context: FitContext) -> None:
        value: ValueNet = self.nets["value"]
        labels = session_returns(context.data, self.config.gamma)
        if context.first:
            value.label_scaler.fit(labels, context.data.mask, context.worker_slice.group)
        context.train("value", value_mse(value, context.data, labels))

    def label(self, batch: SessionTensors) -> Tensor:
        """G_t (B, T)."""
        return discounted_returns(batch.rewards, batch.mask, self.config.gamma)

    @torch.no_grad()
    def value_regression(self, batch: SessionTensors) -> tuple[Tensor, Tensor]:
        return self.label(batch), self.nets["value"].values(batch)

    def build_scorer(self) -> NetScorer:
        return NetScorer({"value": value_term(self.nets["value"])}, self.domain.behaviours.start)
