"""Rows chosen or derived from the sorted rows of a block: the latest of a user, dwell by the next click, negatives.

Pure functions on arrays. What they return depends on the rows as a set and on the seed, not on the order of the log or on
how it was divided into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.data.clicks import NONE
from mbcal.data.cutting import SessionConfig, Steps, session_breaks
from mbcal.types import Behaviours
from mbcal.types.item_life import ItemLife

Block = dict[str, NDArray[Any]]
"""All rows of some users, sorted by columns u, time_us, tie, value (and session, propensity, if the log has them); and
`context` (rows, K), if the log has it."""

SAMPLING_ROUNDS = 16
"""How often an item that was sampled already in its session is sampled again before it is repeated."""
_ROUND, _SLOT = 0x9E3779B97F4A7C15, np.uint64(0xD1B54A32D192ED03)
"""Odd factors that give every attempt at every negative its own random number."""
_COUNT = np.uint64(0xA0761D6478BD642F)
"""Gives the number of negatives of a row its own random number."""


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


def next_click_levels(block: Block, config: SessionConfig) -> NDArray[np.uint8]:
    """Return the level of the time from each row to the next row of the same session, in seconds.

    Args:
        block: The rows of some users.
        config: Has the cut points, and what separates sessions.

    Returns:
        (S,) levels; one more than the highest for the last row of a session, after which nothing is known.
    """
    order, breaks = session_breaks(Steps(block["u"], block["time_us"], block.get("session")), config)
    place = np.arange(len(breaks)) if order is None else order
    time = block["time_us"][place]
    levels = np.empty(len(time), np.uint8)
    levels[place] = np.where(
        np.append(breaks[1:], True)[: len(time)],
        len(config.level_cuts) + 1,
        np.searchsorted(config.level_cuts, np.diff(time, append=time[-1:]) / 1e6, side="right"),
    )
    return levels


@dataclass(frozen=True)
class WithNegatives:
    """A block with items that users did not choose."""

    block: Block
    codes: NDArray[np.uint8]
    """(S,) behaviours, also of the rows that were added."""
    drawn: int
    """Rows that were added."""
    population: int
    """Pairs they were sampled from: for each row, the items that were alive and that the user did not choose."""


def add_negatives(
    block: Block,
    codes: NDArray[np.uint8],
    keys: NDArray[np.uint64],
    life: ItemLife,
    config: SessionConfig,
    behaviours: Behaviours,
) -> WithNegatives:
    """Add before each row items that were alive at its time and that the user did not choose in that session.

    Their number is geometric with mean K (`negative_counts`), so each step of a session is a negative with probability
    K / (K + 1), whatever came before it: with a fixed number, models would learn to count. They have the row's time, session
    and other columns, and stand directly before it in the order in which they were sampled. An item is repeated in a session
    only if hardly any other is left. Rows at whose time no such item was alive get none.

    Args:
        block: S rows of some users.
        codes: (S,) their behaviours.
        keys: (S,) hashes of the rows, which decide what is sampled.
        life: When items, by tie, were first seen.
        config: The mean number K, and what separates sessions.
        behaviours: Behaviours of the store, with `none`.
    """
    is_end = behaviours.is_terminal[codes] if config.ends and not config.ends_by_length else None
    group = _session_of(block, config, is_end)
    n_items = len(life.rows)
    place = np.argsort(life.rows)  # tie -> position in the order of first times, where the items alive are neighbours
    first, end = life.alive(block["time_us"])
    free = _FreeItems(_distinct(group * n_items + place[block["tie"]]), group * n_items, first, end)
    counts = np.where(free.count > 0, negative_counts(keys, config.negatives), 0)
    parent = np.repeat(np.arange(len(group)), counts)
    slot = (np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.uint64)
    position, pending = np.empty(len(parent), np.int64), np.arange(len(parent))
    used = np.empty(0, np.int64)
    for attempt in range(SAMPLING_ROUNDS):
        rows = parent[pending]
        bits = keys[rows] + slot[pending] * _SLOT + np.uint64(attempt * _ROUND % 2**64)
        mix(bits)
        position[pending] = free.sample(rows, bits)
        sampled_keys = group[rows] * n_items + position[pending]
        is_new = _first_of_each(sampled_keys) & ~_contains(used, sampled_keys)
        pending = pending[~is_new]
        if not len(pending):
            break
        used = _distinct(np.concatenate([used, sampled_keys[is_new]]))
    ties = np.insert(block["tie"], parent, life.rows[position].astype(block["tie"].dtype))
    source = np.repeat(np.arange(len(group)), counts + 1)
    merged = {column: array[source] for column, array in block.items()}
    extended = np.insert(codes, parent, np.uint8(behaviours.index(NONE)))
    return WithNegatives({**merged, "tie": ties}, extended, len(parent), int(free.count.sum()))


def negative_counts(keys: NDArray[np.uint64], mean: int) -> NDArray[np.int64]:
    """Return how many negatives each row gets: n with probability p (1 - p)^n, where p = 1 / (mean + 1).

    This is the number of failures before a success, which tells nothing of how many are still to come. It is computed with
    whole numbers, so that it is the same on every machine.

    Args:
        keys: (S,) hashes of the rows.
        mean: The mean K.

    Returns:
        (S,)
    """
    bits = keys + _COUNT
    mix(bits)
    at_least, survival = [], (2**64 - 1) * mean // (mean + 1)  # P(at least 1), P(at least 2), … in units of 2^-64
    while survival:
        at_least.append(survival)
        survival = survival * mean // (mean + 1)
    ascending = np.array(at_least[::-1], np.uint64)
    return len(ascending) - np.searchsorted(ascending, bits, side="right")


class _FreeItems:
    """For each of S rows, the items alive at its time that the user did not choose in its session."""

    def __init__(
        self, chosen: NDArray[np.int64], offset: NDArray[np.int64], first: NDArray[np.int64], end: NDArray[np.int64]
    ) -> None:
        """Keep what was chosen, as ascending sums of a session's offset (S,) and a position, and the range alive (S,)."""
        self._chosen_before = np.searchsorted(chosen, offset + first)
        n_chosen = np.searchsorted(chosen, offset + end) - self._chosen_before
        self.count = np.asarray(end - first - n_chosen)
        """(S,) how many there are."""
        self._first, self._origin = first, offset + first - self._chosen_before
        self._unchosen_below = chosen - np.arange(len(chosen))

    def sample(self, rows: NDArray[np.int64], bits: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return for each of these rows (M,) the position of one of its items, by random bits (M,), all equally likely."""
        rank = (bits % self.count[rows].astype(np.uint64)).astype(np.int64)
        skipped = np.searchsorted(self._unchosen_below, self._origin[rows] + rank, side="right") - self._chosen_before[rows]
        return np.asarray(self._first[rows] + rank + skipped)


def _session_of(block: Block, config: SessionConfig, is_end: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Return the number of each row's session (S,), before sessions are cut at the horizon."""
    order, breaks = session_breaks(Steps(block["u"], block["time_us"], block.get("session"), is_end), config)
    group = np.empty(len(breaks), np.int64)
    group[slice(None) if order is None else order] = np.cumsum(breaks) - 1
    return group


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct keys, ascending. `np.unique` hashes whole numbers, which takes thirty times as long."""
    ascending: NDArray[np.int64] = np.sort(keys)
    is_first = np.r_[True, ascending[1:] != ascending[:-1]][: len(ascending)]
    return np.asarray(ascending[is_first])


def _contains(ascending: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(keys), bool)
    place = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.asarray(ascending[place] == keys)


def _first_of_each(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which keys (M,) occur for the first time."""
    order = np.argsort(keys, kind="stable")
    ascending, is_first = keys[order], np.empty(len(keys), bool)
    is_first[order] = np.r_[True, ascending[1:] != ascending[:-1]][: len(keys)]
    return is_first


def mix(x: NDArray[np.uint64]) -> None:
    """Apply the finaliser of splitmix64 in place: every input bit affects every output bit."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
