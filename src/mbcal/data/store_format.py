"""What a store is: its parts, its schema, its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import StoreError
from mbcal.storage.manifest import ArtifactKind
from mbcal.types import Behaviours, Catalog, Sessions

SCHEMA = 1
"""Raised whenever a store written before can no longer be read as it was."""


STORE_KIND = ArtifactKind("store", SCHEMA, "make a store with 'mbcal prepare'", "prepare the store again", StoreError)


Part = Literal["simulator", "train", "test"]


PARTS: tuple[Part, ...] = get_args(Part)
"""Who a user is for: fitting the simulator, training agents, or testing. Never two of them."""


@dataclass(frozen=True)
class Shard:
    """Some whole users of one part: their steps, and the sessions that point into them."""

    items: NDArray[np.int32]  # (S,)
    behaviours: NDArray[np.uint8]  # (S,)
    timestamps: NDArray[np.int64] | None  # (S,)
    propensities: NDArray[np.float32] | None  # (S,)
    user: NDArray[np.int32]  # (N,)
    start: NDArray[np.int64]  # (N,)
    length: NDArray[np.int32]  # (N,)
    history_length: NDArray[np.int32]  # (N,)
    candidates: NDArray[np.int32] | None = None  # (N, C)
    history: NDArray[np.int64] | None = None  # (N, H): steps of each history, where they do not just precede it

    def to_sessions(self, catalog: Catalog, behaviours: Behaviours, horizon: int, history: int) -> Sessions:
        """Pad to rectangles."""
        steps, mask = _window(self.start, self.length, horizon)
        before, history_mask = _window(self.start - self.history_length, self.history_length, history)
        if self.history is not None:
            before = self.history

        def pick(column: NDArray[Any], index: NDArray[np.int64], valid: NDArray[np.bool_]) -> Any:
            taken = column[np.minimum(index, max(len(column) - 1, 0))]
            taken[~valid] = 0
            return taken

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
        )


def _window(start: NDArray[np.int64], length: NDArray[np.int32], width: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(N, width) step numbers from each start, and which of them lie within the length."""
    return start[:, None] + np.arange(width), np.arange(width) < length[:, None]
