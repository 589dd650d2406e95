"""A network of behaviours as an environment: an agent's environment model, or the network of a simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from mbcal.kernels import triton
from mbcal.nn.base import SessionNet, State, sample_behaviour
from mbcal.nn.recurrent import RecurrentNet
from mbcal.scoring.tables import Tables
from mbcal.types import Behaviours, Catalog


@dataclass(frozen=True)
class ModelState:
    """The state of a network in B sessions."""

    hidden: State
    previous: Tensor
    """(B,) the last behaviour."""
    context: Tensor | None = None
    """(B, K) the context of the next step, if it is known."""

    def __getitem__(self, rows: Tensor) -> Self:
        context = None if self.context is None else self.context[rows]
        return type(self)(tuple(part[rows] for part in self.hidden), self.previous[rows], context)

    def __repr__(self) -> str:
        return f"<ModelState: {len(self.previous)} sessions>"


class ModelEnvironment:
    """Users as a network of behaviours predicts them.

    Args:
        net: The network. It is copied: the environment does not change when the network learns on.
        catalog: Its items.
        behaviours: Its behaviours.
    """

    def __init__(self, net: SessionNet, catalog: Catalog, behaviours: Behaviours) -> None:
        self.catalog, self.behaviours = catalog, behaviours
        self.net, self.fields = net.frozen_copy(), net.fields
        self.device = net.behaviours.weight.device
        self.rewards = behaviours.reward_table(self.device)
        # on a GPU, tables allow one kernel per step
        self._tables: Tables | None = None
        if isinstance(self.net, RecurrentNet) and triton.runs_on(self.rewards):
            self._tables = self.net.to_tables()

    @torch.no_grad()
    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> ModelState:
        """See `Environment`."""
        previous = torch.full_like(user, self.behaviours.start)
        history = (user, history_items, history_behaviours, history_length)
        if self._tables is not None and isinstance(self.net, RecurrentNet):
            return ModelState(self.net.initial_state(self._tables.begin(*history)), previous)
        return ModelState(self.net.begin(*history), previous)

    @torch.no_grad()
    def with_user(self, state: ModelState, user_features: Tensor) -> ModelState:
        """The state before the first step of users with these features (B, U); see `scoring.fields.FieldReader`."""
        return replace(state, hidden=self.net.with_user(state.hidden, user_features))

    def with_context(self, state: ModelState, context: Tensor) -> ModelState:
        """The state with the context (B, K) of the next step; see `scoring.fields.FieldReader`."""
        return replace(state, context=context)

    @torch.no_grad()
    def probabilities(self, state: ModelState, items: Tensor) -> Tensor:
        """P(behaviour | state, item): (B, C, behaviours) for items (B, C)."""
        size, count = items.shape
        repeated = state[torch.arange(size, device=items.device).repeat_interleave(count)]
        logits, _ = self.net.forward_step(repeated.hidden, items.flatten(), repeated.previous, repeated.context)
        return torch.softmax(logits, -1).view(size, count, -1)

    def expected_reward(self, state: ModelState, items: Tensor) -> Tensor:
        """E[reward | state, item]: (B, C) for items (B, C)."""
        return self.probabilities(state, items) @ self.rewards

    @torch.no_grad()
    def predict(self, state: ModelState, item: Tensor) -> tuple[Tensor, Callable[[Tensor], ModelState]]:
        """See `branches.PredictingEnvironment`."""
        logits, hidden = self.net.forward_step(state.hidden, item, state.previous, state.context)
        return torch.softmax(logits, -1), lambda behaviour: ModelState(hidden, behaviour.to(state.previous.dtype))

    @torch.no_grad()
    def respond(self, state: ModelState, item: Tensor, uniform: Tensor) -> tuple[Tensor, ModelState]:
        """See `Environment`."""
        if self._tables is not None:
            gates = None if state.context is None else self._tables.context_gates(state.context)
            cell, previous = self._tables.cell.in_context(state.previous, gates)
            fast = triton.respond(replace(self._tables, cell=cell), state.hidden, item, previous, uniform)
            if fast is not None:
                behaviour, hidden = fast
                return behaviour, ModelState(hidden, behaviour.to(state.previous.dtype))
        logits, hidden = self.net.forward_step(state.hidden, item, state.previous, state.context)
        behaviour = sample_behaviour(torch.softmax(logits, -1), uniform)
        return behaviour.to(torch.uint8), ModelState(hidden, behaviour.to(state.previous.dtype))

    @torch.no_grad()
    def observe(self, state: ModelState, item: Tensor, behaviour: Tensor) -> ModelState:
        """See `Environment`."""
        _, hidden = self.net.forward_step(state.hidden, item, state.previous, state.context)
        return ModelState(hidden, behaviour.to(state.previous.dtype))

    def merge(self, mask: Tensor, yes: ModelState, no: ModelState) -> ModelState:
        """See `Environment`."""
        return ModelState(self.net.merge(mask, yes.hidden, no.hidden), torch.where(mask, yes.previous, no.previous))

    def __repr__(self) -> str:
        sizes = f"{len(self.catalog):,} items, {len(self.behaviours)} behaviours"
        return f"<ModelEnvironment: {type(self.net).__name__}, {sizes}, on {self.device}>"
