"""The two heavy steps of an ingestion, reading and cutting, on the workers of an engine.

::

    chunks of the log  ──scan_chunk──▶  scratch/scanned/K/   rows by the user's key; counts; refused rows
                                                  │ counts
                                                  ▼
                                             numbered in one place: scratch/users.parquet, items.parquet
                                                  │ some shards of the plan at a time
                                                  ▼
                          ──cut_shards──▶    the files of those shards, in the store

Users are numbered in the order of their keys, so a shard is a range of keys, and Parquet's statistics find a range in sorted
rows without reading the rest. A worker writes in a worker_dir of its own and renames what is whole into place: a task done
twice, because a worker was taken for lost, makes the same files.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from mbcal.data.cutting import SessionConfig
from mbcal.data.scan import ScanResult, scan
from mbcal.data.shards import IngestCounts, ShardPlan
from mbcal.data.sort import cut_accepted
from mbcal.data.source import LogDescription, LogFile, Quantiles
from mbcal.data.sql import parquet_sql, sql_identifier, sql_string
from mbcal.data.store_writer import StoreWriter
from mbcal.data.workspace import Workspace, connect_duckdb
from mbcal.progress import Progress
from mbcal.types import Behaviours

if TYPE_CHECKING:
    import duckdb

    from mbcal.distributed.engines import Engine

TASKS_PER_WORKER = 4
"""So that no worker waits long for the last one."""
MOST_BYTES, MOST_ROWS = 1 << 28, 1 << 24
"""What a task reads or cuts, at most, about: as much is lost with a worker."""
_ROW_GROUP = 1 << 15
"""Rows between which a range of keys is told apart."""


@dataclass(frozen=True)
class SharedFolders:
    """What every worker is told: the folders all of them share, and the bytes of memory each may take."""

    scratch: Path
    build: Path
    memory: int

    def chunk_dir(self, number: int) -> Path:
        """What became of one stretch of the log."""
        return self.scratch / "scanned" / str(number)

    def duplicates(self, number: int) -> Path:
        """What one task found repeated."""
        return self.scratch / f"duplicates-{number}.parquet"

    @property
    def users(self) -> Path:
        return self.scratch / "users.parquet"

    @property
    def items(self) -> Path:
        return self.scratch / "items.parquet"

    @contextmanager
    def worker_dir(self) -> Iterator[tuple[Path, duckdb.DuckDBPyConnection]]:
        """A folder of one's own, and DuckDB on one core, spilling into it."""
        with (
            tempfile.TemporaryDirectory(prefix="corner-", dir=self.scratch, ignore_cleanup_errors=True) as folder,
            connect_duckdb(Path(folder), self.memory, threads=1) as connection,
        ):
            yield Path(folder), connection


@dataclass(frozen=True)
class LogChunk:
    """Some files, or some of a file, to be read."""

    shared: SharedFolders
    number: int
    log: LogDescription
    config: SessionConfig


@dataclass(frozen=True)
class ShardTask:
    """Some shards to be cut, from everything that was read."""

    shared: SharedFolders
    number: int
    chunks: int
    plan: ShardPlan
    behaviours: Behaviours
    config: SessionConfig


def scan_chunk(task: LogChunk) -> ScanResult:
    """Read rows, and leave them sorted by the user's key."""
    with task.shared.worker_dir() as (worker_dir, connection):
        scanned = scan(task.log, task.config, connection)
        made = worker_dir / "scanned"
        made.mkdir()
        tables = ["user_counts", "item_names", "refused", *["value_counts"] * isinstance(task.log.rule, Quantiles)]
        for table in tables:
            _copy(connection, f"FROM {table}", made / f"{table}.parquet")
        by_key = 'SELECT key, accepted.* FROM accepted JOIN user_counts USING ("user") ORDER BY key'
        _copy(connection, by_key, made / "rows.parquet")
        try:
            made.rename(task.shared.chunk_dir(task.number))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else somebody has been faster
                raise
    return scanned


def cut_shards(task: ShardTask) -> tuple[IngestCounts, dict[str, dict[str, Any]]]:
    """Cut the rows of some users, and put their shards into the store; also returns what the manifest says of the files."""
    shared, (begin, end) = task.shared, task.plan.user_bounds[[0, -1]]
    rows = [shared.chunk_dir(number) / "rows.parquet" for number in range(task.chunks)]
    with shared.worker_dir() as (worker_dir, connection):
        connection.execute(f"""
            CREATE TEMP TABLE users AS FROM {parquet_sql(shared.users)} WHERE u >= {begin} AND u < {end};
            CREATE TEMP TABLE items AS FROM {parquet_sql(shared.items)}""")
        first, last = connection.execute("SELECT min(key), max(key) FROM users").fetchall()[0]
        connection.execute(f"""
            CREATE TEMP VIEW accepted AS SELECT * EXCLUDE (key) FROM {parquet_sql(*rows)}
            WHERE key >= {first}::UBIGINT AND key <= {last}::UBIGINT""")
        (worker_dir / "store").mkdir()
        writer, duplicates = StoreWriter(worker_dir / "store"), worker_dir / "duplicates.parquet"
        tally = cut_accepted(connection, task.plan, task.behaviours, task.config, writer, duplicates)
        for file in writer.files:
            os.replace(writer.folder / file, shared.build / file)
        os.replace(duplicates, shared.duplicates(task.number))
    return tally, writer.files


class DistributedIngest:
    """Over the workers of an engine; everything else is done here."""

    def __init__(self, work: Workspace, engine: Engine) -> None:
        self.connection, self.engine, self.chunks = work.connection, engine, 0
        self.shared = SharedFolders(work.scratch, work.build, work.worker_memory(engine.workers))

    def scan(self, log: LogDescription, config: SessionConfig, progress: Progress) -> ScanResult:
        """Read stretch by stretch, and put together what was counted."""
        logs = self._chunks(log)
        self.chunks = len(logs)
        tasks = [LogChunk(self.shared, number, part, config) for number, part in enumerate(logs)]
        self.shared.chunk_dir(0).parent.mkdir()
        self._require_shared(log)
        progress.phase("reading the log", len(tasks))
        found: list[ScanResult] = []
        for _, scanned in self.engine.map_unordered(scan_chunk, tasks):
            found.append(scanned)
            progress.advance(1)
        self._view("user_counts", '"user", key, sum(n)::BIGINT AS n', 'GROUP BY "user", key')
        self._view("item_names", "DISTINCT item")
        self._view("refused", "*")
        if isinstance(log.rule, Quantiles):
            self._view("value_counts", "value, sum(n)::BIGINT AS n", "GROUP BY value")
        rejected = sum((Counter(scanned.rejected) for scanned in found), Counter[str]())
        return ScanResult(sum(scanned.rows for scanned in found), dict(rejected), found[0].columns)

    def cut(
        self, plan: ShardPlan, behaviours: Behaviours, config: SessionConfig, writer: StoreWriter, progress: Progress
    ) -> tuple[IngestCounts, list[Path]]:
        """Cut some shards at a time, and put together what was counted."""
        _copy(self.connection, 'SELECT "user", u, key, digest FROM users ORDER BY u', self.shared.users)
        _copy(self.connection, "SELECT item, i, tie, digest FROM items", self.shared.items)
        runs = [plan[run] for run in _runs(plan.rows.tolist(), self._enough(plan.rows.sum(), MOST_ROWS))]
        tasks = [ShardTask(self.shared, number, self.chunks, run, behaviours, config) for number, run in enumerate(runs)]
        progress.phase("sorting by user and time, cutting sessions", int(plan.rows.sum()))
        tally = IngestCounts(np.zeros(len(behaviours), np.int64))
        for number, (counted, files) in self.engine.map_unordered(cut_shards, tasks):
            tally.add(counted)
            writer.files.update(files)
            progress.advance(int(runs[number].rows.sum()))
        return tally, [self.shared.duplicates(task.number) for task in tasks]

    def _require_shared(self, log: LogDescription) -> None:
        """Refuse at once what workers could not read, or could not write to."""
        mark = self.shared.scratch / "mark"
        mark.touch()
        for file in (mark, log.pieces[0].path):
            self.engine.require_shared_file(file)

    def _chunks(self, log: LogDescription) -> list[LogDescription]:
        """The log in parts of about equal size: neighbouring files, and of a large Parquet neighbouring row groups. Each has
        the types that all have together."""
        kinds = self.connection.execute(f"DESCRIBE {log.rows}").fetchall()
        typed = ", ".join(
            f"CAST({sql_identifier(column)} AS {kind}) AS {sql_identifier(column)}" for column, kind, *_ in kinds
        )
        enough = self._enough(sum(piece.path.stat().st_size for piece in log.pieces), MOST_BYTES)
        pieces = [part for piece in log.pieces for part in _parts(piece, enough)]
        alike = [replace(piece, picked=typed, source=f"({piece.sql})") for piece, _ in pieces]
        return [replace(log, pieces=tuple(alike[run])) for run in _runs([size for _, size in pieces], enough)]

    def _enough(self, total: float, most: int) -> float:
        """How much one task is given."""
        return min(total / (TASKS_PER_WORKER * self.engine.workers), most)

    def _view(self, table: str, picked: str, grouped: str = "") -> None:
        """What all chunks left under one name, put together."""
        files = [self.shared.chunk_dir(number) / f"{table}.parquet" for number in range(self.chunks)]
        self.connection.execute(f"CREATE TEMP VIEW {table} AS SELECT {picked} FROM {parquet_sql(*files)} {grouped}")


def _copy(connection: duckdb.DuckDBPyConnection, query: str, path: Path) -> None:
    connection.execute(f"COPY ({query}) TO {sql_string(str(path))} (FORMAT parquet, ROW_GROUP_SIZE {_ROW_GROUP})")


def _parts(piece: LogFile, enough: float) -> Iterator[tuple[LogFile, float]]:
    """A file in parts, with their sizes: a large Parquet by its row groups, text as a whole."""
    size = piece.path.stat().st_size
    about = pq.read_metadata(piece.path) if piece.parquet and size > enough else None
    if about is None or about.num_row_groups < 2:
        yield piece, size
        return
    rows = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    sizes = [size * count / max(about.num_rows, 1) for count in rows]
    for run in _runs(sizes, enough):
        begin, end = sum(rows[: run.start]), sum(rows[: run.stop])
        source = f"(FROM {piece.source} WHERE file_row_number >= {begin} AND file_row_number < {end})"
        yield replace(piece, source=source), sum(sizes[run])


def _runs(sizes: Sequence[float], enough: float) -> Iterator[slice]:
    """Neighbours, together until they are enough."""
    begin, held = 0, 0.0
    for end, size in enumerate(sizes, 1):
        held += size
        if held >= enough or end == len(sizes):
            yield slice(begin, end)
            begin, held = end, 0.0
