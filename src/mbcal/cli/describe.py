"""`mbcal describe`: statistics of a store, as tables or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mbcal.cli.console import output
from mbcal.data import Store
from mbcal.data.describe import describe

BAR = 28
"""Characters of the longest bar."""
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 60
"""Most characters of a line of sparks; with more days, each stands for several."""


def describe_store(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A store written by 'mbcal prepare'.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a store holds: dates, behaviours, session lengths, parts, heavy users, popular and new items, features.

    Warns of times in the wrong unit, of users who are most of a part, and of item rows that contradict each other.
    """
    statistics = describe(Store.open(path))
    if as_json:
        typer.echo(json.dumps(statistics, indent=2, ensure_ascii=False, allow_nan=False))
        return
    console = output()
    console.print(
        f"{path} ({statistics['source']}): {statistics['rows']:,} steps, {statistics['users']:,} users, "
        f"{statistics['items']:,} items, "
        f"{statistics['sessions']:,} sessions of up to {statistics['horizon']} steps "
        f"({statistics['full_sessions']:,} full: that many steps)"
    )
    if statistics["times"]:
        console.print(f"from {statistics['times']['first']} to {statistics['times']['last']}")
    if added := statistics["negatives"]:
        console.print(f"{added['rows']:,} steps are sampled negatives, {added['rate']:.2%} of all items not chosen")
    for table in (
        _behaviours(statistics),
        _lengths(statistics),
        _outcomes(statistics),
        _parts(statistics),
        _heaviest_users(statistics),
        _popularity(statistics),
        _features(statistics),
        _fields(statistics, "user", "Fields of users"),
        _fields(statistics, "context", "Context of steps"),
        _rejected(statistics),
    ):
        if table is not None:
            console.print(f"\n{table.title}", style="bold")
            table.title = None
            console.print(table)
    if statistics["new_items"]:
        console.print(f"\n{_new_items(statistics)}")
    console.print(
        f"\ncontent {statistics['content_hash'][:16]}, seed {statistics['options']['seed']}"
        + (
            f", {statistics['ties']:,} steps at the same time as the one before, in a seeded random order"
            * bool(statistics["ties"])
        )
    )
    for warning in statistics["warnings"]:
        console.print(f"Warning: {warning}")


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


def _outcomes(statistics: dict[str, Any]) -> Table | None:
    outcomes = statistics["length_by_outcome"]
    if not outcomes or len({f"{entry['mean_length']:.2f}" for entry in outcomes}) < min(len(outcomes), 2):
        return None  # several outcomes of one length tell nothing
    table = _table("Session length by outcome", "last behaviour", "sessions", "mean length", "")
    largest = max(entry["mean_length"] for entry in outcomes)
    for entry in outcomes:
        length = entry["mean_length"]
        table.add_row(entry["behaviour"], f"{entry['sessions']:,}", f"{length:.2f}", _bar(length, largest))
    return table


def _parts(statistics: dict[str, Any]) -> Table:
    cuts = f", cut at {' and '.join(statistics['time_cuts'])}" if statistics["time_cuts"] else ""
    columns = ("part", "users", "sessions", "steps in sessions", "in histories only", "reward per session")
    table = _table(f"Parts (disjoint by user{cuts})", *columns)
    for part, entry in statistics["parts"].items():
        mean = entry["reward_per_session"]
        counts = (entry["users"], entry["sessions"], entry["session_steps"], entry["steps"] - entry["session_steps"])
        table.add_row(part, *(f"{count:,}" for count in counts), "-" if mean is None else f"{mean:.2f}")
    return table


def _heaviest_users(statistics: dict[str, Any]) -> Table | None:
    if not statistics["heaviest_users"]:
        return None
    table = _table("Heaviest users", "part", "user", "sessions", "steps", "of the part's sessions")
    for part, users in statistics["heaviest_users"].items():
        for user in users:
            table.add_row(part, user["user"], f"{user['sessions']:,}", f"{user['steps']:,}", f"{user['share']:.1%}")
    return table


def _new_items(statistics: dict[str, Any]) -> str:
    """Share of each day's steps on items first seen that day, as a line of sparks from 0 to 100%."""
    days = statistics["new_items"]
    per_spark = -(-len(days) // SPARK_WIDTH)
    shares = []
    for begin in range(0, len(days), per_spark):
        group = days[begin : begin + per_spark]
        shares.append(sum(day["share"] * day["steps"] for day in group) / sum(day["steps"] for day in group))
    sparks = "".join(SPARKS[min(int(share * len(SPARKS)), len(SPARKS) - 1)] for share in shares)
    later = [day for day in days[1:] if day["steps"]]
    total = sum(day["steps"] for day in later)
    mean = f", {sum(day['share'] * day['steps'] for day in later) / total:.1%} after the first day" if total else ""
    each = "day" if per_spark == 1 else f"{per_spark} days"
    return f"Steps on items first seen that day{mean} (by {each}, {days[0]['day']} to {days[-1]['day']}): {sparks}"


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
    table = _table("Item features", "name", "kind", "values", "items without")
    for name, entry in statistics["features"].items():
        table.add_row(name, entry["kind"], _feature_values(entry), f"{entry['items_without']:,}")
    return table


def _feature_values(entry: dict[str, Any]) -> str:
    if entry["kind"] == "vector":
        return f"{entry['length']:,} numbers each"
    if entry["kind"] == "number":
        return f"{entry['lowest']:g} to {entry['highest']:g}" if "lowest" in entry else "none"
    return f"{entry['values']:,}, {'several' if entry['multi'] else 'one'} per item"


def _fields(statistics: dict[str, Any], group: str, title: str) -> Table | None:
    if group not in statistics["fields"]:
        return None
    table = _table(title, "name", "kind", "what it holds")
    for entry in statistics["fields"][group]:
        if entry["kind"] == "category":
            holds = f"{entry['values']:,} values: {', '.join(entry['examples'])}{', …' * (entry['values'] > 5)}"
        elif entry["kind"] == "number":
            holds = f"mean {entry['mean']:g}, deviation {entry['deviation']:g} in the train part"
        else:
            holds = f"{entry['length']} numbers"
        table.add_row(entry["name"], entry["kind"], holds)
    return table


def _rejected(statistics: dict[str, Any]) -> Table | None:
    if not statistics["rejected"]:
        return None
    table = _table(f"Rejected (of {statistics['rows_read']:,} rows read; see rejected.parquet)", "reason", "rows")
    for reason, count in statistics["rejected"].items():
        table.add_row(reason, f"{count:,}")
    return table
