"""A network of behaviours as an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mbcal.kernels import triton as fused
from mbcal.nn.base import SessionNet, State
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.tables import Tables
from mbcal.types import Behaviours, Catalog


@dataclass(frozen=True)
class ModelState:
    """Where a network stands in B sessions."""

    hidden: State
    previous: Tensor  # (B,)

    def __getitem__(self, rows: Tensor) -> Self:
        return type(self)(tuple(part[rows] for part in self.hidden), self.previous[rows])


class ModelEnvironment:
    """Users as a network of behaviours imagines them. The network is copied and its weights never move."""

    def __init__(self, net: SessionNet, catalog: Catalog, behaviours: Behaviours) -> None:
        self.catalog, self.behaviours = catalog, behaviours
        self._net = net.frozen_copy()
        self.device = net.behaviours.weight.device
        self.rewards = behaviours.reward_table(self.device)
        # on a GPU the network in tables, for one kernel a step
        self._tables: Tables | None = None
        if isinstance(self._net, RecurrentNet) and fused.runs_on(self.rewards):
            self._tables = self._net.to_tables()

    @torch.no_grad()
    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> ModelState:
        """See `Environment`."""
        previous = torch.full_like(user, self.behaviours.start)
        known = (user, history_items, history_behaviours, history_length)
        if self._tables is not None and isinstance(self._net, RecurrentNet):
            return ModelState(self._net.initial_state(self._tables.begin(*known)), previous)
        return ModelState(self._net.begin(*known), previous)

    @torch.no_grad()
    def probabilities(self, state: ModelState, items: Tensor) -> Tensor:
        """P(behaviour | user, item): (B, C, behaviours) for items (B, C)."""
        size, count = items.shape
        spread = state[torch.arange(size, device=items.device).repeat_interleave(count)]
        logits, _ = self._net.forward_step(spread.hidden, items.flatten(), spread.previous)
        return torch.softmax(logits, -1).view(size, count, -1)

    def expected_reward(self, state: ModelState, items: Tensor) -> Tensor:
        """E[reward | user, item]: (B, C)."""
        return self.probabilities(state, items) @ self.rewards

    @torch.no_grad()
    def respond(self, state: ModelState, item: Tensor, uniform: Tensor) -> tuple[Tensor, ModelState]:
        """See `Environment`."""
        if self._tables is not None:
            made = fused.respond(self._tables, state.hidden, item, state.previous, uniform)
            if made is not None:
                return made[0], ModelState(made[1], made[0].to(state.previous.dtype))
        logits, hidden = self._net.forward_step(state.hidden, item, state.previous)
        reach = torch.softmax(logits, -1).cumsum(1)
        # the first behaviour whose cumulated chance exceeds the draw
        behaviour = (reach <= uniform.unsqueeze(1) * reach[:, -1:]).sum(1).clamp(max=len(self.behaviours) - 1)
        return behaviour.to(torch.uint8), ModelState(hidden, behaviour.to(state.previous.dtype))

    @torch.no_grad()
    def observe(self, state: ModelState, item: Tensor, behaviour: Tensor) -> ModelState:
        """See `Environment`."""
        _, hidden = self._net.forward_step(state.hidden, item, state.previous)
        return ModelState(hidden, behaviour.to(state.previous.dtype))

    def merge(self, mask: Tensor, yes: ModelState, no: ModelState) -> ModelState:
        """See `Environment`."""
        return ModelState(self._net.merge(mask, yes.hidden, no.hidden), torch.where(mask, yes.previous, no.previous))
