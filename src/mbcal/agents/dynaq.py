"""Dyna-Q: DQN on real sessions and as many imagined ones.

Sutton, *Dyna* (1991), in the form of Liu and Zou et al. that the MBCAL paper compares with: an environment model of the
agent's own responds to its own policy, and Q learns from real and imagined sessions alike, one to one.

Deviations: (1) imagined sessions are made once per fit, after the environment model has learned from the same data: the same
users and candidates, items chosen by the present Q with epsilon 0.1; in the first fit, when there is no Q, at random;
(2) as DQN.
"""

from __future__ import annotations

from torch import nn

from mbcal.agents.domain import Domain
from mbcal.agents.dqn import DQN
from mbcal.agents.fit_context import FitContext
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.rollout import rollout
from mbcal.nn.recurrent import RecurrentNet
from mbcal.training.device_data import DeviceSessions
from mbcal.types import SessionTensors

EPSILON = 0.1
"""Exploration in imagined sessions."""


class DynaQ(DQN):
    """Score = Q."""

    name = "dyna-q"

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        shape = (domain.catalog, domain.behaviours, self.config.net, len(domain.behaviours), domain.n_users)
        return {"environment": RecurrentNet(*shape), **super().build_networks(domain)}

    def learn(self, context: FitContext) -> None:
        context.fit_behaviours("environment")
        real_and_imagined = SessionTensors.concat([context.data.tensors, self.imagine(context)])
        self.learn_values(context, DeviceSessions(real_and_imagined, self.device, candidates=True), copies=2)

    def imagine(self, context: FitContext) -> SessionTensors:
        """As many sessions as there are real ones, with responses of the environment model."""
        environment = ModelEnvironment(self.nets["environment"], self.domain.catalog, self.domain.behaviours)
        return rollout(
            self.build_scorer(),
            environment,
            context.data.tensors,
            epsilon=1.0 if context.is_first_fit else EPSILON,
            seed=context.seed,
            first_index=context.worker_slice.begin,
            title="imagining",
            progress=context.progress,
        ).without("propensities")
