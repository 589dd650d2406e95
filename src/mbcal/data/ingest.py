"""From the description of a log to a store: scan, number users and items, cut, write the catalogue and the rejected rows.

Scanning and cutting are most of the work. A backend does them, on this machine (`LocalIngest`) or on the workers of an
engine (`ingest_distributed.py`). The other steps are the same for both, and so is the store.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mbcal.data.behaviour_rules import Labels, NextClick, Quantiles
from mbcal.data.clicks import code_behaviours
from mbcal.data.continuation import continued_catalog, continued_log, first_seen_sql, known_items
from mbcal.data.cutting import SessionConfig
from mbcal.data.item_features import count_item_conflicts, create_item_catalog
from mbcal.data.rejection import UNKNOWN_LABEL
from mbcal.data.scan import ScanResult, collect_malformed_lines, create_value_counts, scan
from mbcal.data.session_fields import context_fields, user_fields
from mbcal.data.shards import IngestCounts, ShardPlan
from mbcal.data.sort import BATCH, cut_accepted, memory_factor
from mbcal.data.source import LogDescription
from mbcal.data.sql import parquet_sql, sql_identifier
from mbcal.data.store import Store
from mbcal.data.store_format import FIRST_SEEN, PARTS
from mbcal.data.store_writer import StoreWriter
from mbcal.data.time_split import era_sql, find_time_cuts, until_sql
from mbcal.data.user_split import part_thresholds, stable_hash_sql
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError, OptionError
from mbcal.progress import Progress
from mbcal.storage.field_columns import USER_PREFIX, field_columns
from mbcal.types import NO_FIELDS, Behaviours

DUPLICATE = "exact duplicate"
"""Reason for rows equal to another in every column."""
MALFORMED_ITEM = "line of an item table has the wrong shape"
"""Reason for lines of an item table with too few or too many columns."""


@runtime_checkable
class LogReader(Protocol):
    """Reader of one layout: `TableLog`, `MovieLens`, `Netflix`, `KuaiRand`, … or one of your own."""

    def read(self, work: Workspace) -> LogDescription:
        """Find the files of the log and describe them for ingestion."""


class IngestBackend(Protocol):
    """Where rows are scanned and cut."""

    def scan(self, log: LogDescription, config: SessionConfig, progress: Progress) -> ScanResult:
        """Scan a log, and create the tables that `scan.py` lists; `accepted` may be on the workers instead."""

    def cut(
        self, plan: ShardPlan, behaviours: Behaviours, config: SessionConfig, writer: StoreWriter, progress: Progress
    ) -> tuple[IngestCounts, list[Path]]:
        """Write the shards of a plan.

        Args:
            plan: The shards of all users.
            behaviours: Behaviours of the log.
            config: How sessions are cut.
            writer: Receives the shards.
            progress: Receives the number of rows that are done.

        Returns:
            Counts, and the Parquet files of exact duplicates.
        """


class LocalIngest:
    """Backend that works on this machine.

    Args:
        work: Holds the DuckDB connection and the scratch folder.
    """

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
    """One ingestion.

    Args:
        log: The log.
        config: How sessions are cut and users are split.
        work: Where the store is built.
        backend: Scans and cuts.
        progress: Receives the phases.
        like: A store that the log continues: its items, vocabularies and behaviours come first.
    """

    def __init__(
        self,
        log: LogDescription,
        config: SessionConfig,
        work: Workspace,
        backend: IngestBackend,
        progress: Progress,
        like: Store | None = None,
    ) -> None:
        self.log, self.like = log if like is None else continued_log(log, like), like
        self.config, self.backend, self.progress = config, backend, progress
        self.connection, self.writer = work.connection, StoreWriter(work.build)

    def run(self) -> None:
        """Write the store.

        Raises:
            InputError: If the log holds no rows or too many rejected ones, or the item table matches no item.
            OptionError: If users leave by `ends` in a way that the log cannot show.
        """
        if not isinstance(self.log.rule, Quantiles):
            self.config.ended(code_behaviours(self.log.rule, self.config)[0])  # refuses options before the log is read
        self._require_no_propensities()
        scanned = self.backend.scan(self.log, self.config, self.progress)
        self._require_sessions(scanned.columns)
        self.rows_read, self.rejected = scanned.rows, scanned.rejected
        if self.rows_read == 0:
            raise InputError("the log holds no rows; check that this is the right file")
        self._require_few_rejected()
        if self.config.split_by_time:
            self._cut_time()
        self._number_users_and_items()
        behaviours = self._behaviours()
        self._declare_context()
        part, rows = self._write_users()
        weight = memory_factor(scanned.columns, self.config, self.writer.fields.context)
        plan = ShardPlan.from_users(part, rows, weight)
        counts, duplicates = self.backend.cut(plan, behaviours, self.config, self.writer, self.progress)
        n_items = self._write_catalog()
        self._write_rejected(counts.duplicates, duplicates, behaviours)
        self._write_manifest(counts, behaviours, part, n_items)

    def _require_sessions(self, columns: tuple[str, ...]) -> None:
        """Raise OptionError if an option needs sessions that the log and its options do not have."""
        if self.config.gap is not None or "session" in columns:
            return
        if self.config.ends_by_length:
            raise OptionError("ends: sessions of this log have no length of their own; give --session or --gap")
        if isinstance(self.log.rule, NextClick):
            raise OptionError(
                "behaviour: a pause of days is no dwell, so next-click needs sessions; give --session or --gap"
            )

    def _require_no_propensities(self) -> None:
        if self.config.negatives and "propensity" in self.log.options.get("columns", ()):
            raise OptionError("negatives: a log with propensities has items that users passed over; leave one of them out")

    def _require_few_rejected(self) -> None:
        n_rejected = sum(self.rejected.values())
        if n_rejected > self.config.max_rejected * self.rows_read or n_rejected == self.rows_read:
            reason = max(self.rejected, key=lambda reason: (self.rejected[reason], reason))
            remedy = "Check the column names and formats, or raise the share"
            if reason == UNKNOWN_LABEL:
                remedy = "Give every label a reward, as in --rewards 'skip=0,click=1'"
            raise InputError(
                f"{n_rejected:,} of {self.rows_read:,} rows would be rejected, more than --max-rejected "
                f"{self.config.max_rejected:g} allows; most often: {reason} ({self.rejected[reason]:,})"
                f"{self._example(reason)}. {remedy}"
            )

    def _example(self, reason: str) -> str:
        """Return `, for instance 'x'` with a rejected value, if the reason is about a value."""
        column = reason.split()[0]
        if column not in ("time", "behaviour", "propensity") or "missing" in reason:
            return ""
        query = f"SELECT min({sql_identifier(column)}) FROM rejected WHERE reason = ?"
        example = self.connection.execute(query, [reason]).fetchall()[0][0]
        return ", all of them missing" if example is None else f", for instance {example!r}"

    def _cut_time(self) -> None:
        """Find the cuts of a split by time, unless they are given, and count values before the first."""
        if self.config.time_cuts is None:
            self.config = replace(self.config, time_cuts=find_time_cuts(self.connection, self.config.split))
        if isinstance(self.log.rule, Quantiles):
            create_value_counts(self.config, self.connection)

    def _number_users_and_items(self) -> None:
        """Create the tables `users` and `items`.

        Users are ordered by part and hash, so that parts are contiguous and any prefix of a part is a random sample of its
        users. Items are ordered by name, after those of the store that the log continues, if it does. Steps at the same time
        follow `tie`, a seeded shuffle of the items. In a split by time, users without a step in the time of their part are
        left out, and items are ordered by the part of the log in which they were first seen, then by name.
        """
        self.progress.phase("numbering users and items")
        first, second = part_thresholds(self.config.split)
        tie_key = stable_hash_sql("item", self.config.seed, "tie")
        cuts = self.config.time_cuts
        until, is_used = ("", "") if cuts is None else (f", {until_sql(cuts)} AS until_us", "WHERE first_us < until_us")
        order = "position NULLS LAST, " + ("" if cuts is None else f"{era_sql(cuts)}, ") + "length(name), name"
        first_us = f", {first_seen_sql()} AS first_us" if self.config.needs_item_times else ""
        self.connection.register("known_items", known_items(self.like))
        self.connection.execute(f"""
            CREATE TABLE users AS
            SELECT *, (row_number() OVER (ORDER BY part, key, name) - 1)::UINTEGER AS u, md5_number_lower(name) AS digest
            FROM (SELECT * {until} FROM
                  (SELECT *, "user"::VARCHAR AS name, (key >= {first})::UTINYINT + (key >= {second})::UTINYINT AS part
                   FROM user_counts)) {is_used};
            CREATE TABLE items AS
            SELECT *, (row_number() OVER (ORDER BY {order}) - 1)::UINTEGER AS i,
                   (row_number() OVER (ORDER BY key, name) - 1)::UINTEGER AS tie, md5_number_lower(name) AS digest
            FROM (SELECT item, coalesce(item::VARCHAR, name) AS name, position, {tie_key} AS key {first_us}
                  FROM item_names FULL JOIN known_items ON item::VARCHAR = name);
        """)

    def _behaviours(self) -> Behaviours:
        rule = self.log.rule
        if isinstance(rule, Quantiles):
            values = self.connection.sql("FROM value_counts ORDER BY value").to_arrow_table()
            rule = rule.cut(values["value"].to_numpy(), values["n"].to_numpy())
        behaviours, self.config = code_behaviours(rule, self.config)
        return self.config.ended(behaviours)

    def _declare_context(self) -> None:
        """Declare the fields of steps, by rows that belong to the part of their user."""
        if self.log.context:
            self.progress.phase("declaring context")
            in_part = "" if self.config.time_cuts is None else "WHERE time_us < until_us"
            known = NO_FIELDS if self.like is None else self.like.fields
            context = context_fields(self.log.context, self.connection, in_part, known.context)
            self.writer.fields = replace(self.writer.fields, context=context)

    def _write_users(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Write the users; returns the part (U,) and the number of rows (U,) of each."""
        users = self.connection.sql("SELECT name, part, n FROM users ORDER BY u").to_arrow_table()
        parts = pa.array(PARTS).take(users["part"].combine_chunks())
        columns: dict[str, Any] = {"user": users["name"], "part": parts}
        if self.log.users_sql is not None:
            known = NO_FIELDS if self.like is None else self.like.fields
            fields, encoded = user_fields(self.log.users_sql, self.connection, known.user)
            self.writer.fields = replace(self.writer.fields, user=fields)
            columns |= field_columns(fields, encoded, USER_PREFIX)
        self.writer.table("users.parquet", pa.table(columns))
        return users["part"].to_numpy(), users["n"].to_numpy()

    def _write_catalog(self) -> int:
        """Write every item of the log with its title and features; returns how many there are."""
        self.progress.phase("describing items")
        catalog = create_item_catalog(self.log, self.connection)
        if self.like is not None:
            catalog = continued_catalog(catalog, self.like)
        if self.config.needs_item_times:
            times = self.connection.sql("SELECT first_us FROM items ORDER BY i").to_arrow_table()
            catalog = catalog.append_column(FIRST_SEEN, times["first_us"])
        self.writer.table("items.parquet", catalog)
        return int(catalog.num_rows)

    def _write_rejected(self, n_duplicates: int, duplicates: list[Path], behaviours: Behaviours) -> None:
        """Write the rejected rows with their reasons; raises InputError if they are too many."""
        self.progress.phase("writing rejected rows")
        if n_duplicates:
            self.rejected[DUPLICATE] = n_duplicates
        self._require_few_rejected()
        if n_malformed := collect_malformed_lines("item", self.connection):
            self.rejected[MALFORMED_ITEM] = n_malformed  # after the check, since these are not rows of the log
        labels = list(behaviours.names) if isinstance(self.log.rule, Labels) else []
        value = "labels[(value + 1)::BIGINT]" if labels else "value::VARCHAR"
        self.connection.register("label_names", pa.table({"labels": pa.array([labels], pa.list_(pa.string()))}))
        reader = self.connection.sql(f"""
            SELECT * FROM (
                SELECT * EXCLUDE (propensity) FROM rejected
                UNION ALL
                SELECT users.name, items.name, make_timestamp(time_us)::VARCHAR, {value}, '{DUPLICATE}'
                FROM {parquet_sql(*duplicates)} JOIN users USING (u) JOIN items USING (tie), label_names
                UNION ALL
                SELECT NULL, NULL, NULL, line, '{MALFORMED_ITEM}' FROM item_malformed)
            ORDER BY ALL""").to_arrow_reader(BATCH)
        self.writer.stream("rejected.parquet", reader.schema, reader)

    def _write_manifest(self, counts: IngestCounts, behaviours: Behaviours, part: NDArray[Any], n_items: int) -> None:
        users = np.bincount(part, minlength=len(PARTS)).tolist()
        parts = {name: {"users": n_users, **counts.parts[name]} for name, n_users in zip(PARTS, users, strict=True)}
        self.writer.finish(
            behaviours,
            source=self.log.layout,
            options={**self.config.record(), **self.log.options},
            source_hashes={"log": f"{counts.log_hash:016x}", "items": self.writer.digest("items.parquet")},
            rejected=dict(sorted(self.rejected.items())),
            counts={
                "rows": counts.rows,
                "rows_read": self.rows_read,
                "users": len(part),
                "items": n_items,
                "sessions": counts.sessions,
                "full_sessions": counts.full_sessions,
                "short_windows": counts.short_windows,
                "ties": counts.ties,
                "labels": counts.labels.tolist(),
                "parts": parts,
                **self._optional_counts(counts),
            },
        )

    def _optional_counts(self, counts: IngestCounts) -> dict[str, int]:
        """Counts that the manifest names only where there is something to count."""
        n_used = counts.rows - counts.negatives + counts.older_steps + counts.duplicates
        n_rejected = sum(count for reason, count in self.rejected.items() if reason not in (DUPLICATE, MALFORMED_ITEM))
        optional = {
            "outside_parts": self.rows_read - n_rejected - n_used,
            "older_steps": counts.older_steps,
            "negatives": counts.negatives,
            "negatives_population": counts.negatives_population,
            "item_conflicts": count_item_conflicts(self.connection) if self.log.features_sql is not None else 0,
        }
        return {name: count for name, count in optional.items() if count}
