"""Rows of sorted blocks chosen or derived from other rows. Pure functions on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Block = dict[str, NDArray[Any]]
"""All rows of some users, sorted by columns u, time_us, tie, value (and session, propensity, if the log has them)."""


def latest_steps(block: Block, count: int) -> Block:
    """Return the block with the latest `count` rows of each user."""
    user = block["u"]
    end = np.searchsorted(user, user, side="right")
    kept = end - np.arange(len(user)) <= count
    return {column: array[kept] for column, array in block.items()}
