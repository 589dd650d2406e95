"""Evaluate one policy: roll it out against an environment and measure the reward per session. Nothing here is fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mbcal.agents.base import Agent
from mbcal.environments.base import Environment
from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.environments.rollout import Policy, rollout
from mbcal.environments.simulator import Simulator
from mbcal.errors import ModelError
from mbcal.metrics import Mean, mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.types import LOG_ORIGIN, Sessions, SessionTensors

TEST_SEED = 1_000_003
"""Seed of candidates and noise of every test: the same for all methods, seeds and rounds, so that rewards are paired."""


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """The sessions a policy served, and the rewards in them."""

    served: Sessions
    """N sessions with the policy's items and the environment's behaviours."""
    returns: NDArray[np.float32] | None = None
    """(N,) reward of each session as the environment paid it, if that is not the sum over behaviours."""
    warning: str | None = None
    """What belongs beside the rewards: that the simulator can hardly be trusted."""

    def __repr__(self) -> str:
        mean = self.reward
        text = f"{mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}] per session, {mean.count:,} sessions"
        return f"{text}. Warning: {self.warning}" if self.warning else text

    @property
    def rewards(self) -> NDArray[np.float32]:
        """(N,) undiscounted reward of each session."""
        return session_rewards(self.served) if self.returns is None else self.returns

    @property
    def times_shown(self) -> NDArray[np.int64]:
        """How often the policy showed each catalogue row, (rows,)."""
        return np.bincount(self.served.items[self.served.mask], minlength=self.served.catalog.n_rows)

    @property
    def reward(self) -> Mean:
        """Mean reward per session, with an interval that is clustered by user."""
        return mean_interval(self.rewards, self.served.user)


class ServedSummary(NamedTuple):
    """What came of serving N sessions by a model, small enough to be sent between processes."""

    rewards: NDArray[np.float32]
    """(N,) undiscounted reward of each session."""
    times_shown: NDArray[np.int64]
    """(rows,) how often each catalogue row was shown."""
    steps: int
    """Steps of all sessions."""
    left: int | None
    """Sessions that the user left; None if no behaviour is terminal."""

    @classmethod
    def of(cls, result: EvaluationResult) -> Self:
        """Return the summary of a result."""
        served = result.served
        left = int(served.left.sum()) if served.behaviour_set.terminal else None
        return cls(result.rewards, result.times_shown, int(served.length.sum()), left)

    @property
    def staying(self) -> tuple[float | None, float | None]:
        """Mean steps of a session, and the share of sessions that the user left; None if no behaviour is terminal."""
        count = len(self.rewards)
        return (None, None) if self.left is None else (self.steps / count, self.left / count)


def session_rewards(served: Sessions | SessionTensors) -> NDArray[np.float32]:
    """Return the undiscounted reward of each session, (N,)."""
    rewards = served.rewards.sum(1)
    return rewards.cpu().numpy() if isinstance(rewards, Tensor) else rewards


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
    """Serve the users of logged sessions by a policy, and measure the reward per session.

    Args:
        policy: An agent, a scorer, or anything with begin, score and observe.
        environment: Who responds: a simulator, the generated newsfeed, an environment model.
        sessions: Whose users, histories, lengths and candidates are used, such as `store.sessions("test")`.
        epsilon: Probability of a uniformly random candidate at each step; 0 is greedy.
        seed: Seed of all noise. With one seed all policies meet the same users, candidates and noise.
        first_index: Index of the first session among all, where `sessions` is a part of many.
        title: Title of the progress.
        progress: Notified of sessions.

    Returns:
        Rewards of all sessions; its mean has an interval that is clustered by user, and its `warning` says whether a
        simulator can hardly be trusted.

    Raises:
        ModelError: If the agent or the simulator knows other items or behaviours, or was fitted on another store.
        InputError: If a simulator was fitted on some of these users.
    """
    warning = None
    if isinstance(environment, Simulator):
        environment.require_unseen_users(sessions)
        warning = environment.trust.warning
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
    return EvaluationResult(served, warning=warning)


def play_test(
    policy: Policy,
    world: GymnasiumWorld,
    episodes: int,
    *,
    epsilon: float = 0.0,
    seed: int = 0,
    title: str = "episodes",
    progress: Progress = SILENT,
) -> EvaluationResult:
    """Play episodes by one policy and measure the reward per episode, as the environment pays it.

    Arguments are those of `GymnasiumWorld.play`.
    """
    played = world.play_episodes(policy, episodes, epsilon=epsilon, seed=seed, title=title, progress=progress)
    return EvaluationResult(played.sessions, played.returns)


def require_same_store(agent: Agent, sessions: Sessions, owner: str | None = None) -> None:
    """Raise unless an agent may be evaluated on these sessions.

    An agent that was fitted on another store may have learned from the very users it is evaluated on. What it learned from a
    decision log has no store to compare.

    Args:
        agent: A fitted agent.
        sessions: The sessions it would serve.
        owner: What an error calls the agent, such as the path of its folder; by default "the NAME agent".

    Raises:
        ModelError: If the agent knows other items or behaviours, or was fitted on another store.
    """
    owner = owner or f"the {agent.name} agent"
    agent.domain.require_compatible(sessions, owner)
    stores = {origin for origin in agent.origins if not origin.startswith(LOG_ORIGIN)}
    if sessions.origin and not sessions.origin.startswith(LOG_ORIGIN) and stores - {sessions.origin}:
        problem = f"{owner} was fitted on another store, so it may have learned from these users"
        raise ModelError(f"{problem}; fit one on this data")
