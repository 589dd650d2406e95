"""SQL fragments that turn raw columns into typed values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mbcal.data.files import TextFile
from mbcal.errors import InputError

TimeUnit = Literal["auto", "s", "ms", "us", "ns"]


# The largest magnitude read as each unit when the unit is told by size. Seconds reach the year 5138 before they could be
# taken for milliseconds, and milliseconds go back to 1973 before they could be taken for seconds; likewise further down.
_UNIT_BOUNDS: Sequence[tuple[str, float]] = (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", float("inf")))


_MICROSECONDS = {"s": "{t} * 1000000", "ms": "{t} * 1000", "us": "{t}", "ns": "{t} // 1000"}


def sql_string(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def sql_identifier(column: str) -> str:
    """A SQL identifier."""
    return '"' + column.replace('"', '""') + '"'


def _finite_sql(column: str) -> str:
    return f"CASE WHEN isfinite(try_cast({column} AS DOUBLE)) THEN try_cast({column} AS DOUBLE) + 0.0 END"  # -0.0 is 0.0


def entity_name_sql(column: str, kind: str) -> str:
    """What a user, item or session is called: whole numbers alike whether stored as integers or, for a null among them,
    as floats; nothing and NaN are NULL. (Not `isnan`: DuckDB 2.0 answers it from Parquet statistics, wrongly.) Integers of
    128 bits become text: Parquet has none."""
    if "HUGEINT" in kind:
        return f"{column}::VARCHAR"
    if kind in ("FLOAT", "DOUBLE"):
        whole = f"isfinite({column}) AND {column} = trunc({column}) AND abs({column}) < 9007199254740992"
        return f"CASE WHEN {whole} THEN {column}::BIGINT::VARCHAR WHEN isfinite({column}) THEN {column}::VARCHAR END"
    return f"nullif({column}, '')" if kind == "VARCHAR" else column


def path_sql(path: Path) -> str:
    """A file by its very name, from wherever it is read: DuckDB would take brackets, stars and question marks for
    patterns."""
    return sql_string(re.sub(r"([*?[])", r"[\1]", str(path.absolute())))


def parquet_sql(*paths: Path) -> str:
    """Parquet files and no more: DuckDB would take a folder called `user=9` above them for a column."""
    return f"read_parquet([{', '.join(map(path_sql, paths))}], hive_partitioning=false)"


def csv_sql(
    text: TextFile,
    header: Sequence[str],
    wanted: Sequence[str],
    *,
    delimiter: str = ",",
    skip: bool = True,
    quoted: bool = True,
    rejects: str = "log",
) -> str:
    """A SELECT of some columns of one text file, as text. `header` names all its columns in order; `skip` says that its
    first line does too. Lines of the wrong shape go to DuckDB's table `{rejects}_errors`.

    Inside, columns are numbered: a header may hold empty names, or names that differ only in case."""
    types = ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(header)))
    picked = ", ".join(f"c{header.index(column)} AS {sql_identifier(column)}" for column in wanted)
    mark = sql_string('"' if quoted else "")
    return (
        f"SELECT {picked} FROM read_csv({path_sql(text.path)}, auto_detect=false, columns={{{types}}}, "
        f"delim={sql_string(delimiter)}, quote={mark}, escape={mark}, header={skip}, encoding={sql_string(text.encoding)}, "
        f"compression={sql_string('gzip' if text.gzipped else 'none')}, store_rejects=true, "
        f"rejects_table='{rejects}_errors', rejects_scan='{rejects}_scans')"
    )


def time_sql(column: str, kind: str, unit: TimeUnit, form: str | None) -> str:
    """Microseconds since 1970 (UTC), or NULL where the value cannot be read; `kind` is DuckDB's name of the type."""
    if form is not None:
        return f"epoch_us(try_strptime({column}::VARCHAR, {sql_string(form)}))"
    if kind.startswith(("TIMESTAMP", "DATE")):
        moment = f"{column}::{'TIMESTAMPTZ' if 'TZ' in kind or 'ZONE' in kind else 'TIMESTAMP'}"
        return f"CASE WHEN isfinite({moment}) THEN epoch_us({moment}) END"
    if kind == "VARCHAR":
        whole, broken, moment = (f"try_cast({column} AS {kind})" for kind in ("BIGINT", "DOUBLE", "TIMESTAMPTZ"))
        # in this order, and no coalesce: a cast to TIMESTAMPTZ that fails takes a microsecond
        return (
            f"CASE WHEN {whole} IS NOT NULL THEN {_epoch_sql(whole, unit)} "
            f"WHEN {broken} IS NOT NULL THEN {_epoch_sql(broken, unit)} "
            f"WHEN isfinite({moment}) THEN epoch_us({moment}) END"
        )
    if not re.fullmatch("U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*", kind):
        raise InputError(f"the time column has type {kind}; it must hold timestamps, dates, ISO text or epoch numbers")
    wide = "BIGINT" if "INT" in kind else "DOUBLE"  # narrower ones would overflow when scaled
    return _epoch_sql(f"try_cast({column} AS {wide})", unit)


def _epoch_sql(number: str, unit: TimeUnit) -> str:
    if unit != "auto":
        scaled = f"TRY({_MICROSECONDS[unit].format(t=f'({number})')})"
    else:
        branches = " ".join(
            f"WHEN abs({number}::DOUBLE) < {bound} THEN {_MICROSECONDS[unit].format(t=f'({number})')}"
            for unit, bound in _UNIT_BOUNDS[:-1]
        )
        scaled = f"CASE {branches} ELSE {_MICROSECONDS['ns'].format(t=f'({number})')} END"
    return f"try_cast({scaled} AS BIGINT)"
