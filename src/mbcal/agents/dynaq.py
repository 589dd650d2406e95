"""Dyna-Q: DQN on real sessions and as many imagined ones.

Sutton, *Dyna* (1991), in the form of Liu and Zou et al., a baseline of the MBCAL paper: the agent's environment model
responds to the agent's policy, and Q learns from as many imagined sessions as real ones.

Deviations: (1) imagined sessions are sampled once per fit, after the environment model was trained on the same data. They
have the same users and candidates; items are chosen by the present Q with epsilon 0.1, and uniformly at random in the first
fit, when there is no Q yet; (2) those of DQN.
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
"""Probability of a uniformly random item in imagined sessions."""


class DynaQ(DQN):
    """Score = Q, trained on real and imagined sessions."""

    name = "dyna-q"

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        shape = (domain.catalog, domain.behaviours, self.config.net, len(domain.behaviours), domain.n_users)
        return {"environment": RecurrentNet(*shape, domain.fields), **super().build_networks(domain)}

    def learn(self, context: FitContext) -> None:
        context.fit_behaviours("environment")
        real_and_imagined = SessionTensors.concat([context.data.tensors.without("timestamps"), self.imagine(context)])
        self.learn_values(context, DeviceSessions(real_and_imagined, self.device, candidates=True), copies=2)

    def imagine(self, context: FitContext) -> SessionTensors:
        """Roll the present policy out in the environment model: one imagined session per real one of this worker."""
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
