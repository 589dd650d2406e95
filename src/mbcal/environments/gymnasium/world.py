"""Foreign worlds: any Gymnasium environment whose action is an item, as a source of logs and as a judge.

::

    gymnasium.make(ID) ──▶ random episodes ──▶ items, behaviours, horizon
    B environments, each with its own seed ──▶ policy scores the catalogue ──▶ choice ──▶ step ──▶ policy observes ──▶ …

An episode is a session of a new user without history; its actions are items and its rewards are behaviours. A Gymnasium
environment changes when it is stepped, so it cannot follow the protocol `Environment`, whose states are immutable: a world
plays whole episodes instead.

Observations are ignored: a policy sees the items it showed and the behaviours. What an environment does within `reset` is
known from the observation alone, so it is not part of the session. SARDINE, for one, shows a random item there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.environments.gymnasium.adapter import (
    PREFIX,
    ItemFeatures,
    item_actions,
    make_environment,
    read_features,
    reward_behaviours,
)
from mbcal.environments.rollout import Policy
from mbcal.errors import InputError, OptionError
from mbcal.progress import SILENT, Progress
from mbcal.scoring.choice import epsilon_greedy
from mbcal.scoring.scorers import UNKNOWN_USER
from mbcal.training.random import derive_seed, uniform
from mbcal.types import FIRST_ITEM_ROW, Behaviours, Catalog, Sessions

PROBE_EPISODES = 20
PROBE_STEPS = 10_000
"""An environment that does not end within so many steps never ends."""
BATCH = 256
"""Episodes played at a time by default."""


class Episodes(NamedTuple):
    """Played episodes."""

    sessions: Sessions
    """N sessions of up to T steps, with the true propensity of every choice."""
    returns: NDArray[np.float32]
    """(N,) sum of the rewards the environment paid; `sessions.rewards` are means of levels where rewards are grouped."""


class GymnasiumWorld:
    """A Gymnasium environment with one item per action: `GymnasiumWorld("sardine/SingleItem-BoredInf-v0")`.

    Items, behaviours and the horizon are found when it is created, from some random episodes with fixed seeds: always the
    same for one environment.

    Args:
        name: ID of the environment, with or without the prefix `gym:`. `MODULE:ID` imports a module that registers it.
        repeats: Whether an item may be shown again in an episode.
        horizon: Most steps of an episode, which is cut there; by default the environment's own limit, else the longest of
            the random episodes.
        behaviours: What stands for each reward the environment can pay; by default from the rewards of the random episodes
            (`reward_behaviours`).
        item_features: Feature -> one value per item, or a function of the environment that returns it. By default the
            environment's own `item_features`, or what `FEATURE_ATTRIBUTES` lists.

    Raises:
        OptionError: If Gymnasium is not installed, or the environment is not registered, has no items, a continuous action
            or several items per action, ends at once or never, always pays the same, or has fewer items than steps without
            `repeats`.
        InputError: If a feature does not have one value per item.
    """

    def __init__(
        self,
        name: str,
        *,
        repeats: bool = False,
        horizon: int | None = None,
        behaviours: Behaviours | None = None,
        item_features: ItemFeatures | None = None,
    ) -> None:
        self.name, self.repeats = name.removeprefix(PREFIX), repeats
        environment = make_environment(self.name)
        self.environments = [environment]
        """The environments of the episodes that are played side by side; row e of a batch is in environment e."""
        count, self._to_action = item_actions(environment.action_space, self.title)
        self.catalog = Catalog(
            tuple(str(number) for number in range(count)), read_features(environment.unwrapped, count, item_features)
        )
        """Items by number, from 0, with the features of the environment."""
        limit = environment.spec.max_episode_steps if horizon is None else horizon
        probed_rewards, longest, ends_early = self._probe(limit)
        self.horizon = limit or longest
        """Most steps of an episode, T."""
        if longest < 2:
            raise OptionError(f"{self.title}: ends at once, after one step; an episode needs at least two")
        if not repeats and self.horizon > count:
            problem = f"{self.title}: an episode has {self.horizon} steps, but there are only {count} items to show"
            raise OptionError(f"{problem}; allow repeats or choose a shorter horizon")
        found = behaviours or reward_behaviours(probed_rewards, self.title)
        self.behaviours = found.with_leaving() if behaviours is None and ends_early else found
        """One per distinct reward, or levels of the reward; with a terminal variant of each if some episodes end early."""

    def __repr__(self) -> str:
        repeats = "repeats allowed" if self.repeats else "no repeats"
        sizes = f"{len(self.catalog):,} items, {len(self.behaviours)} behaviours, up to {self.horizon} steps"
        return f"<GymnasiumWorld {self.name!r}: {sizes}, {repeats}>"

    @property
    def title(self) -> str:
        """How messages and tables name it: `gym:ID`."""
        return f"{PREFIX}{self.name}"

    def play(
        self,
        policy: Policy,
        episodes: int,
        *,
        epsilon: float = 0.0,
        seed: int = 0,
        first_index: int = 0,
        batch: int = BATCH,
        title: str = "episodes",
        progress: Progress = SILENT,
    ) -> Sessions:
        """Play episodes by a policy; see `play_episodes`. Returns the sessions alone."""
        options: dict[str, Any] = {"epsilon": epsilon, "seed": seed, "first_index": first_index, "batch": batch}
        return self.play_episodes(policy, episodes, **options, title=title, progress=progress).sessions

    def play_episodes(
        self,
        policy: Policy,
        episodes: int,
        *,
        epsilon: float = 0.0,
        seed: int = 0,
        first_index: int = 0,
        batch: int = BATCH,
        title: str = "episodes",
        progress: Progress = SILENT,
    ) -> Episodes:
        """Play episodes by a policy that ranks the whole catalogue at every step, many side by side.

        Args:
            policy: Anything with begin, score and observe. Every episode is a user it does not know.
            episodes: How many, N.
            epsilon: Probability of a uniformly random item at each step; 1 is a random policy.
            seed: Seed of the environments and of the noise of choices: with one seed all policies meet the same
                users.
            first_index: Index of the first episode among all, if these are a part of many. Seeds, noise and user numbers
                depend on the index, not on `batch`.
            batch: Episodes side by side, each with an environment of its own.
            title: Name of the phase that progress reports.
            progress: Notified of episodes.

        Returns:
            N sessions without candidates (all items are) and history, users numbered from `first_index`; and what the
            environment paid. Sessions are shorter than T where an episode ended.

        Raises:
            OptionError: If epsilon is outside [0, 1], or there are no episodes.
            InputError: If the environment pays a reward that is not among the behaviours.
        """
        if not 0 <= epsilon <= 1:
            raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
        if episodes < 1 or batch < 1:
            raise OptionError(f"episodes and batch: must be at least 1, got {episodes} and {batch}")
        while len(self.environments) < min(batch, episodes):
            self.environments.append(make_environment(self.name))
        progress.phase(title, episodes)
        played = []
        for begin in range(0, episodes, batch):
            count = min(batch, episodes - begin)
            played.append(self._play_batch(policy, first_index + begin, count, epsilon, seed))
            progress.advance(count)
        sessions, returns = zip(*played, strict=True)
        return Episodes(Sessions.concat(sessions), np.concatenate(returns))

    @torch.no_grad()
    def _play_batch(self, policy: Policy, first: int, count: int, epsilon: float, seed: int) -> Episodes:
        """Play `count` episodes in lockstep, of which the first has index `first`."""
        environments, horizon = self.environments[:count], self.horizon
        for index, environment in enumerate(environments, first):
            environment.reset(seed=_episode_seed(seed, index))
        device = getattr(policy, "device", torch.device("cpu"))
        noise = uniform(derive_seed(seed, "choices"), (count, horizon, 2), device, first * horizon * 2)
        users = np.arange(first, first + count, dtype=np.int32)
        no_history = torch.zeros(count, 0, dtype=torch.int32, device=device)
        no_steps = torch.zeros(count, dtype=torch.int32, device=device)
        # numbers from the top, so that an encoder of user ids knows none of them and random scores still differ by user
        unknown_users = torch.from_numpy(UNKNOWN_USER - users).to(device)
        state = policy.begin(unknown_users, no_history, no_history.to(torch.uint8), no_steps)
        rows = torch.arange(FIRST_ITEM_ROW, self.catalog.n_rows, dtype=torch.int32, device=device)
        candidates = rows.expand(count, -1).contiguous()
        available = torch.ones_like(candidates, dtype=torch.bool)
        items, behaviours = np.zeros((count, horizon), np.int32), np.zeros((count, horizon), np.uint8)
        propensities, length = np.zeros((count, horizon), np.float32), np.zeros(count, np.int32)
        returns, is_running = np.zeros(count, np.float64), np.ones(count, bool)
        for step in range(horizon):
            chosen, propensity = epsilon_greedy(policy.score(state, candidates), available, epsilon, noise[:, step])
            running = np.flatnonzero(is_running)
            rewards, has_ended, terminated = self._step(environments, running, chosen.cpu().numpy()[running])
            items[running, step] = chosen.cpu().numpy()[running] + FIRST_ITEM_ROW
            behaviours[running, step] = self._behaviours_of(rewards)
            if step < horizon - 1 and self.behaviours.n_observed < len(self.behaviours):
                behaviours[running[terminated], step] += np.uint8(self.behaviours.n_observed)
            propensities[running, step] = propensity.cpu().numpy()[running]
            returns[running] += rewards
            length[running] += 1
            is_running[running[has_ended]] = False
            if not is_running.any():
                break
            # episodes that have ended are scored along with the others; what they are shown is not recorded
            state = policy.observe(state, rows[chosen], torch.from_numpy(behaviours[:, step]).to(device))
            if not self.repeats:
                available.scatter_(1, chosen.unsqueeze(1), False)
        sessions = Sessions(
            self.catalog,
            self.behaviours,
            items,
            behaviours,
            length,
            users,
            history_items=np.zeros((count, 0), np.int32),
            history_behaviours=np.zeros((count, 0), np.uint8),
            history_length=np.zeros(count, np.int32),
            propensities=propensities,
        )
        return Episodes(sessions, returns.astype(np.float32))

    def _step(
        self, environments: Sequence[Any], rows: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Show an item, by number, in each of the environments at `rows`.

        Returns:
            Their rewards, whether each has ended, and whether it was terminated, not truncated.
        """
        rewards, has_ended, has_terminated = np.zeros(len(rows)), np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        for index, (row, number) in enumerate(zip(rows.tolist(), numbers.tolist(), strict=True)):
            _, reward, terminated, truncated, _ = environments[row].step(self._to_action(number))
            rewards[index], has_ended[index], has_terminated[index] = float(reward), terminated or truncated, terminated
        return rewards, has_ended, has_terminated

    def _behaviours_of(self, rewards: NDArray[np.float64]) -> NDArray[np.uint8]:
        """The behaviour of each reward, (N,)."""
        if self.behaviours.cuts:
            return self.behaviours.level(rewards)
        distances = np.abs(rewards[:, None] - np.asarray(self.behaviours.rewards))
        nearest: NDArray[np.int64] = distances.argmin(1)
        is_known = distances[np.arange(len(rewards)), nearest] <= 1e-6 * np.maximum(1, np.abs(rewards))
        if not is_known.all():
            problem = f"{self.title}: paid {rewards[~is_known][0]:g}, which is not among its rewards"
            raise InputError(
                f"{problem} ({', '.join(self.behaviours.names)}); give all of them with GymnasiumWorld(…, behaviours=…)"
            )
        return nearest.astype(np.uint8)

    def _probe(self, limit: int | None) -> tuple[NDArray[np.float64], int, bool]:
        """Rewards of some random episodes, the steps of the longest, and whether some are terminated earlier than others."""
        environment, rewards, lengths, terminated_at = self.environments[0], [], [], []
        for episode in range(PROBE_EPISODES):
            seed = _episode_seed(0, f"probe {episode}")
            environment.reset(seed=seed)
            generator, length, has_ended = np.random.default_rng(seed), 0, False
            while not has_ended and length < (limit or PROBE_STEPS):
                if length % len(self.catalog) == 0:
                    order = generator.permutation(len(self.catalog))
                number = generator.integers(len(self.catalog)) if self.repeats else order[length % len(self.catalog)]
                _, reward, terminated, truncated, _ = environment.step(self._to_action(int(number)))
                rewards.append(float(reward))
                has_ended, length = terminated or truncated, length + 1
            if not has_ended and limit is None:
                raise OptionError(f"{self.title}: never ends (not within {PROBE_STEPS:,} steps); give a horizon")
            lengths.append(length)
            if terminated:
                terminated_at.append(length)
            if len(rewards) > PROBE_STEPS:
                break
        return np.asarray(rewards), max(lengths), min(terminated_at, default=PROBE_STEPS) < (limit or max(lengths))


def _episode_seed(seed: int, index: int | str) -> int:
    return derive_seed(seed, "episode", index) & 0x7FFFFFFF
