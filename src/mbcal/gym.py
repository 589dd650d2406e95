"""Users as Gymnasium environments: `import mbcal.gym`, then `gymnasium.make("mbcal/Newsfeed-v0")`.

An episode is one session of a logged (or generated) user: the agent shows one candidate after another and is paid the reward
of each behaviour.

Action: `Discrete(C)`, the index of a candidate. A candidate can be shown once: choosing it again shows nothing, pays 0,
takes a step, and is marked `invalid` in the info, whose `action_mask` (C,) says which candidates are left.

Observation: `Dict` of catalogue rows and behaviour numbers. Padding is 0, and for behaviours the number after the last one:

    candidates          (C,)   what can be shown; 0 if there are fewer than C
    available           (C,)   1 where a candidate has not been shown yet
    items, behaviours   (T,)   the session so far
    history_items, history_behaviours  (H,)   what the user did before it
    step                (1,)   steps taken

Reward: that of the behaviour. `terminated` after the last step of the session. The number of steps belongs to the session,
so no value may be bootstrapped past its end; `truncated` is never set here, but a `TimeLimit` wrapper may set it.

The vector environment runs many sessions in one batched call (far faster than many single ones) and resets a session in the
step after its end (`AutoresetMode.NEXT_STEP`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.data.cutting import SessionConfig
from mbcal.data.store import Store
from mbcal.data.store_format import Part
from mbcal.environments.base import Environment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.newsfeed.log import generate_sessions
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.environments.simulator import Simulator
from mbcal.errors import InputError, OptionError
from mbcal.scoring.fields import FieldReader
from mbcal.types import MASK_ROW, Sessions

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError("gym: Gymnasium is not installed; run pip install 'mbcal[gym]'") from error

Observation = dict[str, NDArray[Any]]


class _ParallelSessions:
    """`count` sessions served side by side: what the single and the vector environment share.

    Args:
        environment: The users who respond.
        sessions: N sessions to choose from; users, histories, lengths and candidates are used.
        count: How many are served at a time.
        seed: Seed of the sample of candidates, if the sessions have none.

    Raises:
        InputError: If the sessions have one candidate set per step, or there are none.
    """

    def __init__(self, environment: Environment, sessions: Sessions, count: int, seed: int) -> None:
        if not len(sessions):
            raise InputError("gym: there are no sessions to serve")
        if sessions.candidates is not None and sessions.candidates.ndim == 3:
            problem = "gym: these sessions have one candidate set per step, but an environment needs one per session"
            raise InputError(f"{problem}; leave the candidates out, and some are sampled")
        if isinstance(environment, Simulator):
            environment.require_unseen_users(sessions)
        self.environment, self.sessions, self.count = environment, sessions, count
        self.candidates: NDArray[np.int32] = session_candidates(sessions, seed)
        self.state: Any = None
        """State of the users; None before the first `begin`."""
        self.row = np.zeros(count, np.int64)
        """Which of the N sessions each is."""
        self.step = np.zeros(count, np.int64)
        self.left = np.zeros(count, bool)
        """Whose users have left."""
        self.available = np.zeros((count, self.n_candidates), bool)
        self._no_behaviour = environment.behaviours.start
        self._rewards = np.asarray(environment.behaviours.rewards)
        self._items = np.zeros((count, sessions.horizon), np.int32)
        self._behaviours = np.full((count, sessions.horizon), self._no_behaviour, np.int32)

    @property
    def n_candidates(self) -> int:
        """C."""
        return int(self.candidates.shape[1])

    def observation_space(self) -> spaces.Dict:
        """The space of one session's observation."""
        last_row, last_behaviour = self.sessions.catalog.n_rows - 1, self._no_behaviour
        horizon, history = self.sessions.horizon, self.sessions.history_items.shape[1]
        return spaces.Dict(
            {
                "candidates": spaces.Box(0, last_row, (self.n_candidates,), np.int32),
                "available": spaces.MultiBinary(self.n_candidates),
                "items": spaces.Box(0, last_row, (horizon,), np.int32),
                "behaviours": spaces.Box(0, last_behaviour, (horizon,), np.int32),
                "history_items": spaces.Box(0, last_row, (history,), np.int32),
                "history_behaviours": spaces.Box(0, last_behaviour, (history,), np.int32),
                "step": spaces.Box(0, horizon, (1,), np.int32),
            }
        )

    def begin(self, mask: NDArray[np.bool_], rows: NDArray[np.int64]) -> None:
        """Begin the sessions `rows` (one per true entry) where mask (count,) is true."""
        self.row[mask], self.step[mask], self.left[mask] = rows, 0, False
        self._items[mask], self._behaviours[mask] = MASK_ROW, self._no_behaviour
        self.available[mask] = self.candidates[rows] != MASK_ROW
        self._reader = FieldReader(self.environment, self.sessions[self.row].tensors(self.environment.device))
        begun = self._reader.begin()
        self.state = begun if self.state is None else self.environment.merge(self._tensor(mask), begun, self.state)

    def show(self, action: NDArray[Any], active: NDArray[np.bool_], uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Show one candidate in every active session.

        Args:
            action: Index of the candidate, (count,).
            active: Which sessions take a step, (count,).
            uniform: One number per session that decides the response, (count,).

        Returns:
            Rewards (count,), 0 where nothing was shown.

        Raises:
            OptionError: If the action of an active session is no index of a candidate.
        """
        is_index = (action >= 0) & (action < self.n_candidates)
        if not is_index[active].all():
            wrong = action[active & ~is_index][0]
            raise OptionError(f"action: must be in 0..{self.n_candidates - 1}, got {wrong}")
        every = np.arange(self.count)
        action = np.where(is_index, action, 0)
        shown = active & self.available[every, action]
        item = self.candidates[self.row, action]
        response, next_state = self.environment.respond(
            self._reader.at(self.state, self._tensor(self.step)), self._tensor(item), self._tensor(uniform).to(torch.float32)
        )
        self.state = self.environment.merge(self._tensor(shown), next_state, self.state)
        behaviour = response.cpu().numpy()
        self._items[every[shown], self.step[shown]] = item[shown]
        self._behaviours[every[shown], self.step[shown]] = behaviour[shown]
        self.left |= shown & self.environment.behaviours.is_terminal[behaviour]
        self.available[every[shown], action[shown]] = False
        self.step[active] += 1
        return np.where(shown, self._rewards[behaviour], 0.0)

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.environment.device)

    def is_over(self) -> NDArray[np.bool_]:
        """Which sessions are over, (count,): they have taken all their steps, or the user has left.

        Where users can leave, a session has as many steps as the horizon; otherwise as many as were logged.
        """
        if self.environment.behaviours.terminal:
            return self.left | (self.step >= self.sessions.horizon)
        return self.step >= self.sessions.length[self.row]

    def observations(self) -> Observation:
        """Observations of all sessions, (count, …) each."""
        sessions, row = self.sessions, self.row
        history_behaviours = np.where(sessions.history_mask[row], sessions.history_behaviours[row], self._no_behaviour)
        return {
            "candidates": self.candidates[row],
            "available": self.available.astype(np.int8),
            "items": self._items.copy(),
            "behaviours": self._behaviours.copy(),
            "history_items": sessions.history_items[row],
            "history_behaviours": history_behaviours.astype(np.int32),
            "step": self.step[:, None].astype(np.int32),
        }


class SessionEnv(gymnasium.Env[Any, Any]):
    """One session at a time; `reset(options={"session": row})` begins a given session, else a random one.

    Args:
        environment: The users who respond.
        sessions: Sessions whose users, histories, lengths and candidates are used.
        seed: Seed of the sample of candidates, if the sessions have none.

    Raises:
        InputError: If the sessions have one candidate set per step, there are none, or a simulator was fitted on their
            users.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, environment: Environment, sessions: Sessions, seed: int = 0) -> None:
        self._parallel = _ParallelSessions(environment, sessions, 1, seed)
        self.observation_space = self._parallel.observation_space()
        self.action_space = spaces.Discrete(self._parallel.n_candidates)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin a session; the info has its row (`session`) and the `action_mask`."""
        super().reset(seed=seed)
        n_sessions = len(self._parallel.sessions)
        row = (options or {}).get("session")
        row = int(self.np_random.integers(n_sessions)) if row is None else int(row)
        if not 0 <= row < n_sessions:
            raise OptionError(f"session: must be in 0..{n_sessions - 1}, got {row}")
        self._parallel.begin(np.ones(1, bool), np.asarray([row]))
        return self._observation(), {"action_mask": self._parallel.available[0].copy(), "session": row}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Show a candidate; return observation, reward, terminated, truncated (never) and info."""
        parallel = self._parallel
        if parallel.state is None or parallel.is_over()[0]:
            raise gymnasium.error.ResetNeeded("call reset before the first step, and after the last of a session")
        before = parallel.available[0].copy()
        reward = parallel.show(np.asarray([action]), np.ones(1, bool), self.np_random.random(1))
        info = {"action_mask": parallel.available[0].copy(), "invalid": not before[action]}
        return self._observation(), float(reward[0]), bool(parallel.is_over()[0]), False, info

    def _observation(self) -> Observation:
        return {name: values[0] for name, values in self._parallel.observations().items()}


class SessionVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` sessions side by side, each begun at random, in batched calls.

    Args:
        environment: The users who respond.
        sessions: Sessions whose users, histories, lengths and candidates are used.
        num_envs: How many are served at a time.
        seed: Seed of the sample of candidates, if the sessions have none.

    Raises:
        InputError: If the sessions have one candidate set per step, there are none, or a simulator was fitted on their
            users.
    """

    def __init__(self, environment: Environment, sessions: Sessions, num_envs: int = 1, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._parallel = _ParallelSessions(environment, sessions, num_envs, seed)
        self._has_ended = np.zeros(num_envs, bool)
        self.single_observation_space = self._parallel.observation_space()
        self.single_action_space = spaces.Discrete(self._parallel.n_candidates)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin new sessions, all or those of `options["reset_mask"]` (num_envs,)."""
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        self._begin(np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool))))
        return self._parallel.observations(), self._info(np.zeros(self.num_envs, bool))

    def _begin(self, mask: NDArray[np.bool_]) -> None:
        """Begin random sessions where the mask is true."""
        self._parallel.begin(mask, self.np_random.integers(len(self._parallel.sessions), size=int(mask.sum())))
        self._has_ended[mask] = False

    def step(self, actions: NDArray[Any]) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Show a candidate in every session, (num_envs,); sessions that ended in the step before begin anew instead."""
        parallel, to_reset = self._parallel, self._has_ended.copy()
        before, active = parallel.available.copy(), ~to_reset
        actions = np.asarray(actions)
        rewards = parallel.show(actions, active, self.np_random.random(self.num_envs))
        invalid = np.zeros(self.num_envs, bool)
        invalid[active] = ~before[active, actions[active]]
        if to_reset.any():
            self._begin(to_reset)
        self._has_ended = active & parallel.is_over()
        truncated = np.zeros(self.num_envs, bool)
        return parallel.observations(), rewards, self._has_ended.copy(), truncated, self._info(invalid)

    def _info(self, invalid: NDArray[np.bool_]) -> dict[str, Any]:
        parallel = self._parallel
        return {"action_mask": parallel.available.copy(), "invalid": invalid, "session": parallel.row.copy()}


def newsfeed_env(users: int = 500, items: int = 2_000, seed: int = 0, horizon: int = 20) -> SessionEnv:
    """Create `mbcal/Newsfeed-v0`: the generated newsfeed.

    Args:
        users: How many users the world has.
        items: How many items it has.
        seed: Seed of the world and its sessions.
        horizon: Steps per session.
    """
    return SessionEnv(*_newsfeed(users, items, seed, horizon), seed)


def newsfeed_vector_env(
    num_envs: int = 1, users: int = 500, items: int = 2_000, seed: int = 0, horizon: int = 20
) -> SessionVectorEnv:
    """Create `mbcal/Newsfeed-v0` for `num_envs` sessions side by side; see `newsfeed_env`."""
    return SessionVectorEnv(*_newsfeed(users, items, seed, horizon), num_envs, seed)


def simulator_env(
    simulator: str | Path, data: str | Path, part: Part = "train", seed: int = 0, device: str = "cpu"
) -> SessionEnv:
    """Create `mbcal/Simulator-v0`: a fitted simulator and the users of a part of a store.

    Args:
        simulator: The simulator's folder.
        data: The store's folder.
        part: Which of its users.
        seed: Seed of the sample of candidates, if the store has none.
        device: `auto`, `cpu` or `cuda`.
    """
    return SessionEnv(*_simulated(simulator, data, part, device), seed)


def simulator_vector_env(
    simulator: str | Path, data: str | Path, num_envs: int = 1, part: Part = "train", seed: int = 0, device: str = "cpu"
) -> SessionVectorEnv:
    """Create `mbcal/Simulator-v0` for `num_envs` sessions side by side; see `simulator_env`."""
    return SessionVectorEnv(*_simulated(simulator, data, part, device), num_envs, seed)


def _newsfeed(users: int, items: int, seed: int, horizon: int) -> tuple[Newsfeed, Sessions]:
    world = Newsfeed(users, items, seed)
    return world, generate_sessions(world, SessionConfig(horizon=horizon), seed)


def _simulated(simulator: str | Path, data: str | Path, part: Part, device: str) -> tuple[Simulator, Sessions]:
    return Simulator.load(simulator, device), Store.open(data).sessions(part)


gymnasium.register("mbcal/Newsfeed-v0", "mbcal.gym:newsfeed_env", vector_entry_point="mbcal.gym:newsfeed_vector_env")
gymnasium.register("mbcal/Simulator-v0", "mbcal.gym:simulator_env", vector_entry_point="mbcal.gym:simulator_vector_env")
