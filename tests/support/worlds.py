"""Small Gymnasium environments: one whose best policy is known, and some that cannot be played."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

KEYS = "tests.support.worlds:toy/Keys-v0"
"""ID of `Keys`, with the module that registers it."""
HORIZON, ITEMS, BEST = 4, 7, 6.0
"""Steps and items of `Keys`, and the reward of its best policy: the key, then three sweets."""
KIND = ("key", "plain", "plain", "plain", "sweet", "sweet", "sweet")
"""What each item of `Keys` is: its item feature."""
SMALL: dict[str, Any] = {"hidden": 16, "embedding": 8, "batch": 16, "epochs": 10, "learning_rate": 5e-3, "device": "cpu"}
"""Settings of agents that learn `Keys` in seconds."""


class Keys(gymnasium.Env[int, int]):
    """Item 0, the key, pays 0; plain items pay 1; sweets pay 2 after the key was shown, and 0 before.

    Who takes the best next item earns 1 + 1 + 1 and then 0.
    """

    action_space: Any = spaces.Discrete(ITEMS)
    observation_space: Any = spaces.Discrete(1)
    item_features = {"kind": KIND}  # noqa: RUF012

    def __init__(self, steps: int = HORIZON) -> None:
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown: list[int] = []
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        item = self.item_of(action)
        reward = self.reward(item)
        self.shown.append(item)
        return 0, reward, len(self.shown) >= self.steps, False, {}

    def item_of(self, action: Any) -> int:
        assert isinstance(action, int)
        return action

    def reward(self, item: int) -> float:
        return {"key": 0.0, "plain": 1.0, "sweet": 2.0 * (0 in self.shown)}[KIND[item]]


class Impatient(Keys):
    """The user leaves, as it pleases it (by its seed), after one to four steps. Actions count from 5, in a list of one."""

    action_space = spaces.MultiDiscrete([ITEMS], start=[5])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        answer = super().reset(seed=seed)
        self.steps = int(self.np_random.integers(1, HORIZON + 1))
        return answer

    def item_of(self, action: Any) -> int:
        assert action.shape == (1,)
        return int(action[0]) - 5


class Scored(Keys):
    """Pays the number of the item and a random fraction: far more than 20 distinct rewards."""

    def reward(self, item: int) -> float:
        return item + float(self.np_random.random())


class Constant(Keys):
    def reward(self, item: int) -> float:
        return 1.0


class Surprising(Keys):
    """Pays 3 for the key in a hundredth of the episodes, none of which is probed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        answer = super().reset(seed=seed)
        self.is_rare = bool(self.np_random.random() < 0.01)
        return answer

    def reward(self, item: int) -> float:
        return 3.0 if self.is_rare and item == 0 else super().reward(item)


class OneItem(Keys):
    action_space = spaces.Discrete(1)


class Continuous(Keys):
    action_space = spaces.Box(0, 1, (1,), np.float32)


class Slate(Keys):
    action_space = spaces.MultiDiscrete([ITEMS, ITEMS])


class Buttons(Keys):
    action_space = spaces.MultiBinary(3)


for kind in (Keys, Impatient, Scored, Constant, Surprising, OneItem, Continuous, Slate, Buttons):
    gymnasium.register(f"toy/{kind.__name__}-v0", entry_point=kind)  # type: ignore[arg-type]
gymnasium.register("toy/AtOnce-v0", entry_point=Keys, kwargs={"steps": 1})  # type: ignore[arg-type]
gymnasium.register("toy/Never-v0", entry_point=Keys, kwargs={"steps": 10**9})  # type: ignore[arg-type]
gymnasium.register("toy/Limited-v0", entry_point=Keys, kwargs={"steps": 10**9}, max_episode_steps=3)  # type: ignore[arg-type]
gymnasium.register("toy/Long-v0", entry_point=Keys, kwargs={"steps": ITEMS + 1})  # type: ignore[arg-type]
