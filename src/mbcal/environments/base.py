"""The environment protocol: whoever responds to the items a policy shows.

Implementations: `model.ModelEnvironment` (an agent's own environment model), `simulator.Simulator` (learned users that judge
agents), `newsfeed.world.Newsfeed` (a generated world whose truth is known). Randomness is one uniform number per step, given
from outside, so that two policies can meet the same users under the same noise.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from mbcal.types import Behaviours, Catalog


class Environment(Protocol):
    """Users, B sessions at a time. States are opaque and immutable."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def behaviours(self) -> Behaviours: ...

    @property
    def device(self) -> torch.device: ...

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> Any:
        """Return the state in which users (B,) with histories (B, H) begin a session."""

    def respond(self, state: Any, item: Tensor, uniform: Tensor) -> tuple[Tensor, Any]:
        """Respond to item (B,) by uniform numbers (B,).

        Returns:
            Behaviours (B,) uint8, and the state after them.
        """

    def observe(self, state: Any, item: Tensor, behaviour: Tensor) -> Any:
        """Return the state after item (B,) met a known behaviour (B,)."""

    def merge(self, mask: Tensor, yes: Any, no: Any) -> Any:
        """Return, session by session, the state `yes` where mask (B,) is true, else `no`."""
