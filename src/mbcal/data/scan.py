"""From a described log to typed rows, in DuckDB: what is accepted, what is refused and why, and who and what occurs in it.

Tables and views are how the steps of an ingestion speak to each other:

::

    accepted      user, item, moment, value (, session, propensity)
    refused       user, item, time, behaviour, reason: as text, in words
    user_counts   user, key, n
    item_names    item
    value_counts  value, n, of the users who do not test; only where behaviours are quantiles
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from mbcal.data.cutting import SessionConfig, stable_hash_sql
from mbcal.data.source import LogDescription, Quantiles, parsed_sql

if TYPE_CHECKING:
    import duckdb

MALFORMED = "line has the wrong shape"


@dataclass(frozen=True)
class ScanResult:
    """What a scan counted."""

    rows: int
    rejected: dict[str, int]
    """Reason -> rows."""
    columns: tuple[str, ...]
    """Those of `accepted`."""


def scan(log: LogDescription, config: SessionConfig, connection: duckdb.DuckDBPyConnection) -> ScanResult:
    """Give every row its typed values or its reason, and count. TextFile is parsed once; Parquet is cheap to read again."""
    # a temporary table is neither compressed nor logged, and spills like everything else: twice as fast to fill
    keep = "TABLE" if log.text else "VIEW"
    parsed, reasons = parsed_sql(log, connection)
    connection.execute(f"CREATE TEMP {keep} log AS {parsed}")
    connection.register("reasons", pa.table({"reason": pa.array(range(len(reasons)), pa.uint8()), "why": reasons}))
    counted = "SELECT why, n FROM (SELECT reason, count(*) AS n FROM log GROUP BY reason) LEFT JOIN reasons USING (reason)"
    found: dict[str | None, int] = dict(connection.execute(counted).fetchall())
    rejected = {reason: n for reason, n in found.items() if reason is not None}
    # a filter that drops nothing would still make every later scan parse every column again
    accepted, refused = ("WHERE reason IS NULL", "WHERE reason IS NOT NULL") if rejected else ("", "LIMIT 0")
    if lines := collect_malformed_lines("log", connection):
        rejected[MALFORMED] = lines
    connection.execute(f"""
        CREATE TEMP VIEW accepted AS SELECT * EXCLUDE (reason, raw) FROM log {accepted};
        CREATE TEMP VIEW refused AS
        SELECT "user"::VARCHAR AS "user", item::VARCHAR AS item, raw[1] AS "time", raw[2] AS behaviour, why AS reason
        FROM (FROM log {refused}) JOIN reasons USING (reason)
        UNION ALL
        SELECT NULL, NULL, NULL, line, '{MALFORMED}' FROM log_malformed;
        CREATE TEMP TABLE user_counts AS
        SELECT "user", {stable_hash_sql('"user"', config.seed, "part")} AS key, count(*) AS n FROM accepted GROUP BY "user";
        CREATE TEMP TABLE item_names AS SELECT DISTINCT item FROM accepted;
    """)
    if isinstance(log.rule, Quantiles):
        connection.execute(f"""
            CREATE TEMP TABLE value_counts AS
            SELECT value, count(*) AS n FROM accepted JOIN user_counts USING ("user")
            WHERE key < {config.thresholds[1]} GROUP BY value""")
    columns = tuple(row[0] for row in connection.execute("DESCRIBE accepted").fetchall())
    return ScanResult(sum(found.values()) + lines, rejected, columns)


def collect_malformed_lines(which: str, connection: duckdb.DuckDBPyConnection) -> int:
    """Count the lines of the log, or of item tables, that could not be split; they become `{which}_malformed`."""
    known = f"SELECT count(*) FROM duckdb_tables() WHERE table_name = '{which}_errors'"
    lines = "SELECT NULL::VARCHAR AS line LIMIT 0"
    if connection.execute(known).fetchall()[0][0]:
        errors = f"{which}_errors JOIN {which}_scans USING (scan_id, file_id)"
        once = f"SELECT DISTINCT file_path, line, csv_line FROM {errors}"
        lines = f"SELECT trim(csv_line, chr(10) || chr(13)) AS line FROM ({once})"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {which}_malformed AS {lines}")
    return int(connection.execute(f"SELECT count(*) FROM {which}_malformed").fetchall()[0][0])
