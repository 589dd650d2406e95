"""Accepted rows to shards: DuckDB sorts out of core, numpy cuts the sorted stream.

The order is total (user, time, a seeded rank of the item, behaviour, session). So the result does not depend on the order of
rows or files, and exact duplicates are neighbours. Python holds a few blocks and shards at a time, but at least all rows of
one user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.data.cutting import SessionConfig
from mbcal.data.derived_rows import Block, order_by_context
from mbcal.data.session_fields import encoded_context_sql
from mbcal.data.shards import BlockIndex, IngestCounts, ShardPlan, write_shards
from mbcal.data.store_writer import StoreWriter
from mbcal.data.user_split import stable_hash
from mbcal.progress import SILENT, Progress
from mbcal.storage.field_columns import CONTEXT_PREFIX, field_rows
from mbcal.types import FIRST_ITEM_ROW, Behaviours, Fields
from mbcal.types.item_life import ItemLife

if TYPE_CHECKING:
    import duckdb

BATCH = 1 << 18
"""Rows taken from DuckDB at a time."""
USUAL_HISTORY = 20
"""History for which shards and batches are sized."""
USUAL_WIDTH = 16
"""Columns of encoded context that need as much memory as the other columns of a step."""
_DUPLICATES = pa.schema([("u", pa.uint32()), ("time_us", pa.int64()), ("tie", pa.uint32()), ("value", pa.float64())])


def memory_factor(columns: Sequence[str], config: SessionConfig, context: Fields) -> int:
    """Return how many times the usual memory a step needs: more with sessions, context and negatives.

    Args:
        columns: Columns of `accepted`; with sessions the histories are listed.
        config: How sessions are cut, and how many negatives each step gets.
        context: Fields of steps, whose encoded rows are held as well.
    """
    listed = -(-config.history // USUAL_HISTORY) if "session" in columns and config.history else 1
    return (listed + context.width // USUAL_WIDTH) * (1 + config.negatives)


def cut_accepted(
    connection: duckdb.DuckDBPyConnection,
    plan: ShardPlan,
    behaviours: Behaviours,
    config: SessionConfig,
    writer: StoreWriter,
    duplicates: Path,
    progress: Progress = SILENT,
) -> IngestCounts:
    """Sort the rows of a plan's users, cut them and write their shards.

    Args:
        connection: Has the tables `accepted`, `users` and `items`.
        plan: The shards to write.
        behaviours: Behaviours of the log.
        config: How sessions are cut.
        writer: Receives the shards; has the fields of steps.
        duplicates: Parquet file to write exact duplicates to.
        progress: Receives the number of rows that are done.

    Returns:
        Counts of these users.
    """
    index = _index(connection, plan, behaviours, config)
    with pq.ParquetWriter(duplicates, _DUPLICATES) as out:

        def write_duplicates(block: Block) -> None:
            out.write_table(pa.table({field.name: pa.array(block[field.name]).cast(field.type) for field in _DUPLICATES}))

        blocks = _sorted(connection, int(plan.rows.sum()), config, writer.fields.context, progress)
        return write_shards(blocks, index, behaviours, config, writer, write_duplicates)


def _index(
    connection: duckdb.DuckDBPyConnection, plan: ShardPlan, behaviours: Behaviours, config: SessionConfig
) -> BlockIndex:
    """Return arrays that map the numbers of users, ties and labels to hashes, catalogue rows and first times."""
    users = connection.sql("SELECT digest FROM users ORDER BY u").to_arrow_table()
    items = connection.sql("SELECT i, digest FROM items ORDER BY tie").to_arrow_table()
    is_number = behaviours.cuts or (config.level_cuts and not config.next_click)
    labels = None if is_number else np.array([stable_hash(label, 0, "label") for label in behaviours.names], np.uint64)
    return BlockIndex(
        plan=plan,
        user_digest=users["digest"].to_numpy(),
        item_row=items["i"].to_numpy().astype(np.int32) + FIRST_ITEM_ROW,
        item_digest=items["digest"].to_numpy(),
        value_digest=labels,
        item_life=_item_life(connection, config) if config.negatives else None,
    )


def _item_life(connection: duckdb.DuckDBPyConnection, config: SessionConfig) -> ItemLife:
    times = connection.sql("SELECT first_us FROM items ORDER BY tie").to_arrow_table()
    return ItemLife(times["first_us"].to_numpy(), config.alive)


def _sorted(
    connection: duckdb.DuckDBPyConnection, rows: int, config: SessionConfig, context: Fields, progress: Progress
) -> Iterator[Block]:
    """Yield blocks of all rows of some users, sorted."""
    progress.phase("sorting by user and time")
    present = [row[0] for row in connection.execute("DESCRIBE accepted").fetchall()]
    columns = ["u", "time_us", "tie", "value", *(column for column in ("session", "propensity") if column in present)]
    listed = ", ".join(columns)
    in_part = "" if config.time_cuts is None else "WHERE time_us < until_us"
    encoded, joins = encoded_context_sql(context, connection)
    tables = f'accepted JOIN users USING ("user") JOIN items USING (item) {joins}'
    query = f"SELECT {listed} {encoded} FROM {tables} {in_part} ORDER BY {listed}"
    unfinished: list[Block] = []
    batch_rows = max(BATCH // memory_factor(present, config, context), 1)
    for number, batch in enumerate(connection.sql(query).to_arrow_reader(batch_rows)):
        if number == 0:
            progress.phase("cutting sessions", rows)
        arrays = {column: batch.column(column).to_numpy() for column in columns}
        if len(context):
            arrays["context"] = field_rows(context, batch, CONTEXT_PREFIX)
        end = int(
            np.searchsorted(arrays["u"], arrays["u"][-1])
        )  # start of the last user, who may continue in the next batch
        if end:
            yield _joined([*unfinished, {column: array[:end] for column, array in arrays.items()}])
            unfinished = []
        unfinished.append({column: array[end:] for column, array in arrays.items()})
        progress.advance(batch.num_rows)
    yield _joined(unfinished)


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return order_by_context(blocks[0])
    return order_by_context({column: np.concatenate([block[column] for block in blocks]) for column in blocks[0]})
