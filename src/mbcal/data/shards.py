"""From sorted blocks of rows to the shards of a store, on two threads, since numpy and Parquet release the GIL."""

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

from mbcal.data.cutting import SessionConfig, Steps, Windows, cut
from mbcal.data.derived_rows import Block, add_negatives, latest_steps, mix, next_click_levels
from mbcal.data.store_format import PARTS, Part, Shard
from mbcal.data.store_writer import StoreWriter
from mbcal.types import Behaviours
from mbcal.types.item_life import ItemLife

SHARD_STEPS = 1_000_000
"""About how many steps a shard has: it ends with the user who reaches this number, and with its part."""
_AHEAD = 3
"""Blocks that are processed at a time."""


@dataclass(frozen=True)
class ShardPlan:
    """Division of users into K shards. A slice of a plan is the plan of some of the shards."""

    user_bounds: NDArray[np.int64]
    """(K + 1,) first user of each shard, and the user after the last."""
    rows: NDArray[np.int64]
    """(K,) rows of each shard."""
    locations: tuple[tuple[Part, int], ...]
    """Part of each shard, and its number in that part."""

    @classmethod
    def from_users(cls, part: NDArray[Any], rows: NDArray[np.int64], weight: int = 1) -> ShardPlan:
        """Plan the shards of all users.

        Args:
            part: (U,) index of each user's part, ascending.
            rows: (U,) rows of each user.
            weight: Memory of a row relative to the usual; shards have so many times fewer rows.
        """
        before = np.cumsum(rows * weight) - rows * weight
        before -= before[np.searchsorted(part, part)]  # counted within the part
        begin = np.flatnonzero(np.r_[True, (np.diff(part) != 0) | (np.diff(before // SHARD_STEPS) != 0)])
        owner = part[begin]
        numbers = np.arange(len(begin)) - np.searchsorted(owner, owner)
        locations = tuple((PARTS[p], number) for p, number in zip(owner.tolist(), numbers.tolist(), strict=True))
        return cls(np.r_[begin, len(part)], np.add.reduceat(rows, begin), locations)

    def __getitem__(self, shards: slice) -> ShardPlan:
        begin, end, _ = shards.indices(len(self.locations))
        return ShardPlan(self.user_bounds[begin : end + 1], self.rows[begin:end], self.locations[begin:end])


@dataclass(frozen=True)
class BlockIndex:
    """Meaning of the numbers in a block."""

    plan: ShardPlan
    user_digest: NDArray[np.uint64]
    """Hash of each user of the plan."""
    item_row: NDArray[np.int32]
    """Tie -> catalogue row."""
    item_digest: NDArray[np.uint64]
    """Tie -> hash of the item."""
    value_digest: NDArray[np.uint64] | None
    """Label -> hash; None if behaviours are levels of a number, which is hashed itself."""
    item_life: ItemLife | None = None
    """Tie -> when the item was first seen; None unless negatives are sampled."""

    @cached_property
    def user_shard(self) -> NDArray[np.int64]:
        """Number, in the plan, of the shard of each user of the plan."""
        return np.repeat(np.arange(len(self.plan.locations)), np.diff(self.plan.user_bounds))


_SUMS = (
    *("labels", "rows", "sessions", "full_sessions", "short_windows", "ties", "duplicates", "older_steps"),
    *("negatives", "negatives_population"),
)
"""Counts that add up; the others have rules of their own."""


@dataclass
class IngestCounts:
    """Counts of an ingestion."""

    labels: NDArray[np.int64]
    """(A,) rows with each behaviour."""
    rows: int = 0
    sessions: int = 0
    full_sessions: int = 0
    short_windows: int = 0
    ties: int = 0
    """Rows at the same time as another of the same user."""
    log_hash: int = 0
    """Hash of the rows as a set; see `_row_hashes`."""
    duplicates: int = 0
    older_steps: int = 0
    """Steps left out since the user has `max_per_user` later ones."""
    negatives: int = 0
    """Rows that were added for items which users did not choose."""
    negatives_population: int = 0
    """From how many pairs of a row and an item they were sampled."""
    parts: dict[Part, dict[str, int]] = field(default_factory=lambda: {part: {"sessions": 0, "steps": 0} for part in PARTS})

    def add(self, other: IngestCounts) -> None:
        """Add the counts of other users."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.log_hash = (self.log_hash + other.log_hash) % 2**64
        for part, counts in other.parts.items():
            for name, count in counts.items():
                self.parts[part][name] += count


@dataclass(frozen=True)
class _CutBlock:
    """One block, cut into sessions."""

    pieces: list[tuple[int, Shard]]
    """Number of a shard in the plan, and some of its users."""
    duplicates: Block | None
    labels: NDArray[np.int64]
    short_windows: int
    ties: int
    log_hash: int
    older_steps: int
    drawn: int
    population: int


def write_shards(
    blocks: Iterable[Block],
    index: BlockIndex,
    behaviours: Behaviours,
    config: SessionConfig,
    writer: StoreWriter,
    on_duplicates: Callable[[Block], None],
) -> IngestCounts:
    """Cut blocks into sessions, and write the shards of a plan.

    Args:
        blocks: The rows of all users of the plan, in order.
        index: Meaning of the numbers in the blocks.
        behaviours: Behaviours of the log.
        config: How sessions are cut.
        writer: Receives the shards.
        on_duplicates: Called with exact duplicates, which are left out.

    Returns:
        Counts of these users.
    """
    counts = IngestCounts(np.zeros(len(behaviours), np.int64))
    with ThreadPoolExecutor(2) as pool:
        writing: deque[Future[None]] = deque()
        cut_blocks = _cut_in_order(pool, blocks, index, behaviours, config)
        for location, shard in _shards(cut_blocks, index.plan, config, counts, on_duplicates):
            while len(writing) >= 2:
                writing.popleft().result()
            writing.append(pool.submit(writer.shard, *location, shard))
        for future in writing:
            future.result()
    return counts


def _cut_in_order(
    pool: ThreadPoolExecutor, blocks: Iterable[Block], index: BlockIndex, behaviours: Behaviours, config: SessionConfig
) -> Iterator[_CutBlock]:
    waiting: deque[Future[_CutBlock]] = deque()
    for block in blocks:
        waiting.append(pool.submit(_cut_block, block, index, behaviours, config))
        if len(waiting) >= _AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _cut_block(block: Block, index: BlockIndex, behaviours: Behaviours, config: SessionConfig) -> _CutBlock:
    """Drop duplicates, compute behaviours, add negatives and cut. A pure function."""
    repeated = _duplicate_rows(block)
    duplicates = None
    if len(repeated):
        duplicates = {column: array[repeated] for column, array in block.items()}
        block = {column: np.delete(array, repeated, axis=0) for column, array in block.items()}
    row_hashes = _row_hashes(block, index)
    log_hash, n_rows = int(row_hashes.sum(dtype=np.uint64)), len(block["u"])
    if config.max_per_user is not None:
        kept = latest_steps({**block, "hash": row_hashes}, config.max_per_user)
        row_hashes, block = kept.pop("hash"), kept
    older_steps = n_rows - len(block["u"])
    ties = (block["time_us"][1:] == block["time_us"][:-1]) & (block["u"][1:] == block["u"][:-1])
    codes, drawn, population = _codes(block, behaviours, config), 0, 0
    if config.negatives and index.item_life is not None:
        keys = row_hashes + np.uint64(config.seed)
        extended = add_negatives(block, codes, keys, index.item_life, config, behaviours)
        block, codes, drawn, population = extended.block, extended.codes, extended.drawn, extended.population
    pieces, short_windows = _cut_pieces(block, codes, index, behaviours, config)
    labels = np.bincount(np.concatenate([shard.behaviours for _, shard in pieces]), minlength=len(behaviours))
    n_ties = int(ties.sum())
    return _CutBlock(pieces, duplicates, labels, short_windows, n_ties, log_hash, older_steps, drawn, population)


def _codes(block: Block, behaviours: Behaviours, config: SessionConfig) -> NDArray[np.uint8]:
    """Return the behaviour of each row, (S,)."""
    if config.next_click:
        return next_click_levels(block, config)
    if config.level_cuts:
        return np.searchsorted(config.level_cuts, block["value"], side="right").astype(np.uint8)
    return behaviours.level(block["value"]) if behaviours.cuts else block["value"]


def _cut_pieces(
    block: Block, codes: NDArray[np.uint8], index: BlockIndex, behaviours: Behaviours, config: SessionConfig
) -> tuple[list[tuple[int, Shard]], int]:
    """Cut a block with behaviours (S,) into the parts of its shards; returns them and how many windows were too short."""
    owner = index.user_shard[block["u"] - index.plan.user_bounds[0]]
    edges = np.r_[0, np.flatnonzero(np.diff(owner)) + 1, len(owner)]
    pieces, short_windows = [], 0
    for begin, end in pairwise(edges.tolist()):
        piece = {column: array[begin:end] for column, array in block.items()}
        is_test = index.plan.locations[int(owner[begin])][0] == "test"
        opens = config.time_cuts[1] if config.time_cuts is not None and is_test else None
        piece_codes = codes[begin:end]
        is_end = None if config.ends_by_length or not config.ends else behaviours.is_terminal[piece_codes]
        windows = cut(Steps(piece["u"], piece["time_us"], piece.get("session"), is_end), config, opens)
        order = slice(None) if windows.order is None else windows.order
        piece_codes = piece_codes[order]
        if config.ends_by_length:
            piece_codes = _with_leaving(piece_codes, windows, config.horizon, behaviours.n_observed)
        propensity = piece.get("propensity")
        shard = Shard(
            items=index.item_row[piece["tie"][order]],
            behaviours=piece_codes,
            timestamps=piece["time_us"][order],
            propensities=None if propensity is None else propensity[order],
            user=windows.user,
            start=windows.start,
            length=windows.length,
            history_length=windows.history_length,
            history=windows.history,
            context=piece["context"][order] if "context" in piece else None,
        )
        pieces.append((int(owner[begin]), shard))
        short_windows += windows.dropped
    return pieces, short_windows


def _with_leaving(codes: NDArray[np.uint8], windows: Windows, horizon: int, n_observed: int) -> NDArray[np.uint8]:
    """Return behaviours (S,), the last one of every session shorter than the horizon replaced by its terminal variant."""
    is_short = windows.length < horizon
    last = windows.start[is_short] + windows.length[is_short] - 1
    codes = codes.copy()
    codes[last] += np.uint8(n_observed)
    return codes


def _shards(
    cut_blocks: Iterable[_CutBlock],
    plan: ShardPlan,
    config: SessionConfig,
    counts: IngestCounts,
    on_duplicates: Callable[[Block], None],
) -> Iterator[tuple[tuple[Part, int], Shard]]:
    """Yield the location and content of each shard, joined from its pieces; adds to the counts."""
    number = 0
    pieces: list[Shard] = []
    for block in cut_blocks:
        counts.labels += block.labels
        counts.short_windows += block.short_windows
        counts.ties += block.ties
        counts.older_steps += block.older_steps
        counts.negatives += block.drawn
        counts.negatives_population += block.population
        counts.log_hash = (counts.log_hash + block.log_hash) % 2**64
        if block.duplicates is not None:
            counts.duplicates += len(block.duplicates["u"])
            on_duplicates(block.duplicates)
        for owner, piece in block.pieces:
            part, _ = plan.locations[owner]
            counts.rows += len(piece.items)
            counts.sessions += len(piece.start)
            counts.full_sessions += int(np.sum(piece.length == config.horizon))
            counts.parts[part]["sessions"] += len(piece.start)
            counts.parts[part]["steps"] += len(piece.items)
            if owner != number:
                yield plan.locations[number], _joined(pieces)
                number, pieces = owner, []
            pieces.append(piece)
    yield plan.locations[number], _joined(pieces)


def _joined(pieces: list[Shard]) -> Shard:
    offsets = np.cumsum([0, *(len(piece.items) for piece in pieces)])
    shifted = [_shifted(piece, int(offset)) for piece, offset in zip(pieces, offsets, strict=False)]
    joined: dict[str, Any] = {}
    for column in vars(shifted[0]):
        arrays = [getattr(piece, column) for piece in shifted]
        joined[column] = None if arrays[0] is None else np.concatenate(arrays)
    return Shard(**joined)


def _shifted(piece: Shard, by: int) -> Shard:
    history = None if piece.history is None else np.where(piece.history < 0, -1, piece.history + by)
    return replace(piece, start=piece.start + by, history=history)


def _duplicate_rows(block: Block) -> NDArray[np.int64]:
    """Return the rows that equal the row before them."""
    rows = np.flatnonzero(block["tie"][1:] == block["tie"][:-1]) + 1  # rare, so little of the other columns is compared
    for column in block.keys() - {"tie"}:
        same = block[column][rows] == block[column][rows - 1]
        rows = rows[same if same.ndim == 1 else same.all(1)]
    return rows


def _row_hashes(block: Block, index: BlockIndex) -> NDArray[np.uint64]:
    """Hash rows by names and values; their sum is a hash of the rows as a set, whatever their order or the options."""
    value = block["value"]
    row = block["time_us"].view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    row ^= value.view(np.uint64) if index.value_digest is None else index.value_digest[value]
    if "propensity" in block:
        row += block["propensity"].view(np.uint32).astype(np.uint64) << np.uint64(32)
    mix(row)
    row += index.item_digest[block["tie"]]
    row ^= index.user_digest[block["u"] - index.plan.user_bounds[0]]
    if "session" in block:
        mix(row)
        row += block["session"]
    for column in block["context"].T if "context" in block else ():
        mix(row)
        row += np.ascontiguousarray(column).view(np.uint32)
    mix(row)
    return row
