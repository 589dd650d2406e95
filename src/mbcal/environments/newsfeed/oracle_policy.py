"""The oracle as a policy, so that regret can be told on the generated newsfeed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mbcal.environments.newsfeed.oracle import Oracle
from mbcal.environments.newsfeed.world import Newsfeed, UserState
from mbcal.types import MASK_ROW

NAME = "oracle"


@dataclass(frozen=True)
class _Standing:
    user: UserState
    shown: Tensor  # (B, steps so far)


class OraclePolicy:
    """Knows the user's true state and plans to the session's end. Its score is 1 for the item it would show, else 0."""

    def __init__(self, world: Newsfeed, horizon: int) -> None:
        self.world, self.horizon, self._oracle = world, horizon, Oracle(world)

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> _Standing:
        state = self.world.begin(user, history_items, history_behaviours, history_length)
        return _Standing(state, history_items.new_zeros(len(user), 0))

    def score(self, state: _Standing, candidates: Tensor) -> Tensor:
        gone = (candidates.unsqueeze(2) == state.shown.unsqueeze(1)).any(2) | (candidates == MASK_ROW)
        chosen = self._oracle.choose(state.user, candidates, ~gone, self.horizon - state.shown.shape[1])
        return torch.nn.functional.one_hot(chosen, candidates.shape[1]).float()

    def observe(self, state: _Standing, item: Tensor, behaviour: Tensor) -> _Standing:
        shown = torch.cat([state.shown, item.unsqueeze(1).to(state.shown.dtype)], 1)
        return _Standing(self.world.observe(state.user, item, behaviour), shown)
