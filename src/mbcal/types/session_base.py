"""What sessions as arrays and as tensors share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mbcal.errors import ModelError
from mbcal.types.catalog import Behaviours, Catalog
from mbcal.types.fields import SessionFields

ARRAYS: Mapping[str, tuple[type[np.generic], str]] = {
    "items": (np.int32, "NT"),
    "behaviours": (np.uint8, "NT"),
    "length": (np.int32, "N"),
    "user": (np.int32, "N"),
    "history_items": (np.int32, "NH"),
    "history_behaviours": (np.uint8, "NH"),
    "history_length": (np.int32, "N"),
    "candidates": (np.int32, "NC"),
    "propensities": (np.float32, "NT"),
    "timestamps": (np.int64, "NT"),
    "user_features": (np.float32, "NU"),
    "context": (np.float32, "NTK"),
}
"""Array -> (dtype, axes), in the order of the dataclass fields."""


class History(NamedTuple):
    """What is known about B users when a session begins, as arrays or tensors."""

    user: Any
    """(B,) user numbers."""
    items: Any
    """(B, H) catalogue rows, oldest first."""
    behaviours: Any
    """(B, H) behaviour numbers."""
    length: Any
    """(B,) steps that count."""


class SessionsBase:
    """What Sessions and SessionTensors share."""

    catalog: Catalog
    behaviour_set: Behaviours
    fields: SessionFields
    history_items: Any
    history_behaviours: Any
    history_length: Any
    user: Any

    @property
    def history(self) -> History:
        """Who the users are and what they did before, without `user_features`."""
        return History(self.user, self.history_items, self.history_behaviours, self.history_length)

    def __repr__(self) -> str:
        sessions: Any = self
        steps = f"{len(sessions):,} of up to {sessions.horizon} steps"
        return f"<{type(self).__name__}: {steps}, {len(self.catalog):,} items, {len(self.behaviour_set)} behaviours>"

    def require_compatible(self, catalog: Catalog, behaviours: Behaviours, owner: str) -> None:
        """Raise ModelError if a model does not have the behaviours of these sessions, or their items in the same rows.

        Args:
            catalog: The model's items.
            behaviours: The model's behaviours.
            owner: The model, for the error: `the simulator`.
        """
        if self.behaviour_set != behaviours:
            names, data_names = ", ".join(behaviours.names), ", ".join(self.behaviour_set.names)
            problem = f"{owner} knows the behaviours {names}, the data has {data_names} (or other rewards)"
            raise ModelError(f"{problem}; fit one on this data")
        if not catalog.extends(self.catalog):
            problem = f"{owner} knows {len(catalog):,} items, the data has {len(self.catalog):,} and not the same"
            raise ModelError(f"{problem}; fit one on this data, or prepare the log --like the store of the model")


def recode_arrays(sessions: Any, fields: SessionFields, zeros: Callable[..., Any]) -> dict[str, Any]:
    """Encode the user features and the context of sessions by other fields.

    Args:
        sessions: N sessions, as arrays or tensors.
        fields: The fields of the result.
        zeros: Makes an array of a shape; for fields that the sessions do not have at all.

    Returns:
        `user_features` (N, U) and `context` (N, T, K); None where there are no fields.
    """
    n_sessions, horizon = sessions.items.shape
    arrays: dict[str, Any] = {}
    for name, source, target, shape in (
        ("user_features", sessions.fields.user, fields.user, (n_sessions,)),
        ("context", sessions.fields.context, fields.context, (n_sessions, horizon)),
    ):
        rows = getattr(sessions, name)
        if not len(target):
            arrays[name] = None
        else:
            arrays[name] = zeros(*shape, target.width) if rows is None else target.recode(rows, source)
    return arrays
