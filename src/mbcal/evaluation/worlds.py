"""Gymnasium worlds as a source of logs and as a judge: `collect`, `evaluate_in_world`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mbcal.agents import Agent, load
from mbcal.agents.domain import Domain
from mbcal.data.store import Store
from mbcal.environments.gymnasium.log import DEFAULT_SPLIT, write_log
from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.environments.rollout import Policy
from mbcal.errors import ModelError, OptionError
from mbcal.evaluation.blocks import CHANCE
from mbcal.evaluation.comparison import ModelComparison, compare_rewards
from mbcal.evaluation.evaluator import play_test
from mbcal.evaluation.models import OpenModel, open_models
from mbcal.progress import SILENT, Progress
from mbcal.scoring.scorers import RandomScorer
from mbcal.training.random import derive_seed

RANDOM = "random"
"""As a policy: uniformly random items."""
RANDOM_POLICY = RandomScorer(0)
"""Scores that differ by user; with epsilon 1 they do not matter, and propensities are those of a uniform choice."""


def collect(
    world: str | GymnasiumWorld,
    out: str | Path,
    *,
    policy: str | Path | Policy = RANDOM,
    sessions: int = 20_000,
    epsilon: float = 0.1,
    repeats: bool = False,
    horizon: int | None = None,
    split: tuple[float, float, float] = DEFAULT_SPLIT,
    seed: int = 0,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress = SILENT,
) -> Store:
    """Play episodes in a Gymnasium environment and write them as a store: `collect("gym:sardine/…", "log")`.

    Every episode is a session of a user of its own, without history. Propensities are recorded.

    Args:
        world: ID of the environment, with or without `gym:`, or a world. `repeats` and `horizon` belong to an ID.
        out: The store's folder.
        policy: `random`, the folder of a model, or anything with begin, score and observe.
        sessions: Number of episodes.
        epsilon: Probability of a uniformly random item at each step; a random policy has none other.
        repeats: Whether an item may be shown again in an episode.
        horizon: Most steps of an episode; by default the environment's limit. A model plays up to its own horizon.
        split: Shares of episodes in the parts simulator, train and test.
        seed: Seed of the episodes and the choices.
        overwrite: Replace a store that is there.
        device: Where to load a model.
        progress: Notified of episodes.

    Returns:
        The store.

    Raises:
        OptionError: If the environment cannot be played (see `GymnasiumWorld`), or an option is out of range.
        ModelError: If the model is damaged, or knows other items or behaviours than the world.
        OutputError: If the folder exists or cannot be written.
    """
    name = str(policy) if isinstance(policy, str | Path) else type(policy).__name__
    if policy == RANDOM:
        policy, epsilon = RANDOM_POLICY, 1.0
    elif isinstance(policy, str | Path):
        policy = load(policy, device)
    if isinstance(policy, Agent):
        world = open_world(world, policy.domain, repeats)
        require_playable(policy, world, name)
        name = policy.name
    elif isinstance(world, str):
        world = GymnasiumWorld(world, repeats=repeats, horizon=horizon)
    return write_log(
        world,
        policy,
        out,
        sessions=sessions,
        epsilon=epsilon,
        seed=seed,
        split=split,
        policy_name=name,
        overwrite=overwrite,
        progress=progress,
    )


def evaluate_in_world(
    models: Sequence[str | Path | Agent],
    world: str | GymnasiumWorld,
    *,
    episodes: int = 200,
    epsilon: float = 0.0,
    repeats: bool = False,
    seed: int = 0,
    device: str = "auto",
    progress: Progress = SILENT,
) -> ModelComparison:
    """Play the same episodes by several models and by a random policy.

    Args:
        models: Folders of models, or fitted agents. Differences are to the first.
        world: ID of the environment, with or without `gym:`, or a world. `repeats` belongs to an ID; behaviours and
            horizon are those of the first model.
        episodes: Episodes of each model, at least 2.
        epsilon: Probability of a uniformly random item at each step; 0 is greedy.
        repeats: Whether an item may be shown again in an episode.
        seed: Seed of the episodes, the same for all models; none is an episode of a log.
        device: Where to load models.
        progress: Notified of episodes.

    Returns:
        Rewards per episode, as the environment paid them, and paired differences.

    Raises:
        OptionError: If there is no model, fewer than 2 episodes, or the environment cannot be played.
        ModelError: If a model is damaged, or knows other items or behaviours than the world.
    """
    if not models:
        raise OptionError("evaluate: give at least one model")
    if episodes < 2:
        raise OptionError(f"episodes: must be at least 2, got {episodes}")
    opened = open_models(models, device)
    opened_world = open_world(world, opened[0].agent.domain, repeats)
    for model in opened:
        require_playable(model.agent, opened_world, model.name)
    return _compare(opened, opened_world, episodes, epsilon, seed, progress)


def _compare(
    models: Sequence[OpenModel], world: GymnasiumWorld, episodes: int, epsilon: float, seed: int, progress: Progress
) -> ModelComparison:
    players: list[tuple[str, str, Policy, float]] = [
        *((model.name, model.agent.name, model.agent, epsilon) for model in models),
        (CHANCE, RANDOM, RANDOM_POLICY, 1.0),
    ]
    test_seed = derive_seed(seed, "test")
    results = [
        play_test(policy, world, episodes, epsilon=own_epsilon, seed=test_seed, title=f"{name} plays", progress=progress)
        for name, _, policy, own_epsilon in players
    ]
    names = [(name, method) for name, method, _, _ in players]
    users = np.arange(episodes, dtype=np.int32)
    rows = compare_rewards(world.title, names, [result.rewards for result in results], users)
    return ModelComparison(rows, None, episodes, seed)


def open_world(world: str | GymnasiumWorld, domain: Domain, repeats: bool) -> GymnasiumWorld:
    """Return a world, created with the behaviours and the horizon of a model if it is given by its ID."""
    if isinstance(world, GymnasiumWorld):
        return world
    return GymnasiumWorld(world, repeats=repeats, horizon=domain.horizon, behaviours=domain.behaviours)


def require_playable(agent: Agent, world: GymnasiumWorld, owner: str) -> None:
    """Raise ModelError unless a model knows the items and behaviours of a world."""
    domain = agent.domain
    if domain.catalog.items != world.catalog.items:
        problem = f"{owner}: knows {len(domain.catalog):,} items, {world.title} has {len(world.catalog):,}"
        raise ModelError(
            f"{problem if len(domain.catalog) != len(world.catalog) else problem + ', and not the same'}"
            "; fit a model on a log of this world"
        )
    if domain.behaviours != world.behaviours:
        names, world_names = ", ".join(domain.behaviours.names), ", ".join(world.behaviours.names)
        problem = f"{owner}: knows the behaviours {names}, {world.title} has {world_names}"
        raise ModelError(f"{problem}; fit a model on a log of this world")
