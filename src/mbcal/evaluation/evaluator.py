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
from mbcal.errors import ModelError
from mbcal.metrics import Mean, mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.types import LOG_ORIGIN, Sessions, SessionTensors


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
    first_index: int = 0,
    title: str = "roll-outs",
    progress: Progress = SILENT,
) -> EvaluationResult:
    """Serve the users of some sessions by a policy, and measure what it earns.

    Args:
        policy: An agent, a scorer, or anything with begin, score and observe.
        environment: Who responds: a simulator, the generated newsfeed, an environment model.
        sessions: Whose users, histories, lengths and candidates are used, such as `store.sessions("test")`.
        epsilon: Probability of a uniformly random candidate at each step; 0 is greedy.
        seed: Names all noise. With one seed all policies meet the same users, candidates and noise.
        first_index: Index of the first session among all, where `sessions` is a part of many.
        title: What the progress calls it.
        progress: Is told about sessions.

    Returns:
        Rewards of all sessions; its mean has an interval that is clustered by user.

    Raises:
        ModelError: If the agent or the simulator knows other items or behaviours, or was fitted on another store.
        InputError: If a simulator was fitted on some of these users.
    """
    if isinstance(environment, Simulator):
        environment.require_unseen_users(sessions)
    if isinstance(policy, Agent):
        require_same_store(policy, sessions)
    served = rollout(
        policy,
        environment,
        sessions,
        epsilon=epsilon,
        seed=seed,
        first_index=first_index,
        title=title,
        progress=progress,
    )
    return EvaluationResult(served)


def require_same_store(agent: Agent, sessions: Sessions) -> None:
    """Raise ModelError unless an agent may be evaluated on these sessions.

    An agent that was fitted on another store may have learned from the very users it is evaluated on. What it learned from a
    decision log has no store to compare.
    """
    agent.domain.require_compatible(sessions, f"the {agent.name} agent")
    stores = [origin for origin in agent.origins if not origin.startswith(LOG_ORIGIN)]
    if sessions.origin and not sessions.origin.startswith(LOG_ORIGIN) and any(o != sessions.origin for o in stores):
        problem = f"the {agent.name} agent was fitted on another store, so it may have learned from these users"
        raise ModelError(f"{problem}; fit one on this data")
