"""Users one can ask: the generated world, a learned simulator, or an agent's own environment model.

All answer in the same way: `begin` a session from what is known of its user, then `answer` each item shown. Randomness is
one uniform number a step, given from outside, so that two policies can meet the same users in the same luck.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from mbcal.types import Behaviours, Catalog


class Environment(Protocol):
    """The two verbs of a user, for B sessions at a time; `State` is explicit and immutable."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def behaviours(self) -> Behaviours: ...

    @property
    def device(self) -> torch.device: ...

    def begin(self, user: Tensor, history_items: Tensor, history_behaviours: Tensor, history_length: Tensor) -> Any:
        """The state in which users (B,) with histories (B, H) come to a session."""

    def respond(self, state: Any, item: Tensor, uniform: Tensor) -> tuple[Tensor, Any]:
        """What users do with item (B,), drawn by uniform numbers (B,): behaviours (B,) uint8, and the state after it."""

    def observe(self, state: Any, item: Tensor, behaviour: Tensor) -> Any:
        """The state after item (B,) met a behaviour (B,) that is known."""

    def merge(self, mask: Tensor, yes: Any, no: Any) -> Any:
        """Session by session (B,) the one state or the other."""
