"""The first pass over a log, in DuckDB: type every row or reject it with a reason, and count users, items and values.

The steps of an ingestion communicate through DuckDB tables and views:

::

    accepted      user, item, time_us, value (, session, propensity)
    rejected      user, item, time, behaviour, reason, propensity: all text
    user_counts   user, key, n (, first_us): a row per user, with the hash that decides the part
    item_names    item (, first_us)
    value_counts  value, n: of users outside the test part; only if behaviours are quantiles; in a split by time, created
                  once the cuts are known
    time_counts   hour, n; only for a split by time, as is first_us of users, the time of the first row
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mbcal.data.behaviour_rules import Quantiles
from mbcal.data.cutting import SessionConfig
from mbcal.data.source import LogDescription, parsed_rows_sql
from mbcal.data.time_split import create_time_counts
from mbcal.data.user_split import part_thresholds, stable_hash_sql

if TYPE_CHECKING:
    import duckdb

MALFORMED = "line has the wrong shape"
"""Reason for lines of text with too few or too many columns."""
_ITEM_TIMES = "SELECT item, min(time_us) AS first_us FROM accepted GROUP BY item"


@dataclass(frozen=True)
class ScanResult:
    """Counts of a scan."""

    rows: int
    """Rows read, including rejected ones."""
    rejected: dict[str, int]
    """Reason -> rows."""
    columns: tuple[str, ...]
    """Columns of `accepted`."""


def scan(log: LogDescription, config: SessionConfig, connection: duckdb.DuckDBPyConnection) -> ScanResult:
    """Type, reject and count the rows of a log, and create the tables listed above."""
    # Text is parsed once, into a table; Parquet is cheap to read again, so a view is enough. A temporary table is neither
    # compressed nor logged, but spills like any other: it is filled twice as fast.
    kind = "TABLE" if log.has_text else "VIEW"
    rows_sql, reasons = parsed_rows_sql(log, connection)
    connection.execute(f"CREATE TEMP {kind} log AS {rows_sql}")
    reason_table = pa.table({"reason": pa.array(range(len(reasons)), pa.uint8()), "reason_text": reasons})
    connection.register("reasons", reason_table)
    counts_sql = "SELECT reason, count(*) AS n FROM log GROUP BY reason"
    counts: dict[str | None, int] = dict(
        connection.execute(f"SELECT reason_text, n FROM ({counts_sql}) LEFT JOIN reasons USING (reason)").fetchall()
    )
    rejected = {reason: count for reason, count in counts.items() if reason is not None}
    # without rejected rows there is no filter, since one would make every later scan parse all columns again
    is_accepted, is_rejected = ("WHERE reason IS NULL", "WHERE reason IS NOT NULL") if rejected else ("", "LIMIT 0")
    n_malformed = collect_malformed_lines("log", connection)
    if n_malformed:
        rejected[MALFORMED] = n_malformed
    connection.execute(f"""
        CREATE TEMP VIEW accepted AS SELECT * EXCLUDE (reason, raw) FROM log {is_accepted};
        CREATE TEMP VIEW rejected AS
        SELECT "user"::VARCHAR AS "user", item::VARCHAR AS item, raw[1] AS "time", raw[2] AS behaviour,
               reason_text AS reason, raw[3] AS propensity
        FROM (FROM log {is_rejected}) JOIN reasons USING (reason)
        UNION ALL
        SELECT NULL, NULL, NULL, line, '{MALFORMED}', NULL FROM log_malformed;
        CREATE TEMP TABLE user_counts AS
        SELECT "user", {stable_hash_sql('"user"', config.seed, "part")} AS key, count(*) AS n
               {", min(time_us) AS first_us" if config.split_by_time else ""}
        FROM accepted GROUP BY "user";
        CREATE TEMP TABLE item_names AS
        {_ITEM_TIMES if config.needs_item_times else "SELECT DISTINCT item FROM accepted"};
    """)
    if config.split_by_time:
        create_time_counts(connection)
    elif isinstance(log.rule, Quantiles):
        create_value_counts(config, connection)
    columns = tuple(row[0] for row in connection.execute("DESCRIBE accepted").fetchall())
    return ScanResult(sum(counts.values()) + n_malformed, rejected, columns)


def create_value_counts(config: SessionConfig, connection: duckdb.DuckDBPyConnection) -> None:
    """Create the table `value_counts`: users outside the test part; in a split by time, rows before its first cut."""
    before = ""
    if config.time_cuts is not None:
        before = f"AND time_us < {config.time_cuts[0 if config.split[0] > 0 else 1]}"
    connection.execute(f"""
        CREATE TEMP TABLE value_counts AS
        SELECT value, count(*) AS n FROM accepted JOIN user_counts USING ("user")
        WHERE key < {part_thresholds(config.split)[1]} {before} GROUP BY value""")


def collect_malformed_lines(rejects: str, connection: duckdb.DuckDBPyConnection) -> int:
    """Collect the lines that DuckDB could not split into columns.

    Args:
        rejects: `log` for lines of the log, `item` for those of item tables; see `csv_sql`.
        connection: Where the lines become the table `{rejects}_malformed`.

    Returns:
        How many there are.
    """
    has_errors = f"SELECT count(*) FROM duckdb_tables() WHERE table_name = '{rejects}_errors'"
    lines_sql = "SELECT NULL::VARCHAR AS line LIMIT 0"
    if connection.execute(has_errors).fetchall()[0][0]:
        errors = f"{rejects}_errors JOIN {rejects}_scans USING (scan_id, file_id)"
        distinct = f"SELECT DISTINCT file_path, line, csv_line FROM {errors}"
        lines_sql = f"SELECT trim(csv_line, chr(10) || chr(13)) AS line FROM ({distinct})"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {rejects}_malformed AS {lines_sql}")
    return int(connection.execute(f"SELECT count(*) FROM {rejects}_malformed").fetchall()[0][0])
