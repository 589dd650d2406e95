"""Users as Gymnasium environments: `import mbcal.gym`, then `gymnasium.make("mbcal/Newsfeed-v0")`.

One episode is one session of a real (or generated) user: the agent shows candidates one after another and is paid the reward
of each behaviour.

Action: `Discrete(C)`, the place of a candidate. A candidate shown before is gone: choosing it again shows nothing, pays 0,
takes a step, and is marked `invalid` in the info, whose `action_mask` (C,) says what is left.

Observation: `Dict` of catalogue rows and behaviour numbers; padding is 0, for behaviours the number after the last ("none"):

    candidates          (C,)   what can be shown; 0 where there are fewer than C
    available           (C,)   1 where it has not been shown yet
    items, behaviours   (T,)   the session so far
    history_items, history_behaviours  (H,)   what the user did before it
    step                (1,)   steps taken

Reward: that of the behaviour. `terminated` when the session has had its steps: how many there are belongs to the session, so
the future ends there and must not be bootstrapped over. `truncated` is never set here; a `TimeLimit` around it may.

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
from mbcal.errors import OptionError
from mbcal.types import MASK_ROW, Sessions

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError("gym: Gymnasium is not installed; run pip install 'mbcal[gym]'") from error

Observation = dict[str, NDArray[Any]]


class _Table:
    """Some sessions being served side by side: everything the two kinds of environment share."""

    def __init__(self, environment: Environment, sessions: Sessions, count: int, seed: int) -> None:
        self.environment, self.sessions, self.count = environment, sessions, count
        if isinstance(environment, Simulator):
            environment.require_unseen_users(sessions)
        self.candidates = session_candidates(sessions, seed)
        self.rewards = np.asarray(environment.behaviours.rewards)
        self.nothing = environment.behaviours.start
        self.row = np.zeros(count, np.int64)
        self.step = np.zeros(count, np.int64)
        self.items = np.zeros((count, sessions.horizon), np.int32)
        self.behaviours = np.full((count, sessions.horizon), self.nothing, np.int32)
        self.available = np.zeros((count, self.candidates.shape[1]), bool)
        self.state: Any = None
        most, known = sessions.catalog.n_rows - 1, self.nothing
        self.space = spaces.Dict(
            {
                "candidates": spaces.Box(0, most, (self.candidates.shape[1],), np.int32),
                "available": spaces.MultiBinary(self.candidates.shape[1]),
                "items": spaces.Box(0, most, (sessions.horizon,), np.int32),
                "behaviours": spaces.Box(0, known, (sessions.horizon,), np.int32),
                "history_items": spaces.Box(0, most, (sessions.history_items.shape[1],), np.int32),
                "history_behaviours": spaces.Box(0, known, (sessions.history_items.shape[1],), np.int32),
                "step": spaces.Box(0, sessions.horizon, (1,), np.int32),
            }
        )

    def begin(self, which: NDArray[np.bool_], rows: NDArray[np.int64]) -> None:
        """New sessions (rows of the data) where `which` (count,) says so."""
        self.row[which], self.step[which] = rows, 0
        self.items[which], self.behaviours[which] = MASK_ROW, self.nothing
        self.available[which] = self.candidates[rows] != MASK_ROW
        fresh = self.environment.begin(*self.sessions[self.row].tensors(self.environment.device).history)
        self.state = fresh if self.state is None else self.environment.merge(self._tensor(which), fresh, self.state)

    def show(self, action: NDArray[Any], active: NDArray[np.bool_], uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Show candidates in the active sessions; the rewards (count,), 0 where nothing was shown."""
        all_gather_ints = np.arange(self.count)
        shown = active & self.available[all_gather_ints, action]
        item = self.candidates[self.row, action]
        behaviour, after = self.environment.respond(self.state, self._tensor(item), self._tensor(uniform).to(torch.float32))
        self.state = self.environment.merge(self._tensor(shown), after, self.state)
        label = behaviour.cpu().numpy()
        self.items[all_gather_ints[shown], self.step[shown]] = item[shown]
        self.behaviours[all_gather_ints[shown], self.step[shown]] = label[shown]
        self.available[all_gather_ints[shown], action[shown]] = False
        self.step[active] += 1
        return np.where(shown, self.rewards[label], 0.0)

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.environment.device)

    def over(self) -> NDArray[np.bool_]:
        return self.step >= self.sessions.length[self.row]

    def observation(self) -> Observation:
        past, before = self.sessions, self.sessions.history_mask[self.row]
        return {
            "candidates": self.candidates[self.row],
            "available": self.available.astype(np.int8),
            "items": self.items.copy(),
            "behaviours": self.behaviours.copy(),
            "history_items": past.history_items[self.row],
            "history_behaviours": np.where(before, past.history_behaviours[self.row], self.nothing).astype(np.int32),
            "step": self.step[:, None].astype(np.int32),
        }


class SessionEnv(gymnasium.Env[Any, Any]):
    """One session at a time. `reset(options={"session": row})` begins a certain session of the data."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, environment: Environment, sessions: Sessions, seed: int = 0) -> None:
        self._table = _Table(environment, sessions, 1, seed)
        self.observation_space = self._table.space
        self.action_space = spaces.Discrete(self._table.candidates.shape[1])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        row = (options or {}).get("session")
        row = int(self.np_random.integers(len(self._table.sessions))) if row is None else int(row)
        if not 0 <= row < len(self._table.sessions):
            raise OptionError(f"session: must be in 0..{len(self._table.sessions) - 1}, got {row}")
        self._table.begin(np.ones(1, bool), np.asarray([row]))
        return self._first(), {"action_mask": self._table.available[0].copy(), "session": row}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        table = self._table
        if table.state is None or table.over()[0]:
            raise gymnasium.error.ResetNeeded("call reset before the first step, and after the last of a session")
        if not 0 <= action < table.available.shape[1]:
            raise OptionError(f"action: must be in 0..{table.available.shape[1] - 1}, got {action}")
        valid = bool(table.available[0, action])
        reward = table.show(np.asarray([action]), np.ones(1, bool), self.np_random.random(1))
        info = {"action_mask": table.available[0].copy(), "invalid": not valid}
        return self._first(), float(reward[0]), bool(table.over()[0]), False, info

    def _first(self) -> Observation:
        return {name: values[0] for name, values in self._table.observation().items()}


class SessionVectorEnv(VectorEnv[Any, Any, Any]):
    """Many sessions side by side, in batched calls."""

    def __init__(self, environment: Environment, sessions: Sessions, num_envs: int = 1, seed: int = 0) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._table = _Table(environment, sessions, num_envs, seed)
        self._ended = np.zeros(num_envs, bool)
        self.single_observation_space = self._table.space
        self.single_action_space = spaces.Discrete(self._table.candidates.shape[1])
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed[0] if isinstance(seed, list) else seed)
        which = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        self._begin(which)
        return self._table.observation(), self._info(np.zeros(self.num_envs, bool))

    def _begin(self, which: NDArray[np.bool_]) -> None:
        self._table.begin(which, self.np_random.integers(len(self._table.sessions), size=int(which.sum())))
        self._ended[which] = False

    def step(self, actions: NDArray[Any]) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        table, actions = self._table, np.asarray(actions)
        again, active = self._ended.copy(), ~self._ended
        invalid = active & ~table.available[np.arange(self.num_envs), actions]
        rewards = table.show(actions, active, self.np_random.random(self.num_envs))
        if again.any():
            self._begin(again)
        self._ended = active & table.over()
        return table.observation(), rewards, self._ended.copy(), np.zeros(self.num_envs, bool), self._info(invalid)

    def _info(self, invalid: NDArray[np.bool_]) -> dict[str, Any]:
        return {"action_mask": self._table.available.copy(), "invalid": invalid}


def _newsfeed(users: int, items: int, seed: int, horizon: int) -> tuple[Newsfeed, Sessions]:
    world = Newsfeed(users, items, seed)
    return world, generate_sessions(world, SessionConfig(horizon=horizon), seed)


def _simulated(simulator: str | Path, data: str | Path, part: Part, device: str) -> tuple[Simulator, Sessions]:
    return Simulator.load(simulator, device), Store.open(data).sessions(part)


def newsfeed_env(users: int = 500, items: int = 2_000, seed: int = 0, horizon: int = 20) -> SessionEnv:
    """`mbcal/Newsfeed-v0`: the generated newsfeed itself."""
    return SessionEnv(*_newsfeed(users, items, seed, horizon), seed)


def newsfeed_vector_env(
    num_envs: int = 1, users: int = 500, items: int = 2_000, seed: int = 0, horizon: int = 20
) -> SessionVectorEnv:
    """The same, many sessions side by side."""
    return SessionVectorEnv(*_newsfeed(users, items, seed, horizon), num_envs, seed)


def simulator_env(
    simulator: str | Path, data: str | Path, part: Part = "train", seed: int = 0, device: str = "cpu"
) -> SessionEnv:
    """`mbcal/Simulator-v0`: a fitted simulator, with the users of a part of a store."""
    return SessionEnv(*_simulated(simulator, data, part, device), seed)


def simulator_vector_env(
    simulator: str | Path, data: str | Path, num_envs: int = 1, part: Part = "train", seed: int = 0, device: str = "cpu"
) -> SessionVectorEnv:
    """The same, many sessions side by side."""
    return SessionVectorEnv(*_simulated(simulator, data, part, device), num_envs, seed)


gymnasium.register("mbcal/Newsfeed-v0", "mbcal.gym:newsfeed_env", vector_entry_point="mbcal.gym:newsfeed_vector_env")
gymnasium.register("mbcal/Simulator-v0", "mbcal.gym:simulator_env", vector_entry_point="mbcal.gym:simulator_vector_env")
