"""When items can be shown: from their first step in the log on, for some days."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

DAY = 86_400_000_000
"""Microseconds in a day."""
NEVER = np.iinfo(np.int64).max
"""First time of rows that are no items."""


@dataclass(frozen=True, eq=False)
class ItemLife:
    """When each row of a catalogue was first seen in the log, and for how long it may be shown.

    An item is alive at a time if its first step lies before it, by at most `days`.
    """

    first_seen: NDArray[np.int64]
    """(R,) microseconds since 1970; `NEVER` for special rows and items without a time."""
    days: float | None = None
    """Days for which an item is alive; None for ever."""

    @cached_property
    def rows(self) -> NDArray[np.int32]:
        """(R,) catalogue rows by the time at which they were first seen; those alive at any time are neighbours."""
        return np.argsort(self.first_seen, kind="stable").astype(np.int32)

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """(R,) the times of `rows`, ascending."""
        return np.asarray(self.first_seen[self.rows])

    def alive(self, times: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the range of `rows` that is alive at each time.

        Args:
            times: (N,) microseconds since 1970.

        Returns:
            First position and the position after the last, (N,) each; equal if nothing is alive.
        """
        end = np.searchsorted(self.times, times, side="left")
        if self.days is None:
            return np.zeros_like(end), end
        return np.searchsorted(self.times, times - np.int64(self.days * DAY), side="left"), end

    def tensors(self, times: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return `rows` (R,), and the range alive at each time (N,), as tensors on the device of the times."""
        import torch

        arrays = (self.rows, *self.alive(times.cpu().numpy()))
        rows, first, end = (torch.from_numpy(array).to(times.device) for array in arrays)
        return rows, first, end


def extended_life(own: ItemLife | None, other: ItemLife | None, sources: NDArray[np.int64]) -> ItemLife | None:
    """Return when the items of a grown catalogue can be shown: the earlier of two first times, the newer number of days.

    Args:
        own: Of the catalogue that grows.
        other: Of the items that are added.
        sources: (R,) the row among the other items that describes each row of the result, -1 if none does.
    """
    if own is None and other is None:
        return None
    first_seen = np.full(len(sources), NEVER)
    if own is not None:
        first_seen[: len(own.first_seen)] = own.first_seen
    if other is not None:
        known = sources >= 0
        first_seen[known] = np.minimum(first_seen[known], other.first_seen[sources[known]])
    newer = own if other is None else other
    return ItemLife(first_seen, None if newer is None else newer.days)
