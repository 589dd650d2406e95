"""Accepted rows, numbered and sorted, to shards: DuckDB sorts out of core, numpy cuts what streams past.

The sort is total (user, time, a seeded rank of the item, behaviour, session), so neither the order of rows nor that of
files can be seen in the result, and equal rows meet and are told as duplicates for free. Python holds a few blocks and
shards at a time, though never less than one whole user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.data.cutting import SessionConfig, stable_hash
from mbcal.data.shards import Block, BlockIndex, IngestCounts, ShardPlan, write_shards
from mbcal.data.store_writer import StoreWriter
from mbcal.progress import SILENT, Progress
from mbcal.types import FIRST_ITEM_ROW, Behaviours

if TYPE_CHECKING:
    import duckdb

BATCH = 1 << 18
"""Rows taken from DuckDB at a time."""
USUAL_HISTORY = 20
"""Steps of history for which shards and batches are sized."""
_DUPLICATES = pa.schema([("u", pa.uint32()), ("time_us", pa.int64()), ("tie", pa.uint32()), ("value", pa.float64())])


def memory_factor(columns: Sequence[str], config: SessionConfig) -> int:
    """How much more than usual a step weighs in memory: sessions of the log's own carry their history step by step."""
    return -(-config.history // USUAL_HISTORY) if "session" in columns and config.history else 1


def cut_accepted(
    connection: duckdb.DuckDBPyConnection,
    plan: ShardPlan,
    behaviours: Behaviours,
    config: SessionConfig,
    writer: StoreWriter,
    duplicates: Path,
    progress: Progress = SILENT,
) -> IngestCounts:
    """Sort and cut the rows of a plan's users, from the tables `accepted`, `users` and `items`; exact duplicates are left in
    a Parquet file."""
    index = _index(connection, plan, behaviours)
    with pq.ParquetWriter(duplicates, _DUPLICATES) as out:

        def set_aside(block: Block) -> None:
            out.write_table(pa.table({field.name: pa.array(block[field.name]).cast(field.type) for field in _DUPLICATES}))

        return write_shards(
            _sorted(connection, int(plan.rows.sum()), config, progress), index, behaviours, config, writer, set_aside
        )


def _index(connection: duckdb.DuckDBPyConnection, plan: ShardPlan, behaviours: Behaviours) -> BlockIndex:
    """What the numbers stand for, as arrays."""
    users = connection.sql("SELECT digest FROM users ORDER BY u").to_arrow_table()
    items = connection.sql("SELECT i, digest FROM items ORDER BY tie").to_arrow_table()
    labels = None if behaviours.cuts else np.array([stable_hash(label, 0, "label") for label in behaviours.names], np.uint64)
    return BlockIndex(
        plan=plan,
        user_digest=users["digest"].to_numpy(),
        item_row=items["i"].to_numpy().astype(np.int32) + FIRST_ITEM_ROW,
        item_digest=items["digest"].to_numpy(),
        value_digest=labels,
    )


def _sorted(connection: duckdb.DuckDBPyConnection, rows: int, config: SessionConfig, progress: Progress) -> Iterator[Block]:
    """Columns of whole users, in the one order."""
    progress.phase("sorting by user and time")
    present = [row[0] for row in connection.execute("DESCRIBE accepted").fetchall()]
    columns = ["u", "time_us", "tie", "value", *(column for column in ("session", "propensity") if column in present)]
    listed = ", ".join(columns)
    query = f'SELECT {listed} FROM accepted JOIN users USING ("user") JOIN items USING (item) ORDER BY {listed}'
    kept: list[Block] = []
    for number, batch in enumerate(connection.sql(query).to_arrow_reader(max(BATCH // memory_factor(present, config), 1))):
        if number == 0:
            progress.phase("cutting sessions", rows)
        arrays = {column: batch.column(column).to_numpy() for column in columns}
        end = int(np.searchsorted(arrays["u"], arrays["u"][-1]))  # where the last, perhaps unfinished user begins
        if end:
            yield _joined([*kept, {column: array[:end] for column, array in arrays.items()}])
            kept = []
        kept.append({column: array[end:] for column, array in arrays.items()})
        progress.advance(batch.num_rows)
    yield _joined(kept)


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return {column: np.concatenate([block[column] for block in blocks]) for column in blocks[0]}
