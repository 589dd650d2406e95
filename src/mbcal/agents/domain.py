"""What an agent is fitted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mbcal.types import Behaviours, Catalog, Sessions, SessionTensors


@dataclass(frozen=True)
class Domain:
    """What an agent was fitted for: items, behaviours, and the sizes of its sessions."""

    catalog: Catalog
    behaviours: Behaviours
    horizon: int
    """Most steps in a session."""
    history: int
    """Most steps before a session."""
    n_users: int
    """Users with a number below this have their own row in an id encoder."""

    @classmethod
    def from_sessions(cls, sessions: Sessions | SessionTensors, n_users: int | None = None) -> Self:
        """The domain of some sessions; `n_users` is larger where other workers hold sessions, too."""
        n_users = n_users or int(sessions.user.max()) + 1
        return cls(sessions.catalog, sessions.behaviour_set, sessions.horizon, sessions.history_items.shape[1], n_users)

    def require_compatible(self, sessions: Sessions | SessionTensors, owner: str) -> None:
        """Raise ModelError if the rows of `sessions` mean other items or behaviours than here."""
        sessions.require_compatible(self.catalog, self.behaviours, owner)
