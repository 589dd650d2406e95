"""SQL expressions for DuckDB: quoting, reading files, and turning raw columns into typed values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mbcal.data.files import TextFile
from mbcal.errors import InputError

TimeUnit = Literal["auto", "s", "ms", "us", "ns"]
"""Unit of times given as numbers since 1970; `auto` decides for each value by its size."""

_UNIT_LIMITS: Sequence[tuple[str, float]] = (("s", 1e11), ("ms", 1e14), ("us", 1e17))
"""For `auto`, the magnitude below which a number is read in each unit; larger ones are nanoseconds.

Seconds below 1e11 reach the year 5138; milliseconds from 1e11 on begin in 1973, and likewise for the smaller units.
"""
_EXACT = 2**53
"""Whole numbers below it are exact as floats."""
_TO_MICROSECONDS = {"s": "({t}) * 1000000", "ms": "({t}) * 1000", "us": "({t})", "ns": "({t}) // 1000"}


def sql_string(text: str) -> str:
    """Return text as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def sql_identifier(column: str) -> str:
    """Return a column name as a quoted SQL identifier."""
    return '"' + column.replace('"', '""') + '"'


def finite_sql(column: str) -> str:
    """Return an expression for a column as DOUBLE; NULL if it is not a finite number. -0.0 becomes 0.0."""
    return f"CASE WHEN isfinite(try_cast({column} AS DOUBLE)) THEN try_cast({column} AS DOUBLE) + 0.0 END"


def entity_name_sql(column: str, kind: str) -> str:
    """Return an expression for the name of a user, item or session; NULL if it is missing.

    Whole numbers written as floats, as pandas does when an integer is missing, get the same name as integers, in text
    (`7.0`) as in float columns. Other text stays as it is: `7.05`, `7.00`, `07.0`, `v7.0`, `1e3`.

    Args:
        column: The column, quoted.
        kind: Its DuckDB type.
    """
    text = plain_text_sql(column, kind)
    if kind != "VARCHAR":
        return text
    # The ending decides for almost every row. DuckDB evaluates both sides of an AND, but a CASE only where it applies.
    is_whole = f"regexp_full_match({column}, '-?(0|[1-9][0-9]{{0,15}})\\.0')"
    whole = f"try_cast(left({column}, -2) AS BIGINT)"
    name = f"CASE WHEN {is_whole} AND abs({whole}) < {_EXACT} THEN {whole}::VARCHAR ELSE {column} END"
    return f"CASE WHEN ends_with({column}, '.0') THEN {name} ELSE {text} END"


def plain_text_sql(column: str, kind: str) -> str:
    """Return an expression for a plain value as text or as it is; NULL if it is missing.

    Whole numbers in float columns are written like integers. NaN and empty text are missing. 128-bit integers become text,
    because Parquet cannot hold them.

    Args:
        column: The column, quoted.
        kind: Its DuckDB type.
    """
    if "HUGEINT" in kind:
        return f"{column}::VARCHAR"
    if kind in ("FLOAT", "DOUBLE"):
        # isfinite, not isnan: DuckDB 2.0 answers isnan from Parquet statistics, which ignore NaN
        is_whole = f"isfinite({column}) AND {column} = trunc({column}) AND abs({column}) < {_EXACT}"
        return f"CASE WHEN {is_whole} THEN {column}::BIGINT::VARCHAR WHEN isfinite({column}) THEN {column}::VARCHAR END"
    return f"nullif({column}, '')" if kind == "VARCHAR" else column


def path_sql(path: Path) -> str:
    """Return an absolute path as a SQL string in which `*`, `?` and `[` stand for themselves, not for patterns."""
    return sql_string(re.sub(r"([*?[])", r"[\1]", str(path.absolute())))


def parquet_sql(*paths: Path) -> str:
    """Return a table function that reads Parquet files. Folders named `user=9` above them add no columns."""
    return f"read_parquet([{', '.join(map(path_sql, paths))}], hive_partitioning=false)"


def csv_sql(
    text: TextFile,
    header: Sequence[str],
    columns: Sequence[str],
    *,
    delimiter: str = ",",
    has_header: bool = True,
    quoted: bool = True,
    rejects: str = "log",
) -> str:
    """Return a SELECT of some columns of a text file, all as VARCHAR.

    Inside the query, columns are numbered, because a header may hold empty names or names that differ only in case.

    Args:
        text: The file.
        header: Names of all its columns, in order.
        columns: Names of the columns to select.
        delimiter: What separates columns.
        has_header: Whether the first line is a header, which is skipped.
        quoted: Whether values may be in double quotes.
        rejects: Lines with the wrong number of columns go to DuckDB's table `{rejects}_errors`.
    """
    types = ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(header)))
    selected = ", ".join(f"c{header.index(column)} AS {sql_identifier(column)}" for column in columns)
    quote = sql_string('"' if quoted else "")
    return (
        f"SELECT {selected} FROM read_csv({path_sql(text.path)}, auto_detect=false, columns={{{types}}}, "
        f"delim={sql_string(delimiter)}, quote={quote}, escape={quote}, header={has_header}, "
        f"encoding={sql_string(text.encoding)}, compression={sql_string('gzip' if text.gzipped else 'none')}, "
        f"store_rejects=true, rejects_table='{rejects}_errors', rejects_scan='{rejects}_scans')"
    )


def time_sql(column: str, kind: str, unit: TimeUnit, time_format: str | None) -> str:
    """Return an expression for microseconds since 1970 (UTC); NULL if the value cannot be read.

    Args:
        column: The column, quoted.
        kind: Its DuckDB type.
        unit: Unit of numbers.
        time_format: strptime format of text; None tries numbers, then ISO 8601.

    Raises:
        InputError: If the column's type cannot hold a time.
    """
    if time_format is not None:
        return f"epoch_us(try_strptime({column}::VARCHAR, {sql_string(time_format)}))"
    if kind.startswith(("TIMESTAMP", "DATE")):
        timestamp = f"{column}::{'TIMESTAMPTZ' if 'TZ' in kind or 'ZONE' in kind else 'TIMESTAMP'}"
        return f"CASE WHEN isfinite({timestamp}) THEN epoch_us({timestamp}) END"
    if kind == "VARCHAR":
        integer, real, timestamp = (f"try_cast({column} AS {target})" for target in ("BIGINT", "DOUBLE", "TIMESTAMPTZ"))
        # in this order, and not as a coalesce: a cast to TIMESTAMPTZ that fails takes a microsecond
        return (
            f"CASE WHEN {integer} IS NOT NULL THEN {_epoch_sql(integer, unit)} "
            f"WHEN {real} IS NOT NULL THEN {_epoch_sql(real, unit)} "
            f"WHEN isfinite({timestamp}) THEN epoch_us({timestamp}) END"
        )
    if not re.fullmatch("U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*", kind):
        raise InputError(f"the time column has type {kind}; it must hold timestamps, dates, ISO text or epoch numbers")
    wide = "BIGINT" if "INT" in kind else "DOUBLE"  # narrower types would overflow when scaled
    return _epoch_sql(f"try_cast({column} AS {wide})", unit)


def _epoch_sql(number: str, unit: TimeUnit) -> str:
    scaled = {name: factor.format(t=number) for name, factor in _TO_MICROSECONDS.items()}
    if unit != "auto":
        return f"try_cast(TRY({scaled[unit]}) AS BIGINT)"
    branches = " ".join(f"WHEN abs({number}::DOUBLE) < {limit} THEN {scaled[name]}" for name, limit in _UNIT_LIMITS)
    return f"try_cast(CASE {branches} ELSE {scaled['ns']} END AS BIGINT)"
