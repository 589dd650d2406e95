"""The format of a store: its parts, its schema version and its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import StoreError
from mbcal.storage.manifest import ArtifactKind
from mbcal.types import NO_FIELDS, Behaviours, Catalog, SessionFields, Sessions

SCHEMA = 1
"""Schema version; increased when older stores can no longer be read."""

STORE_KIND = ArtifactKind("store", SCHEMA, "make a store with 'mbcal prepare'", "prepare the store again", StoreError)
"""How stores are opened, checked and named in messages."""

Part = Literal["simulator", "train", "test"]
"""Purpose of a user: fit simulators, train agents, or test."""

PARTS: tuple[Part, ...] = get_args(Part)
"""All parts, in the order of users. No user is in two of them."""

FIRST_SEEN = "first_seen"
"""Column of items.parquet with the time of an item's first step in the log, in stores that need it."""


@dataclass(frozen=True)
class Shard:
    """All S steps of some users of one part, and the N sessions that point into them."""

    items: NDArray[np.int32]
    """(S,) catalogue rows."""
    behaviours: NDArray[np.uint8]
    """(S,)"""
    timestamps: NDArray[np.int64] | None
    """(S,) microseconds since 1970."""
    propensities: NDArray[np.float32] | None
    """(S,)"""
    user: NDArray[np.int32]
    """(N,) numbers of the users."""
    start: NDArray[np.int64]
    """(N,) first step."""
    length: NDArray[np.int32]
    """(N,) steps in the session."""
    history_length: NDArray[np.int32]
    """(N,) steps in its history."""
    candidates: NDArray[np.int32] | None = None
    """(N, C) or (N, T, C) catalogue rows."""
    history: NDArray[np.int64] | None = None
    """(N, H) steps of each history, padded with -1; None if they are the steps just before `start`."""
    context: NDArray[np.float32] | None = None
    """(S, K) steps, encoded by the store's fields."""
    user_features: NDArray[np.float32] | None = None
    """(N, U) users of the sessions, likewise."""

    def to_sessions(
        self, catalog: Catalog, behaviours: Behaviours, horizon: int, history: int, fields: SessionFields = NO_FIELDS
    ) -> Sessions:
        """Return the sessions as padded arrays.

        Args:
            catalog: The store's catalogue.
            behaviours: The store's behaviours.
            horizon: Width T of sessions.
            history: Width H of histories.
            fields: The store's fields.
        """
        steps, mask = _window(self.start, self.length, horizon)
        before, history_mask = _window(self.start - self.history_length, self.history_length, history)
        if self.history is not None:
            before = self.history

        def pick(column: NDArray[Any], index: NDArray[np.int64], valid: NDArray[np.bool_]) -> Any:
            values = column[np.minimum(index, max(len(column) - 1, 0))]
            values[~valid] = 0
            return values

        return Sessions(
            catalog=catalog,
            behaviour_set=behaviours,
            items=pick(self.items, steps, mask),
            behaviours=pick(self.behaviours, steps, mask),
            length=self.length,
            user=self.user,
            history_items=pick(self.items, before, history_mask),
            history_behaviours=pick(self.behaviours, before, history_mask),
            history_length=self.history_length,
            candidates=self.candidates,
            propensities=None if self.propensities is None else pick(self.propensities, steps, mask),
            timestamps=None if self.timestamps is None else pick(self.timestamps, steps, mask),
            user_features=self.user_features,
            context=None if self.context is None else pick(self.context, steps, mask),
            fields=fields,
        )


def _window(start: NDArray[np.int64], length: NDArray[np.int32], width: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return step numbers (N, width) from each start, and a mask (N, width) of those within the length."""
    return start[:, None] + np.arange(width), np.arange(width) < length[:, None]
