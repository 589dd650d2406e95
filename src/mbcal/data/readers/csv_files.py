"""CSV files with a header, as SQL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mbcal.data import files
from mbcal.data.sql import csv_sql
from mbcal.data.workspace import Workspace


def csv_file_sql(path: Path, columns: Sequence[str], work: Workspace, rejects: str) -> str:
    """Return a SELECT of some columns of a CSV file, all as text.

    Args:
        path: The file, plain or gzipped.
        columns: Names of the columns to select.
        work: Has the scratch folder.
        rejects: `log` or `item`: where malformed lines are collected.

    Raises:
        InputError: If the file is not text, or lacks a column.
    """
    text = files.inspect_text(path, work.scratch)
    header = text.header(",")
    files.require_columns(path, header, columns)
    return csv_sql(text, header, columns, rejects=rejects)
