"""From sorted blocks of whole users to the shards of a store, on two threads: numpy and Parquet run beside Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.data.cutting import SessionConfig, Steps, cut
from mbcal.data.store_format import PARTS, Part, Shard
from mbcal.data.store_writer import StoreWriter
from mbcal.types import Behaviours

Block = dict[str, NDArray[Any]]
"""Columns u, time_us, tie, value (and session, propensity where the log has them) of whole users, sorted by all of them."""

SHARD_STEPS = 1_000_000
"""Steps in a shard, about: a shard ends with the user who reaches it, and with its part."""
_AHEAD = 3
"""Blocks in work at a time."""


@dataclass(frozen=True)
class ShardPlan:
    """Which users make which shard. A slice of a plan is the plan of some shards."""

    user_bounds: NDArray[np.int64]  # the first user of each shard and, at the end, the first of none
    rows: NDArray[np.int64]  # by shard
    locations: tuple[tuple[Part, int], ...]  # by shard: its part, and its number there

    @classmethod
    def from_users(cls, part: NDArray[Any], rows: NDArray[np.int64], weight: int = 1) -> ShardPlan:
        """From each user's part (0, 1, 2, never falling) and rows; a shard is smaller by how much more a row weighs."""
        before = np.cumsum(rows * weight) - rows * weight
        before -= before[np.searchsorted(part, part)]  # counted within the part
        begin = np.flatnonzero(np.r_[True, (np.diff(part) != 0) | (np.diff(before // SHARD_STEPS) != 0)])
        owner = part[begin]
        numbers = np.arange(len(begin)) - np.searchsorted(owner, owner)
        places = tuple((PARTS[p], number) for p, number in zip(owner.tolist(), numbers.tolist(), strict=True))
        return cls(np.r_[begin, len(part)], np.add.reduceat(rows, begin), places)

    def __getitem__(self, shards: slice) -> ShardPlan:
        begin, end, _ = shards.indices(len(self.locations))
        return ShardPlan(self.user_bounds[begin : end + 1], self.rows[begin:end], self.locations[begin:end])


@dataclass(frozen=True)
class BlockIndex:
    """What the numbers in a block stand for."""

    plan: ShardPlan
    user_digest: NDArray[np.uint64]  # by user, from the first of the plan
    item_row: NDArray[np.int32]  # by tie
    item_digest: NDArray[np.uint64]  # by tie
    value_digest: NDArray[np.uint64] | None  # by label; None where behaviours are levels of a number, hashed as it is

    @cached_property
    def user_shard(self) -> NDArray[np.int64]:
        """By user, from the first of the plan: 0, 1, 2, …"""
        return np.repeat(np.arange(len(self.plan.locations)), np.diff(self.plan.user_bounds))


@dataclass
class IngestCounts:
    """What is counted while blocks stream past."""

    labels: NDArray[np.int64]
    rows: int = 0
    sessions: int = 0
    full_sessions: int = 0
    short_windows: int = 0
    ties: int = 0
    log_hash: int = 0
    duplicates: int = 0
    parts: dict[Part, dict[str, int]] = field(default_factory=lambda: {part: {"sessions": 0, "steps": 0} for part in PARTS})

    def add(self, other: IngestCounts) -> None:
        """What was counted elsewhere, in blocks of other users."""
        for name in ("labels", "rows", "sessions", "full_sessions", "short_windows", "ties", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.log_hash = (self.log_hash + other.log_hash) % 2**64
        for part, counts in other.parts.items():
            for name, count in counts.items():
                self.parts[part][name] += count


@dataclass(frozen=True)
class _Work:
    """What became of one block."""

    pieces: list[tuple[int, Shard]]  # shard number, some of its users
    duplicates: Block | None
    labels: NDArray[np.int64]
    short_windows: int
    ties: int
    log_hash: int


def write_shards(
    blocks: Iterable[Block],
    index: BlockIndex,
    behaviours: Behaviours,
    config: SessionConfig,
    writer: StoreWriter,
    set_aside: Callable[[Block], None],
) -> IngestCounts:
    """Cut every block and write every shard, in order; exact duplicates are handed to `set_aside`."""
    tally = IngestCounts(np.zeros(len(behaviours), np.int64))
    with ThreadPoolExecutor(2) as pool:
        writing: deque[Future[None]] = deque()
        works = _in_order(pool, blocks, index, behaviours, config)
        for place, shard in _shards(works, index.plan, config, tally, set_aside):
            while len(writing) >= 2:
                writing.popleft().result()
            writing.append(pool.submit(writer.shard, *place, shard))
        for future in writing:
            future.result()
    return tally


def _in_order(
    pool: ThreadPoolExecutor, blocks: Iterable[Block], index: BlockIndex, behaviours: Behaviours, config: SessionConfig
) -> Iterator[_Work]:
    waiting: deque[Future[_Work]] = deque()
    for block in blocks:
        waiting.append(pool.submit(_work, block, index, behaviours, config))
        if len(waiting) >= _AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _work(block: Block, index: BlockIndex, behaviours: Behaviours, config: SessionConfig) -> _Work:
    """Drop repeats, tell levels, cut; a pure function of its arguments."""
    repeats = _repeats(block)
    duplicates = None
    if len(repeats):
        duplicates = {column: array[repeats] for column, array in block.items()}
        block = {column: np.delete(array, repeats) for column, array in block.items()}
    codes = behaviours.level(block["value"]) if behaviours.cuts else block["value"]
    owner = index.user_shard[block["u"] - index.plan.user_bounds[0]]
    edges = np.r_[0, np.flatnonzero(np.diff(owner)) + 1, len(owner)]
    pieces, short_windows = [], 0
    for begin, end in pairwise(edges.tolist()):
        piece = {column: array[begin:end] for column, array in block.items()}
        windows = cut(Steps(piece["u"], piece["time_us"], piece.get("session")), config)
        order = slice(None) if windows.order is None else windows.order
        propensity = piece.get("propensity")
        shard = Shard(
            items=index.item_row[piece["tie"][order]],
            behaviours=codes[begin:end][order],
            timestamps=piece["time_us"][order],
            propensities=None if propensity is None else propensity[order],
            user=windows.user,
            start=windows.start,
            length=windows.length,
            history_length=windows.history_length,
            history=windows.history,
        )
        pieces.append((int(owner[begin]), shard))
        short_windows += windows.dropped
    labels = np.bincount(codes, minlength=len(behaviours))
    ties = (block["time_us"][1:] == block["time_us"][:-1]) & (block["u"][1:] == block["u"][:-1])
    return _Work(pieces, duplicates, labels, short_windows, int(ties.sum()), _hash(block, index))


def _shards(
    works: Iterable[_Work], plan: ShardPlan, config: SessionConfig, tally: IngestCounts, set_aside: Callable[[Block], None]
) -> Iterator[tuple[tuple[Part, int], Shard]]:
    """Count what is done, and join the pieces of each shard."""
    number = 0
    pieces: list[Shard] = []
    for work in works:
        tally.labels += work.labels
        tally.short_windows += work.short_windows
        tally.ties += work.ties
        tally.log_hash = (tally.log_hash + work.log_hash) % 2**64
        if work.duplicates is not None:
            tally.duplicates += len(work.duplicates["u"])
            set_aside(work.duplicates)
        for owner, piece in work.pieces:
            part, _ = plan.locations[owner]
            tally.rows += len(piece.items)
            tally.sessions += len(piece.start)
            tally.full_sessions += int(np.sum(piece.length == config.horizon))
            tally.parts[part]["sessions"] += len(piece.start)
            tally.parts[part]["steps"] += len(piece.items)
            if owner != number:
                yield plan.locations[number], _joined(pieces)
                number, pieces = owner, []
            pieces.append(piece)
    yield plan.locations[number], _joined(pieces)


def _joined(pieces: list[Shard]) -> Shard:
    offsets = np.cumsum([0, *(len(piece.items) for piece in pieces)])
    moved = [_moved(piece, int(offset)) for piece, offset in zip(pieces, offsets, strict=False)]
    joined: dict[str, Any] = {}
    for column in vars(moved[0]):
        arrays = [getattr(piece, column) for piece in moved]
        joined[column] = None if arrays[0] is None else np.concatenate(arrays)
    return Shard(**joined)


def _moved(piece: Shard, by: int) -> Shard:
    history = None if piece.history is None else np.where(piece.history < 0, -1, piece.history + by)
    return replace(piece, start=piece.start + by, history=history)


def _repeats(block: Block) -> NDArray[np.int64]:
    """Rows equal to the one before them."""
    rows = np.flatnonzero(block["tie"][1:] == block["tie"][:-1]) + 1  # rare, so the other columns are hardly looked at
    for column in block.keys() - {"tie"}:
        rows = rows[block[column][rows] == block[column][rows - 1]]
    return rows


def _hash(block: Block, index: BlockIndex) -> int:
    """A hash of rows as a set: it knows neither their order nor any option, only names and values."""
    value = block["value"]
    row = block["time_us"].view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    row ^= value.view(np.uint64) if index.value_digest is None else index.value_digest[value]
    if "propensity" in block:
        row += block["propensity"].view(np.uint32).astype(np.uint64) << np.uint64(32)
    _mix(row)
    row += index.item_digest[block["tie"]]
    row ^= index.user_digest[block["u"] - index.plan.user_bounds[0]]
    if "session" in block:
        _mix(row)
        row += block["session"]
    _mix(row)
    return int(row.sum(dtype=np.uint64))


def _mix(x: NDArray[np.uint64]) -> None:
    """The finaliser of splitmix64, in place: every input bit moves every output bit."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
