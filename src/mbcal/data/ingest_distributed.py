"""Backend of an ingestion that scans and cuts on the workers of an engine.

::

    chunks of the log  ──scan_chunk──▶  scratch/scanned/K/   rows sorted by the user's hash; counts; rejected rows
                                                  │ counts
                                                  ▼
                                        numbered by the driver: scratch/users.parquet, items.parquet
                                                  │ some shards of the plan per task
                                                  ▼
                          ──cut_shards──▶    the files of those shards, in the store

Users are numbered in the order of their hashes, so a shard is a range of hashes, and Parquet's statistics find a range in
sorted rows without reading the rest. A worker writes into a temporary folder of its own and renames finished files into
place: a task that runs twice, because its worker was presumed lost, writes the same files.
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

from mbcal.data.behaviour_rules import Quantiles
from mbcal.data.cutting import SessionConfig
from mbcal.data.scan import ScanResult, scan
from mbcal.data.shards import IngestCounts, ShardPlan
from mbcal.data.sort import cut_accepted
from mbcal.data.source import LogDescription, LogFile
from mbcal.data.sql import parquet_sql, sql_identifier, sql_string
from mbcal.data.store_writer import StoreWriter
from mbcal.data.workspace import Workspace, connect_duckdb
from mbcal.progress import Progress
from mbcal.types import Behaviours, SessionFields

if TYPE_CHECKING:
    import duckdb

    from mbcal.distributed.engines import Engine

TASKS_PER_WORKER = 4
"""Several, so that workers do not wait long for the slowest."""
MAX_TASK_BYTES, MAX_TASK_ROWS = 1 << 28, 1 << 24
"""About the most that a task reads or cuts: as much is repeated when a worker is lost."""
_ROW_GROUP = 1 << 15
"""Rows in a row group of scanned rows: the resolution at which a range of hashes is found."""


@dataclass(frozen=True)
class SharedFolders:
    """Folders that all workers share, and the memory of each."""

    scratch: Path
    """Intermediate files; removed afterwards."""
    build: Path
    """The store that is being built."""
    memory: int
    """Bytes that one worker may use."""

    def chunk_dir(self, number: int) -> Path:
        """Folder with the scanned rows and counts of one chunk."""
        return self.scratch / "scanned" / str(number)

    def duplicates(self, number: int) -> Path:
        """File with the exact duplicates that one cutting task found."""
        return self.scratch / f"duplicates-{number}.parquet"

    @property
    def users(self) -> Path:
        """File with the numbered users."""
        return self.scratch / "users.parquet"

    @property
    def items(self) -> Path:
        """File with the numbered items."""
        return self.scratch / "items.parquet"

    @contextmanager
    def worker_dir(self) -> Iterator[tuple[Path, duckdb.DuckDBPyConnection]]:
        """Provide a temporary folder, and DuckDB on one core that spills into it."""
        with (
            tempfile.TemporaryDirectory(prefix="worker-", dir=self.scratch, ignore_cleanup_errors=True) as folder,
            connect_duckdb(Path(folder), self.memory, threads=1) as connection,
        ):
            yield Path(folder), connection


@dataclass(frozen=True)
class LogChunk:
    """Task of `scan_chunk`: some files of a log, or some row groups of one."""

    shared: SharedFolders
    number: int
    log: LogDescription
    """The log with these files only."""
    config: SessionConfig


@dataclass(frozen=True)
class ShardTask:
    """Task of `cut_shards`: some shards of the store."""

    shared: SharedFolders
    number: int
    chunks: int
    """How many chunks were scanned."""
    plan: ShardPlan
    """The shards to cut."""
    behaviours: Behaviours
    config: SessionConfig
    fields: SessionFields
    """Fields of the store."""


def scan_chunk(task: LogChunk) -> ScanResult:
    """Scan a chunk, and write its rows sorted by the user's hash, with its counts, to `chunk_dir`."""
    with task.shared.worker_dir() as (worker_dir, connection):
        scanned = scan(task.log, task.config, connection)
        folder = worker_dir / "scanned"
        folder.mkdir()
        tables = ["user_counts", "item_names", "rejected"]
        if task.config.split_by_time:
            tables.append("time_counts")
        elif isinstance(task.log.rule, Quantiles):
            tables.append("value_counts")
        for table in tables:
            _copy(connection, f"FROM {table}", folder / f"{table}.parquet")
        by_key = 'SELECT key, accepted.* FROM accepted JOIN user_counts USING ("user") ORDER BY key'
        _copy(connection, by_key, folder / "rows.parquet")
        try:
            folder.rename(task.shared.chunk_dir(task.number))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another worker has already done this task
                raise
    return scanned


def cut_shards(task: ShardTask) -> tuple[IngestCounts, dict[str, dict[str, Any]]]:
    """Cut the rows of some users into sessions, and put their shards into the store.

    Returns:
        Counts, and the manifest's entries of the files.
    """
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
        writer, duplicates = StoreWriter(worker_dir / "store", task.fields), worker_dir / "duplicates.parquet"
        counts = cut_accepted(connection, task.plan, task.behaviours, task.config, writer, duplicates)
        for name in writer.files:
            os.replace(writer.folder / name, shared.build / name)
        os.replace(duplicates, shared.duplicates(task.number))
    return counts, writer.files


class DistributedIngest:
    """Backend that scans and cuts on the workers of an engine.

    Args:
        work: Where the store is built; on storage that all workers share.
        engine: Runs the tasks.
    """

    def __init__(self, work: Workspace, engine: Engine) -> None:
        self.connection, self.engine, self.chunks = work.connection, engine, 0
        self.shared = SharedFolders(work.scratch, work.build, work.worker_memory(engine.workers))

    def scan(self, log: LogDescription, config: SessionConfig, progress: Progress) -> ScanResult:
        """Scan a log by chunks, and create views of all chunks' counts; see `IngestBackend`.

        Raises:
            EngineError: If workers cannot read the log or the scratch folder.
        """
        chunks = self._chunks(log)
        self.chunks = len(chunks)
        tasks = [LogChunk(self.shared, number, chunk, config) for number, chunk in enumerate(chunks)]
        self.shared.chunk_dir(0).parent.mkdir()
        self._require_shared(log)
        progress.phase("reading the log", len(tasks))
        results: list[ScanResult] = []
        for _, scanned in self.engine.map_unordered(scan_chunk, tasks):
            results.append(scanned)
            progress.advance(1)
        first = ", min(first_us) AS first_us"
        of_users = first if config.split_by_time else ""
        self._create_view("user_counts", f'"user", key, sum(n)::BIGINT AS n {of_users}', 'GROUP BY "user", key')
        if config.needs_item_times:
            self._create_view("item_names", f"item {first}", "GROUP BY item")
        else:
            self._create_view("item_names", "DISTINCT item")
        if config.split_by_time:
            self._create_view("time_counts", "hour, sum(n)::BIGINT AS n", "GROUP BY hour")
        elif isinstance(log.rule, Quantiles):
            self._create_view("value_counts", "value, sum(n)::BIGINT AS n", "GROUP BY value")
        if config.split_by_time or log.context:
            self._create_view("accepted", "* EXCLUDE (key)", table="rows")
        self._create_view("rejected", "*")
        rejected = sum((Counter(scanned.rejected) for scanned in results), Counter[str]())
        return ScanResult(sum(scanned.rows for scanned in results), dict(rejected), results[0].columns)

    def cut(
        self, plan: ShardPlan, behaviours: Behaviours, config: SessionConfig, writer: StoreWriter, progress: Progress
    ) -> tuple[IngestCounts, list[Path]]:
        """Cut a few shards per task; see `IngestBackend`."""
        until = "" if config.time_cuts is None else ", until_us"
        _copy(self.connection, f'SELECT "user", u, key, digest {until} FROM users ORDER BY u', self.shared.users)
        first_us = ", first_us" if config.negatives else ""
        _copy(self.connection, f"SELECT item, i, tie, digest {first_us} FROM items", self.shared.items)
        runs = [plan[run] for run in _runs(plan.rows.tolist(), self._task_size(plan.rows.sum(), MAX_TASK_ROWS))]
        tasks = [
            ShardTask(self.shared, number, self.chunks, run, behaviours, config, writer.fields)
            for number, run in enumerate(runs)
        ]
        progress.phase("sorting by user and time, cutting sessions", int(plan.rows.sum()))
        total = IngestCounts(np.zeros(len(behaviours), np.int64))
        for number, (counts, files) in self.engine.map_unordered(cut_shards, tasks):
            total.add(counts)
            writer.files.update(files)
            progress.advance(int(runs[number].rows.sum()))
        return total, [self.shared.duplicates(task.number) for task in tasks]

    def _require_shared(self, log: LogDescription) -> None:
        """Raise EngineError if a worker cannot see the scratch folder or the log."""
        probe = self.shared.scratch / "probe"
        probe.touch()
        for path in (probe, log.files[0].path):
            self.engine.require_shared_file(path)

    def _chunks(self, log: LogDescription) -> list[LogDescription]:
        """Divide a log into chunks of about equal size.

        A chunk is a run of neighbouring files, or of neighbouring row groups of a large Parquet file. Columns are cast to
        the types of the whole log, so that all chunks have the same.
        """
        kinds = self.connection.execute(f"DESCRIBE {log.rows_sql}").fetchall()
        columns_sql = ", ".join(
            f"CAST({sql_identifier(column)} AS {kind}) AS {sql_identifier(column)}" for column, kind, *_ in kinds
        )
        size = self._task_size(sum(file.path.stat().st_size for file in log.files), MAX_TASK_BYTES)
        pieces = [piece for file in log.files for piece in _split_file(file, size)]
        typed = [replace(piece, columns_sql=columns_sql, from_sql=f"({piece.select_sql})") for piece, _ in pieces]
        return [replace(log, files=tuple(typed[run])) for run in _runs([bytes_ for _, bytes_ in pieces], size)]

    def _task_size(self, total: float, largest: int) -> float:
        """Bytes or rows for one task."""
        return min(total / (TASKS_PER_WORKER * self.engine.workers), largest)

    def _create_view(self, view: str, columns: str, group_by: str = "", table: str | None = None) -> None:
        """Create a view of one table of all chunks, by default of the same name."""
        paths = [self.shared.chunk_dir(number) / f"{table or view}.parquet" for number in range(self.chunks)]
        self.connection.execute(f"CREATE TEMP VIEW {view} AS SELECT {columns} FROM {parquet_sql(*paths)} {group_by}")


def _copy(connection: duckdb.DuckDBPyConnection, query: str, path: Path) -> None:
    connection.execute(f"COPY ({query}) TO {sql_string(str(path))} (FORMAT parquet, ROW_GROUP_SIZE {_ROW_GROUP})")


def _split_file(file: LogFile, task_size: float) -> Iterator[tuple[LogFile, float]]:
    """Yield pieces of a file with their bytes: runs of row groups of a large Parquet file, otherwise the whole file."""
    size = file.path.stat().st_size
    metadata = pq.read_metadata(file.path) if file.is_parquet and size > task_size else None
    if metadata is None or metadata.num_row_groups < 2:
        yield file, size
        return
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    sizes = [size * count / max(metadata.num_rows, 1) for count in rows]
    for run in _runs(sizes, task_size):
        begin, end = sum(rows[: run.start]), sum(rows[: run.stop])
        from_sql = f"(FROM {file.from_sql} WHERE file_row_number >= {begin} AND file_row_number < {end})"
        yield replace(file, from_sql=from_sql), sum(sizes[run])


def _runs(sizes: Sequence[float], task_size: float) -> Iterator[slice]:
    """Yield slices of neighbours that add up to at least `task_size`; the last may be smaller."""
    begin, total = 0, 0.0
    for end, size in enumerate(sizes, 1):
        total += size
        if total >= task_size or end == len(sizes):
            yield slice(begin, end)
            begin, total = end, 0.0
