"""Rows of sorted blocks chosen or derived from other rows. Pure functions on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Block = dict[str, NDArray[Any]]
"""All rows of some users, sorted by columns u, time_us, tie, value (and session, propensity, if the log has them); and
`context` (rows, K), if the log has it."""


def latest_steps(block: Block, count: int) -> Block:
    """Return the block with the latest `count` rows of each user."""
    user = block["u"]
    end = np.searchsorted(user, user, side="right")
    kept = end - np.arange(len(user)) <= count
    return {column: array[kept] for column, array in block.items()}


def order_by_context(block: Block) -> Block:
    """Order rows that are equal in everything but the context by it, so that the order of the log does not matter."""
    if "context" not in block or not len(block["u"]):
        return block
    same = np.ones(len(block["u"]) - 1, bool)
    for column in block.keys() - {"context"}:
        same &= block[column][1:] == block[column][:-1]
    if not same.any():
        return block
    group = np.cumsum(np.r_[True, ~same])
    order = np.lexsort((*block["context"].T[::-1], group))
    return {**block, "context": block["context"][order]}
