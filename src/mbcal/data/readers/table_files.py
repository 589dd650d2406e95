"""Tables with named columns: Parquet files, text files and data frames, opened as SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mbcal.data import files
from mbcal.data.clicks import NEXT_CLICK
from mbcal.data.files import Paths
from mbcal.data.frames import Frame, write_frame
from mbcal.data.sql import csv_sql, parquet_sql, sql_identifier
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError, MissingColumnError

NAMES = ["*.parquet", "*.pq", "*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz", "*.txt"]
"""Names of files that are taken for tables in a folder or zip."""
DELIMITERS = (",", "\t", ";", "|")
"""What may separate the columns of a text file; the first that gives all needed columns is taken."""


@dataclass(frozen=True)
class OpenTable:
    """One file of a table."""

    path: Path
    from_sql: str
    """Table function or subquery with at least the needed columns."""
    is_parquet: bool
    kinds: Mapping[str, str]
    """Needed column -> its DuckDB type."""


def open_tables(source: Paths | Frame, role: str, columns: Sequence[str], work: Workspace) -> list[OpenTable]:
    """Open the files of a table.

    Args:
        source: Files, folders, zips, or a data frame.
        role: `log` or `item`: names the table in messages and in DuckDB's table of malformed lines.
        columns: Columns that are needed.
        work: Holds the DuckDB connection and the scratch folder.

    Raises:
        InputError: If there is no file, a file cannot be read, or a column is missing.
    """
    if isinstance(source, str | Path | Sequence):
        searched, patterns = files.as_paths(source), {role: NAMES}
        paths = files.require_files(files.find_files(searched, patterns, work.scratch), role, searched, patterns)
    else:
        paths = [write_frame(source, columns, work.scratch)]
    return [_open(path, role, columns, work) for path in paths]


def open_described(
    source: Paths | Frame, role: Literal["item", "user"], key: str, columns: Sequence[str], work: Workspace
) -> list[OpenTable]:
    """Open the files of a table that describes the items or users of a log, as `open_tables`.

    Args:
        source: Files, folders, zips, or a data frame.
        role: What it describes.
        key: Column that names the item or user.
        columns: Other columns that are needed.
        work: Holds the DuckDB connection and the scratch folder.

    Raises:
        InputError: If there is no file, a file cannot be read, or a column is missing.
    """
    try:
        return open_tables(source, role, list(dict.fromkeys([key, *columns])), work)
    except MissingColumnError as error:
        if error.column != key:
            raise
        hint = f"Name its {role} column with --{role}s-key (in Python key=)."
        raise MissingColumnError(f"{error} {hint}", key) from None


def column_kinds(columns: Sequence[str], from_sql: str, work: Workspace) -> dict[str, str]:
    """Return the DuckDB type of each column."""
    query = f"DESCRIBE SELECT {', '.join(map(sql_identifier, columns))} FROM {from_sql}"
    return {column: kind for column, kind, *_ in work.connection.execute(query).fetchall()}


def _open(path: Path, role: str, columns: Sequence[str], work: Workspace) -> OpenTable:
    is_parquet = files.is_parquet(path) or path.suffix.lower() in (".parquet", ".pq")
    from_sql = _parquet(path, columns) if is_parquet else _text(path, role, columns, work)
    return OpenTable(path, from_sql, is_parquet, column_kinds(columns, from_sql, work))


def _parquet(path: Path, columns: Sequence[str]) -> str:
    present = files.parquet_columns(path)
    files.require_columns(path, present, columns, [NEXT_CLICK])
    lowered = [column.lower() for column in present]
    if ambiguous := [column for column in columns if lowered.count(column.lower()) > 1]:
        raise InputError(f"{path}: two columns are called {ambiguous[0]!r} but for upper and lower case; rename one")
    return parquet_sql(path)


def _text(path: Path, role: str, columns: Sequence[str], work: Workspace) -> str:
    text = files.inspect_text(path, work.scratch)
    headers = {delimiter: text.header(delimiter) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter in DELIMITERS if set(columns) <= set(headers[delimiter])]
    delimiter = fitting[0] if fitting else max(DELIMITERS, key=lambda d: (len(headers[d]), d == ","))
    files.require_columns(path, headers[delimiter], columns, [NEXT_CLICK])
    return f"({csv_sql(text, headers[delimiter], columns, delimiter=delimiter, rejects=role)})"
