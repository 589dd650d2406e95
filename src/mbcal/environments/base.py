"""The environment protocol: users who respond to the items that a policy shows.

Implementations: `model.ModelEnvironment` (a network, such as an agent's environment model), `simulator.Simulator` (learned
users that judge agents), `newsfeed.world.Newsfeed` (a generated world whose truth is known). The only randomness is one
uniform number per step, passed as an argument, so that two policies can meet the same users under the same noise.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from mbcal.errors import InputError
from mbcal.types import Behaviours, Catalog, Sessions, SessionTensors


class Environment(Protocol):
    """Users, B sessions at a time. States are opaque and immutable."""

    @property
    def catalog(self) -> Catalog:
        """The items it can be shown."""

    @property
    def behaviours(self) -> Behaviours:
        """The behaviours it responds with."""

    @property
    def device(self) -> torch.device:
        """Where its states, and all arguments, lie."""

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> Any:
        """Return the state in which users begin a session.

        Args:
            user: User numbers, (B,).
            history_items: Catalogue rows of the steps before the session, oldest first, (B, H).
            history_behaviours: Their behaviours, (B, H).
            history_length: Steps that count, (B,).
        """

    def respond(self, state: Any, item: Tensor, uniform: Tensor) -> tuple[Tensor, Any]:
        """Sample a behaviour for each item.

        Args:
            state: State of B sessions.
            item: Catalogue rows, (B,).
            uniform: One number in [0, 1) per session, (B,), that decides the behaviour.

        Returns:
            Behaviours (B,) uint8, and the state after them.
        """

    def observe(self, state: Any, item: Tensor, behaviour: Tensor) -> Any:
        """Return the state after item (B,) met a known behaviour (B,)."""

    def merge(self, mask: Tensor, yes: Any, no: Any) -> Any:
        """Return, session by session, the state `yes` where mask (B,) is true, else `no`."""


def require_sessions(value: object) -> None:
    """Raise InputError unless `value` is sessions, as arrays or tensors."""
    if not isinstance(value, Sessions | SessionTensors):
        got = type(value).__name__
        raise InputError(f"sessions: must be sessions, such as store.sessions('test'), got {got}")
