"""`mbcal describe`: what is in a store, for a person or as JSON."""

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


def describe_store(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A store written by 'mbcal prepare'.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What a store holds: labels, session lengths, popularity, splits, rows set aside and why."""
    found = describe(Store.open(path))
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))
        return
    console = Console(highlight=False, markup=False, emoji=False)  # names may hold anything, square brackets too
    if not console.is_terminal:
        console.width = 160
    console.print(
        f"{path} ({found['source']}): {found['rows']:,} steps, {found['users']:,} users, {found['items']:,} items, "
        f"{found['sessions']:,} sessions of up to {found['horizon']} ({found['full_sessions']:,} full)"
    )
    for table in (
        _behaviours(found),
        _lengths(found),
        _parts(found),
        _popularity(found),
        _features(found),
        _rejected(found),
    ):
        if table is not None:
            console.print(f"\n{table.title}", style="bold")
            table.title = None
            console.print(table)
    console.print(
        f"\ncontent {found['content_hash'][:16]}, seed {found['options']['seed']}"
        + (
            f", {found['ties']:,} steps at the same time as the one before, in an order drawn from the seed"
            * bool(found["ties"])
        )
    )


def _bar(value: float, most: float) -> str:
    return "█" * round(BAR * value / most) if most else ""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column else "left")
    return table


def _behaviours(found: dict[str, Any]) -> Table:
    table = _table(
        f"Behaviours (mean reward per step {found['reward_per_step']:.3f})", "name", "reward", "steps", "share", ""
    )
    most = max(entry["count"] for entry in found["behaviours"])
    for entry in found["behaviours"]:
        share = f"{entry['share']:.1%}"
        table.add_row(entry["name"], f"{entry['reward']:g}", f"{entry['count']:,}", share, _bar(entry["count"], most))
    return table


def _lengths(found: dict[str, Any]) -> Table:
    table = _table("Session lengths", "steps", "sessions", "")
    most = max(found["lengths"].values(), default=0)
    for length, count in found["lengths"].items():
        table.add_row(length, f"{count:,}", _bar(count, most))
    if found["short_windows"]:
        table.add_row("shorter", f"{found['short_windows']:,}", "not kept (--min-length)")
    return table


def _parts(found: dict[str, Any]) -> Table:
    table = _table("Parts (disjoint by user)", "part", "users", "sessions", "steps", "reward per session")
    for part, entry in found["parts"].items():
        mean = entry["reward_per_session"]
        row = [f"{entry[column]:,}" for column in ("users", "sessions", "steps")]
        table.add_row(part, *row, "-" if mean is None else f"{mean:.2f}")
    return table


def _popularity(found: dict[str, Any]) -> Table:
    known = found["popularity"]
    spread = f"half of all steps in {known['half']:,} items, median {known['median']:g} steps, Gini {known['gini']:.2f}"
    table = _table(f"Popularity ({spread})", "item", "steps", "")
    most = known["top"][0]["count"] if known["top"] else 0
    for entry in known["top"]:
        table.add_row(entry["title"], f"{entry['count']:,}", _bar(entry["count"], most))
    return table


def _features(found: dict[str, Any]) -> Table | None:
    if not found["features"]:
        return None
    table = _table("Item features", "name", "values", "per item", "items without")
    for name, entry in found["features"].items():
        table.add_row(name, f"{entry['values']:,}", "many" if entry["multi"] else "one", f"{entry['items_without']:,}")
    return table


def _rejected(found: dict[str, Any]) -> Table | None:
    if not found["rejected"]:
        return None
    table = _table(f"Set aside (of {found['rows_read']:,} rows read; see rejected.parquet)", "reason", "rows")
    for reason, count in found["rejected"].items():
        table.add_row(reason, f"{count:,}")
    return table
