"""From a described log to a store, as steps in order: scan, number, cut, describe, set aside, say what was done.

Scanning and cutting are most of the work, and are done in one of two ways: on this machine, or by the workers of an engine
(`spread.py`). Everything between is the same, and so is the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mbcal.data.cutting import SessionConfig, stable_hash_sql
from mbcal.data.ingest_distributed import DistributedIngest
from mbcal.data.scan import ScanResult, collect_malformed_lines, scan
from mbcal.data.shards import IngestCounts, ShardPlan
from mbcal.data.sort import BATCH, cut_accepted, memory_factor
from mbcal.data.source import ITEM_KEY, Labels, LogDescription, Quantiles
from mbcal.data.sql import parquet_sql, sql_identifier
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS
from mbcal.data.store_writer import StoreWriter
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError
from mbcal.progress import SILENT, Progress
from mbcal.types import Behaviours

if TYPE_CHECKING:
    from mbcal.distributed.engines import Engine

DUPLICATE = "exact duplicate"
MALFORMED_ITEM = "line of an item table has the wrong shape"


class LogReader(Protocol):
    """A layout that can be read: it finds its files and describes them."""

    def read(self, work: Workspace) -> LogDescription: ...


def prepare(
    source: LogReader,
    out: str | Path,
    config: SessionConfig | None = None,
    *,
    engine: Engine | None = None,
    memory_limit: str = "1.5GB",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Store:
    """Read, cut, split and store one log: `prepare(MovieLens("ml-20m.zip"), "ml-20m", SessionConfig(horizon=10))`.

    With an engine its workers read and cut, and share the memory; the log and `out` must lie where all of them can reach
    them. The store is the same."""
    with Workspace(Path(out), memory_limit, overwrite) as work:
        progress.phase("finding and unpacking files")
        log, way = source.read(work), LocalIngest(work) if engine is None else DistributedIngest(work, engine)
        Ingestion(log, config or SessionConfig(), work, way, progress).run()
        work.publish()
    return Store.open(out)


class IngestBackend(Protocol):
    """How rows are read, and how they are cut."""

    def scan(self, log: LogDescription, config: SessionConfig, progress: Progress) -> ScanResult:
        """Read a log; leaves the tables that `scan.py` names, though `accepted` may be elsewhere."""

    def cut(
        self, plan: ShardPlan, behaviours: Behaviours, config: SessionConfig, writer: StoreWriter, progress: Progress
    ) -> tuple[IngestCounts, list[Path]]:
        """Write the shards of all users and items numbered; returns the files of exact duplicates too."""


class LocalIngest:
    """On this machine, in one go."""

    def __init__(self, work: Workspace) -> None:
        self.work = work

    def scan(self, log: LogDescription, config: SessionConfig, progress: Progress) -> ScanResult:
        """See `IngestBackend`."""
        progress.phase("reading the log")
        return scan(log, config, self.work.connection)

    def cut(
        self, plan: ShardPlan, behaviours: Behaviours, config: SessionConfig, writer: StoreWriter, progress: Progress
    ) -> tuple[IngestCounts, list[Path]]:
        """See `IngestBackend`."""
        duplicates = self.work.scratch / "duplicates.parquet"
        return cut_accepted(self.work.connection, plan, behaviours, config, writer, duplicates, progress), [duplicates]


class Ingestion:
    """One run, as its steps in order."""

    def __init__(
        self, log: LogDescription, config: SessionConfig, work: Workspace, way: IngestBackend, progress: Progress
    ) -> None:
        self.log, self.config, self.way, self.progress = log, config, way, progress
        self.connection, self.writer = work.connection, StoreWriter(work.build)

    def run(self) -> None:
        scanned = self.way.scan(self.log, self.config, self.progress)
        self.rows_read, self.rejected = scanned.rows, scanned.rejected
        if self.rows_read == 0:
            raise InputError("the log holds no rows; check that this is the right file")
        self._stop_if_too_bad()
        self._number()
        behaviours = self._behaviours()
        part, rows = self._write_users()
        plan = ShardPlan.from_users(part, rows, memory_factor(scanned.columns, self.config))
        tally, duplicates = self.way.cut(plan, behaviours, self.config, self.writer, self.progress)
        items = self._describe_items()
        self._set_aside(tally.duplicates, duplicates, behaviours)
        users = np.bincount(part, minlength=len(PARTS)).tolist()
        parts = {part: {"users": count, **tally.parts[part]} for part, count in zip(PARTS, users, strict=True)}
        self.writer.finish(
            behaviours,
            source=self.log.layout,
            options={**self.config.record(), **self.log.options},
            source_hashes={"log": f"{tally.log_hash:016x}", "items": self.writer.digest("items.parquet")},
            rejected=dict(sorted(self.rejected.items())),
            counts={
                "rows": tally.rows,
                "rows_read": self.rows_read,
                "users": len(part),
                "items": items,
                "sessions": tally.sessions,
                "full_sessions": tally.full_sessions,
                "short_windows": tally.short_windows,
                "ties": tally.ties,
                "labels": tally.labels.tolist(),
                "parts": parts,
            },
        )

    def _stop_if_too_bad(self) -> None:
        bad = sum(self.rejected.values())
        if bad > self.config.max_rejected * self.rows_read or bad == self.rows_read:
            worst = max(self.rejected, key=lambda reason: (self.rejected[reason], reason))
            raise InputError(
                f"{bad:,} of {self.rows_read:,} rows would be set aside, more than --max-rejected {self.config.max_rejected:g} "
                f"allows; most often: {worst} ({self.rejected[worst]:,}){self._example(worst)}. Check the columns and how "
                "they are to be read, or raise the share"
            )

    def _example(self, reason: str) -> str:
        """`, for instance 'x'`: the value at fault, where the reason has one."""
        column = reason.split()[0]
        if column not in ("time", "behaviour") or "missing" in reason:
            return ""
        query = f"SELECT min({sql_identifier(column)}) FROM refused WHERE reason = ?"
        return f", for instance {self.connection.execute(query, [reason]).fetchall()[0][0]!r}"

    def _number(self) -> None:
        """Number users and items. Users are ordered by part and key, so that parts are contiguous and any prefix of a part
        is a random sample of its users; items by name; ties in time follow a seeded shuffle of the items."""
        self.progress.phase("numbering users and items")
        first, second = self.config.thresholds
        self.connection.execute(f"""
            CREATE TABLE users AS
            SELECT *, (row_number() OVER (ORDER BY part, key, name) - 1)::UINTEGER AS u, md5_number_lower(name) AS digest
            FROM (SELECT *, "user"::VARCHAR AS name, (key >= {first})::UTINYINT + (key >= {second})::UTINYINT AS part
                  FROM user_counts);
            CREATE TABLE items AS
            SELECT *, (row_number() OVER (ORDER BY length(name), name) - 1)::UINTEGER AS i,
                   (row_number() OVER (ORDER BY key, name) - 1)::UINTEGER AS tie, md5_number_lower(name) AS digest
            FROM (SELECT item, item::VARCHAR AS name, {stable_hash_sql("item", self.config.seed, "tie")} AS key FROM item_names);
        """)

    def _behaviours(self) -> Behaviours:
        """The behaviours; quantiles are taken over the users who do not test."""
        rule = self.log.rule
        if isinstance(rule, Quantiles):
            counted = self.connection.sql("FROM value_counts ORDER BY value").to_arrow_table()
            rule = rule.cut(counted["value"].to_numpy(), counted["n"].to_numpy())
        return rule.behaviours()

    def _write_users(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Write the users; returns the part and the rows of each."""
        users = self.connection.sql("SELECT name, part, n FROM users ORDER BY u").to_arrow_table()
        parts = pa.array(PARTS).take(users["part"].combine_chunks())
        self.writer.table("users.parquet", pa.table({"user": users["name"], "part": parts}))
        return users["part"].to_numpy(), users["n"].to_numpy()

    def _set_aside(self, repeated: int, duplicates: list[Path], behaviours: Behaviours) -> None:
        """Write every refused row with its reason, and stop if they are too many."""
        self.progress.phase("setting bad rows aside")
        if repeated:
            self.rejected[DUPLICATE] = repeated
        self._stop_if_too_bad()
        if lines := collect_malformed_lines("item", self.connection):
            self.rejected[MALFORMED_ITEM] = lines  # counted, but no row of the log
        labels = list(behaviours.names) if isinstance(self.log.rule, Labels) else []
        value = "labels[(value + 1)::BIGINT]" if labels else "value::VARCHAR"
        self.connection.register("known", pa.table({"labels": pa.array([labels], pa.list_(pa.string()))}))
        reader = self.connection.sql(f"""
            SELECT * FROM (
                FROM refused
                UNION ALL
                SELECT users.name, items.name, make_timestamp(moment)::VARCHAR, {value}, '{DUPLICATE}'
                FROM {parquet_sql(*duplicates)} JOIN users USING (u) JOIN items USING (tie), known
                UNION ALL
                SELECT NULL, NULL, NULL, line, '{MALFORMED_ITEM}' FROM item_malformed)
            ORDER BY ALL""").to_arrow_reader(BATCH)
        self.writer.stream("rejected.parquet", reader.schema, reader)

    def _describe_items(self) -> int:
        """The catalogue: every item of the log, with its title and features as text. An item listed twice takes the least
        of its single values and all of its multiple ones. Returns how many there are."""
        self.progress.phase("describing items")
        chosen, joined, key = "", "", sql_identifier(ITEM_KEY)
        if self.log.titles is not None:
            titles = f"SELECT {key}, min(title) AS title FROM ({self.log.titles}) GROUP BY {key}"
            chosen += ", titles.title"
            joined += f" LEFT JOIN ({titles}) titles ON titles.{key} = items.name"
        if self.log.features is not None:
            picked = []
            for column, kind, *_ in self.connection.execute(f"DESCRIBE {self.log.features}").fetchall():
                if column != ITEM_KEY:
                    value, shown = sql_identifier(column), sql_identifier(f"feature:{column}")
                    several = f"list_sort(list_distinct(list_filter(flatten(list({value})), lambda v: v <> '')))"
                    picked.append(f"{several if kind.endswith('[]') else f'min({value})'} AS {shown}")
                    chosen += f", features.{shown}"
            # an item may be listed many times: brought to one row before it is joined
            features = f"SELECT {', '.join([key, *picked])} FROM ({self.log.features}) GROUP BY {key}"
            self.connection.execute(f"CREATE TEMP TABLE features AS {features}")
            joined += f" LEFT JOIN features ON features.{key} = items.name"
            matched = f"SELECT count(*) FROM items SEMI JOIN features ON features.{key} = items.name"
            if self.connection.execute(matched).fetchall()[0][0] == 0:
                raise InputError(
                    "no item of the log is in the table of items; check that both name items alike (--items-key)"
                )
        query = f"SELECT items.name AS item{chosen} FROM items{joined} ORDER BY items.i"
        table = self.connection.sql(query).to_arrow_table()
        self.writer.table("items.parquet", table)
        return int(table.num_rows)
