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
"""How often an item that the user chose, or that was sampled already, is sampled again before it is left out."""
_ROUND, _SLOT = 0x9E3779B97F4A7C15, np.uint64(0xD1B54A32D192ED03)
"""Odd factors that give every attempt at every negative its own random number."""


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
    """From how many they were sampled: for each row, the items that were alive and that the user did not choose."""


def add_negatives(
    block: Block,
    codes: NDArray[np.uint8],
    keys: NDArray[np.uint64],
    life: ItemLife,
    config: SessionConfig,
    behaviours: Behaviours,
) -> WithNegatives:
    """Add to each row items that were alive at its time and that the user did not choose in that session.

    They have the row's time, session and other columns, and stand among the rows of that time in the order of `tie`. Only a
    row with which the user leaves comes after those of its time.

    Args:
        block: S rows of some users.
        codes: (S,) their behaviours.
        keys: (S,) hashes of the rows, which decide what is sampled.
        life: When items, by tie, were first seen.
        config: How many, and what separates sessions.
        behaviours: Behaviours of the store, with `none`.
    """
    is_end = behaviours.is_terminal[codes] if config.ends and not config.ends_by_length else None
    group, is_last = _session_of(block, config, is_end)
    n_items, count = len(life.rows), config.negatives
    place = np.argsort(life.rows)  # tie -> position in the order of first times, where the items alive are neighbours
    first, end = life.alive(block["time_us"])
    taken = _distinct(group * n_items + place[block["tie"]])
    n_alive = end - first
    n_chosen = np.searchsorted(taken, group * n_items + end) - np.searchsorted(taken, group * n_items + first)
    parent = np.repeat(np.arange(len(group)), count)
    slot = np.tile(np.arange(count, dtype=np.uint64), len(group))
    position, pending = np.full(len(parent), -1, np.int64), np.flatnonzero((n_alive > n_chosen)[parent])
    for attempt in range(SAMPLING_ROUNDS):
        rows = parent[pending]
        bits = keys[rows] + slot[pending] * _SLOT + np.uint64(attempt * _ROUND % 2**64)
        mix(bits)
        sampled = first[rows] + (bits % n_alive[rows].astype(np.uint64)).astype(np.int64)
        sampled_keys = group[rows] * n_items + sampled
        is_new = _first_of_each(sampled_keys) & ~_contains(taken, sampled_keys)
        position[pending[is_new]] = sampled[is_new]
        pending = pending[~is_new]
        if not len(pending):
            break
        taken = _distinct(np.concatenate([taken, sampled_keys[is_new]]))
    has_item = position >= 0
    tie = life.rows[position[has_item]].astype(np.int64)
    negatives = _Negatives(parent[has_item], tie, behaviours.index(NONE), int((n_alive - n_chosen).sum()))
    return _merged(block, codes, negatives, is_last if config.ends_by_length else is_end)


@dataclass(frozen=True)
class _Negatives:
    """M rows to be added."""

    parent: NDArray[np.int64]
    """(M,) row that each belongs to."""
    tie: NDArray[np.int64]
    """(M,)"""
    code: int
    """Their behaviour."""
    population: int


def _merged(
    block: Block, codes: NDArray[np.uint8], negatives: _Negatives, comes_last: NDArray[np.bool_] | None
) -> WithNegatives:
    """Put negatives among the rows, by user, time, whether the row comes last (S,), and tie."""
    moved = np.r_[True, (np.diff(block["time_us"]) != 0) | (np.diff(block["u"].astype(np.int64)) != 0)][: len(codes)]
    moment, added = np.cumsum(moved), len(negatives.tie)
    source = np.concatenate([np.arange(len(codes)), negatives.parent])
    ties = np.concatenate([block["tie"].astype(np.int64), negatives.tie])
    rank = 2 * moment[source]
    if comes_last is not None:
        rank[: len(codes)] += comes_last
    order = np.argsort(rank * (int(ties.max(initial=0)) + 1) + ties, kind="stable")
    merged = {column: array[source[order]] for column, array in block.items()}
    merged["tie"] = ties[order].astype(block["tie"].dtype)
    behaviours = np.concatenate([codes, np.full(added, negatives.code, np.uint8)])[order]
    return WithNegatives(merged, behaviours, added, negatives.population)


def _session_of(
    block: Block, config: SessionConfig, is_end: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the number of each row's session, before sessions are cut at the horizon, and whether it is its last; (S,)."""
    order, breaks = session_breaks(Steps(block["u"], block["time_us"], block.get("session"), is_end), config)
    place = np.arange(len(breaks)) if order is None else order
    group, is_last = np.empty(len(breaks), np.int64), np.empty(len(breaks), bool)
    group[place] = np.cumsum(breaks) - 1
    is_last[place] = np.append(breaks[1:], True)[: len(breaks)]
    return group, is_last


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct keys, ascending. `np.unique` hashes whole numbers, which takes thirty times as long."""
    ascending: NDArray[np.int64] = np.sort(keys)
    is_first = np.r_[True, ascending[1:] != ascending[:-1]][: len(ascending)]
    return np.asarray(ascending[is_first])


def _contains(ascending: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.bool_]:
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
