"""Where agents and users meet: nothing here learns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mbcal.agents.base import Agent
from mbcal.environments.base import Environment
from mbcal.environments.rollout import Policy, rollout
from mbcal.environments.simulator import Simulator
from mbcal.metrics import Mean, mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.types import Sessions, SessionTensors


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """What a policy earned."""

    served: Sessions
    """The sessions as the policy served them."""

    def __repr__(self) -> str:
        mean = self.mean
        return f"{mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}] per session, {mean.count:,} sessions"

    @property
    def rewards(self) -> NDArray[np.float32]:
        """(N,) of each session, undiscounted."""
        return session_rewards(self.served)

    @property
    def mean(self) -> Mean:
        """Mean reward per session; a user's sessions count as alike."""
        return mean_interval(self.rewards, self.served.user)


def session_rewards(served: Sessions | SessionTensors) -> NDArray[np.float32]:
    """(N,) what each session earned, undiscounted."""
    earned = served.rewards.sum(1)
    return earned.cpu().numpy() if isinstance(earned, Tensor) else earned


def evaluate(
    policy: Policy,
    environment: Environment,
    sessions: Sessions,
    *,
    epsilon: float = 0.0,
    seed: int = 0,
    first: int = 0,
    title: str = "roll-outs",
    progress: Progress = SILENT,
) -> EvaluationResult:
    """Serve these users by the policy, greedily unless told otherwise. With one seed all policies meet the same luck.
    `first` is the place of the first of these sessions among all, where they are but a part.

    A simulator refuses users it was fitted on, an agent sessions over other items or behaviours than it knows.
    """
    if isinstance(environment, Simulator):
        environment.require_unseen_users(sessions)
    if isinstance(policy, Agent):
        policy.domain.require_compatible(sessions, f"the {policy.name} agent")
    served = rollout(
        policy, environment, sessions, epsilon=epsilon, seed=seed, first_index=first, title=title, progress=progress
    )
    return EvaluationResult(served)
