"""`mbcal describe`: statistics of a store, as tables or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.data import Store
from mbcal.data.describe import describe

BAR = 28
"""Characters of the longest bar."""


def describe_store(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A store written by 'mbcal prepare'.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a store holds: behaviours, session lengths, parts, popular items, features, rejected rows."""
    statistics = describe(Store.open(path))
    if as_json:
        typer.echo(json.dumps(statistics, indent=2, ensure_ascii=False, allow_nan=False))
        return
    console = Console(highlight=False, markup=False, emoji=False)  # names may contain square brackets
    if not console.is_terminal:
        console.width = 160
    console.print(
        f"{path} ({statistics['source']}): {statistics['rows']:,} steps, {statistics['users']:,} users, "
        f"{statistics['items']:,} items, "
        f"{statistics['sessions']:,} sessions of up to {statistics['horizon']} ({statistics['full_sessions']:,} full)"
    )
    for table in (
        _behaviours(statistics),
        _lengths(statistics),
        _parts(statistics),
        _popularity(statistics),
        _features(statistics),
        _rejected(statistics),
    ):
        if table is not None:
            console.print(f"\n{table.title}", style="bold")
            table.title = None
            console.print(table)
    console.print(
        f"\ncontent {statistics['content_hash'][:16]}, seed {statistics['options']['seed']}"
        + (
            f", {statistics['ties']:,} steps at the same time as the one before, in a seeded random order"
            * bool(statistics["ties"])
        )
    )


def _bar(value: float, largest: float) -> str:
    return "█" * round(BAR * value / largest) if largest else ""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column else "left")
    return table


def _behaviours(statistics: dict[str, Any]) -> Table:
    table = _table(
        f"Behaviours (mean reward per step {statistics['reward_per_step']:.3f})", "name", "reward", "steps", "share", ""
    )
    largest = max(entry["count"] for entry in statistics["behaviours"])
    for entry in statistics["behaviours"]:
        share = f"{entry['share']:.1%}"
        table.add_row(entry["name"], f"{entry['reward']:g}", f"{entry['count']:,}", share, _bar(entry["count"], largest))
    return table


def _lengths(statistics: dict[str, Any]) -> Table:
    table = _table("Session lengths", "steps", "sessions", "")
    largest = max(statistics["lengths"].values(), default=0)
    for length, count in statistics["lengths"].items():
        table.add_row(length, f"{count:,}", _bar(count, largest))
    if statistics["short_windows"]:
        table.add_row("shorter", f"{statistics['short_windows']:,}", "not kept (--min-length)")
    return table


def _parts(statistics: dict[str, Any]) -> Table:
    table = _table("Parts (disjoint by user)", "part", "users", "sessions", "steps", "reward per session")
    for part, entry in statistics["parts"].items():
        mean = entry["reward_per_session"]
        row = [f"{entry[column]:,}" for column in ("users", "sessions", "steps")]
        table.add_row(part, *row, "-" if mean is None else f"{mean:.2f}")
    return table


def _popularity(statistics: dict[str, Any]) -> Table:
    popularity = statistics["popularity"]
    half, median, gini = (popularity[name] for name in ("half", "median", "gini"))
    spread = f"half of all steps in {half:,} items, median {median:g} steps, Gini {gini:.2f}"
    table = _table(f"Popularity ({spread})", "item", "steps", "")
    largest = popularity["top"][0]["count"] if popularity["top"] else 0
    for entry in popularity["top"]:
        table.add_row(entry["title"], f"{entry['count']:,}", _bar(entry["count"], largest))
    return table


def _features(statistics: dict[str, Any]) -> Table | None:
    if not statistics["features"]:
        return None
    table = _table("Item features", "name", "values", "per item", "items without")
    for name, entry in statistics["features"].items():
        table.add_row(name, f"{entry['values']:,}", "many" if entry["multi"] else "one", f"{entry['items_without']:,}")
    return table


def _rejected(statistics: dict[str, Any]) -> Table | None:
    if not statistics["rejected"]:
        return None
    table = _table(f"Rejected (of {statistics['rows_read']:,} rows read; see rejected.parquet)", "reason", "rows")
    for reason, count in statistics["rejected"].items():
        table.add_row(reason, f"{count:,}")
    return table
