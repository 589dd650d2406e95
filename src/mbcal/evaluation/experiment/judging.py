"""Collecting sessions and testing a policy, whatever judges: an environment, or a Gymnasium world.

An environment serves logged users again; a world plays episodes of users of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mbcal.environments.candidates import session_candidates
from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.environments.rollout import Policy, rollout
from mbcal.evaluation.evaluator import TEST_SEED, EvaluationResult, evaluate, play_test, session_rewards
from mbcal.metrics import Mean, mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.training.device import resolve_device
from mbcal.training.random import derive_seed, random_integers
from mbcal.types import SessionTensors

if TYPE_CHECKING:
    from mbcal.evaluation.experiment.context import ExperimentContext


def judge_policy(
    context: ExperimentContext, policy: Policy, judge: str, *, title: str = "", progress: Progress = SILENT
) -> EvaluationResult:
    """Test a policy on the test sessions, or on as many episodes of a world.

    Args:
        context: What the cells share.
        policy: The policy, which is greedy.
        judge: Name of the judge.
        title: Title of the progress.
        progress: Notified of sessions.
    """
    environment, title = context.judges[judge], title or f"test by {judge}"
    if isinstance(environment, GymnasiumWorld):
        episodes = context.settings.test_sessions
        return play_test(policy, environment, episodes, seed=TEST_SEED, title=title, progress=progress)
    return evaluate(policy, environment, context.test, seed=TEST_SEED, title=title, progress=progress)


def judge_reward(context: ExperimentContext, policy: Policy, *, title: str, progress: Progress = SILENT) -> Mean:
    """Return the reward per session of a policy under the first judge; arguments are those of `judge_policy`."""
    if isinstance(context.users, GymnasiumWorld):
        return judge_policy(context, policy, next(iter(context.judges)), title=title, progress=progress).reward
    served = rollout(policy, context.users, context.test_tensors, seed=TEST_SEED, title=title, progress=progress)
    return mean_interval(session_rewards(served), context.test.user)


def collect_round(
    context: ExperimentContext, policy: Policy, epsilon: float, seed: int, number: int, progress: Progress = SILENT
) -> SessionTensors:
    """Collect the sessions of a round; the first judge responds.

    Args:
        context: What the cells share.
        policy: Who chooses the items.
        epsilon: Probability of a random choice.
        seed: Seed of the users and the noise of the round.
        number: The round, counted from 1.
        progress: Notified of sessions.

    Returns:
        `round_sessions` sessions: of train users, sampled with replacement; in a world, of new users.
    """
    count, title = context.settings.round_sessions, f"round {number}: collect"
    # the purposes given to derive_seed are part of every recorded result: do not reword them
    users_seed, noise_seed = (derive_seed(seed, purpose, number) for purpose in ("users of round", "luck of round"))
    if isinstance(context.users, GymnasiumWorld):
        first_index = (number - 1) * count
        played = context.users.play(
            policy, count, epsilon=epsilon, seed=noise_seed, first_index=first_index, title=title, progress=progress
        )
        return played.tensors(resolve_device(context.device))
    train = context.train_tensors
    starts = train[random_integers(users_seed, torch.arange(count, device=train.device), len(train))]
    progress.phase(f"round {number}: candidates", None)
    candidates = session_candidates(starts, noise_seed, sample_from=train)
    return rollout(
        policy,
        context.users,
        starts,
        epsilon=epsilon,
        seed=noise_seed,
        candidates=candidates,
        title=title,
        progress=progress,
    )
