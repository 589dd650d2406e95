"""Dyna-Q: DQN on real sessions and as many imagined ones.

Sutton, *Dyna* (1991), in the form of Liu and Zou et al. that the MBCAL paper compares with: an environment model of the
agent's own answers its own policy, and Q learns from real and imagined sessions alike, one to one.

Deviations: (1) imagined sessions are made once a fit, after the environment model has learned from the same data: the same
users and candidates, items chosen by the present Q with epsilon 0.1; in the first fit, when there is no Q, at random;
(2) as DQN.
"""

from __future__ import annotations

from torch import nn

from mbcal.agents.base import Domain, Lesson
from mbcal.agents.dqn import DQN
from mbcal.environments.model import ModelEnvironment
from mbcal.environments.rollout import rollout
from mbcal.nn.recurrent import SequenceNet
from mbcal.training.device_data import Resident
from mbcal.training.losses import behaviour_likelihood
from mbcal.types import SessionTensors

EPSILON = 0.1


class DynaQ(DQN):
    """Score = Q."""

    name = "dyna-q"

    def networks(self, domain: Domain) -> dict[str, nn.Module]:
        known = (domain.catalog, domain.behaviours, self.config.net)
        return {"environment": SequenceNet(*known, len(domain.behaviours), domain.users), **super().networks(domain)}

    def learn(self, lesson: Lesson) -> None:
        lesson.train("environment", behaviour_likelihood(self.nets["environment"], lesson.data))
        real = lesson.data.tensors
        both = Resident(SessionTensors.concat([real, self.imagine(lesson)]), self.device, candidates=True)
        self.learn_values(lesson, both, times=2)

    def imagine(self, lesson: Lesson) -> SessionTensors:
        """As many sessions as there are real ones, from the environment model."""
        environment = ModelEnvironment(self.nets["environment"], self.domain.catalog, self.domain.behaviours)
        return rollout(
            self.scorer(),
            environment,
            lesson.data.tensors,
            epsilon=1.0 if lesson.first else EPSILON,
            seed=lesson.seed,
            first=lesson.portion.begin,
            title="imagining",
            progress=lesson.progress,
        ).without("propensities")
