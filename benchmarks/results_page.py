"""Fill the tables and figures of a Markdown page from the files in docs/results.

A block `<!-- table: NAME…; OPTIONS -->` … `<!-- end table -->` (or `figure`) is replaced; text between blocks is left alone.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results_experiments import paper_numbers

from mbcal.errors import InputError, nearest
from mbcal.evaluation.experiment.overrides import split_list
from mbcal.report.formats import format_value
from mbcal.report.tables import Table

BLOCK = re.compile(r"<!-- (?P<kind>table|figure): (?P<content>.*?) -->\n.*?<!-- end (?P=kind) -->", re.DOTALL)


def page_text(results: Path, page: Path) -> str:
    """The page with every block filled anew."""
    return BLOCK.sub(lambda block: _fill(block, results, page), page.read_text("utf-8"))


def _fill(block: re.Match[str], results: Path, page: Path) -> str:
    """A block with its table (see `page_table`) or figure, or with the command that would make it."""
    kind, content = block["kind"], block["content"]
    names, *options = (part.strip() for part in content.split(";"))
    files = [results / f"{name}.{'csv' if kind == 'table' else 'svg'}" for name in names.split()]
    existing = [file for file in files if file.is_file()]
    if not existing:
        body = f"Not run yet: `python benchmarks/results.py run {files[0].stem.rpartition('-')[0]}`."
    elif kind == "table":
        body = page_table(existing, options).grid()
    else:
        body = "\n".join(f"![{file.stem}]({os.path.relpath(file, page.parent)})" for file in existing)
    return f"<!-- {kind}: {content} -->\n\n{body}\n\n<!-- end {kind} -->"


def page_table(files: Sequence[Path], options: Sequence[str]) -> Table:
    """The rows of these files, one below the other.

    Options: `columns: A, B as C` selects and renames columns, `where: A=x` selects rows, `paper` adds the paper's numbers.
    Without `columns`, all columns that hold a value are shown, and `data` if there are several files.
    """
    values = {name.strip(): value.strip() for name, _, value in (option.partition(":") for option in options)}
    all_rows = [row for file in files for row in _read_rows(file, "paper" in values)]
    rows = _matching_rows(all_rows, values.get("where", ""))
    columns = split_list(values["columns"]) if "columns" in values else _used_columns(rows, with_data=len(files) > 1)
    selected = [column.partition(" as ") for column in columns]
    known = {column for row in all_rows for column in row}
    for column, _, _ in selected:
        if column not in known:
            raise InputError(f"{files[0].name}: there is no column {column!r}.{nearest(column, known)}")
    titles = tuple(title or column for column, _, title in selected)
    return Table("", "", titles, [[row.get(column) for column, _, _ in selected] for row in rows])


def _matching_rows(rows: list[dict[str, Any]], conditions: str) -> list[dict[str, Any]]:
    """The rows that satisfy all conditions, `A=x, B=y`."""
    for column, _, value in (condition.partition("=") for condition in split_list(conditions) if condition):
        rows = [row for row in rows if str(row[column.strip()]) == value.strip()]
    return rows


def _used_columns(rows: list[dict[str, Any]], with_data: bool) -> list[str]:
    """The columns that hold a value in some row; `data` only on request."""
    columns = list(rows[0]) if rows else []
    return [
        column for column in columns if any(row.get(column) is not None for row in rows) and (with_data or column != "data")
    ]


def _read_rows(file: Path, with_paper: bool) -> list[dict[str, Any]]:
    """The rows that `collect` wrote, low and high as one interval; on request with the paper's numbers beside them."""
    experiment, _, table = file.stem.rpartition("-")
    data = experiment.partition("-")[0]
    paper = paper_numbers(table, data) if with_paper else {}
    rows: list[dict[str, Any]] = []
    for line in csv.DictReader(file.read_text("utf-8").splitlines()):
        row: dict[str, Any] = {"data": data}
        for column, text in line.items():
            if column == "low":
                row["95% interval"] = f"[{format_value(_parse(text))}, {format_value(_parse(line['high']))}]"
            elif column != "high":
                row[column] = _parse(text)
            if any(column in numbers for numbers in paper.values()):
                row[f"{column} (paper)"] = paper.get(line.get("agent") or line["family"], {}).get(column)
        rows.append(row)
    return rows


def _parse(text: str) -> Any:
    """The value of a CSV cell: None, a number or text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text or None
