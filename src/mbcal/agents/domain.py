"""The items, behaviours and sizes of sessions that an agent is fitted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from mbcal.environments.base import require_sessions
from mbcal.types import NO_FIELDS, Behaviours, Catalog, SessionFields, Sessions, SessionTensors


@dataclass(frozen=True)
class Domain:
    """Items, behaviours and sizes of the sessions that an agent is fitted for."""

    catalog: Catalog
    behaviours: Behaviours
    horizon: int
    """Most steps in a session."""
    history: int
    """Most steps before a session."""
    n_users: int
    """Users with a number below this have a row of their own in an id encoder; all others share one."""
    fields: SessionFields = NO_FIELDS
    """Fields of users and steps that its networks read."""

    @classmethod
    def from_sessions(
        cls, sessions: Sessions | SessionTensors, n_users: int | None = None, fields: SessionFields | None = None
    ) -> Self:
        """Create the domain of sessions.

        Args:
            sessions: At least one session.
            n_users: Highest user number + 1; by default that of `sessions`. Give it if other workers hold sessions, too.
            fields: Fields that networks read; by default those of `sessions`.
        """
        n_users = n_users or int(sessions.user.max()) + 1
        sizes = (sessions.horizon, sessions.history_items.shape[1], n_users)
        return cls(sessions.catalog, sessions.behaviour_set, *sizes, sessions.fields if fields is None else fields)

    def require_compatible(self, sessions: Sessions | SessionTensors, owner: str) -> None:
        """Raise unless `sessions` are over the same items and behaviours.

        Args:
            sessions: Other sessions.
            owner: Subject of the message, such as "this agent".

        Raises:
            ModelError: If items or behaviours differ.
            InputError: If they are no sessions.
        """
        require_sessions(sessions)
        sessions.require_compatible(self.catalog, self.behaviours, owner)
