"""Anybody's log: Parquet or CSV (plain or gzipped), one file or many, with the column names given."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mbcal.data import files
from mbcal.data.files import Paths
from mbcal.data.log import Labels, Levels, Log, TimeUnit, csv_sql, name, quote
from mbcal.data.workspace import Workspace
from mbcal.errors import OptionError

PATTERNS = {"log": ["*.parquet", "*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz", "*.txt"]}
ITEM_PATTERNS = {"items": PATTERNS["log"]}
DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True)
class Items:
    """The item-feature table: where it is, its key (the log's item column unless named) and the columns to take.

    `title` is the column that names an item to people. A list column of a Parquet is multi-valued, and so is a text column
    in which any value holds the separator.
    """

    paths: Paths
    features: Sequence[str]
    key: str | None = None
    separator: str = "|"
    title: str | None = None


def parse_rewards(text: str) -> Labels:
    """`skip=0,click=1,like=5`."""
    rewards: dict[str, float] = {}
    for entry in next(csv.reader([text], skipinitialspace=True)):
        label, equals, reward = entry.rpartition("=")
        try:
            if not equals or label.strip() in rewards:
                raise ValueError
            rewards[label.strip()] = float(reward)
        except ValueError:
            raise OptionError(f"rewards: {entry!r} is not a new LABEL=NUMBER; write skip=0,click=1,like=5") from None
    return Labels(rewards)


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """`0.5,3,10`."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise OptionError(f"{option}: {text!r} is not a list of numbers; write 0.5,3,10, for instance") from None


@dataclass(frozen=True)
class Table:
    """A log and which of its columns is what."""

    paths: Paths
    user: str
    item: str
    time: str
    behaviour: str
    rule: Labels | Levels
    session: str | None = None
    propensity: str | None = None
    items: Items | None = None
    time_unit: TimeUnit = "auto"
    time_format: str | None = None

    def read(self, work: Workspace) -> Log:
        """Describe it for ingestion."""
        paths, items = files.listed(self.paths), self.items
        found = files.require(files.gather(paths, PATTERNS, work.scratch), "log", paths, PATTERNS)
        named = {our: getattr(self, our) for our in ("user", "item", "time", "behaviour", "session", "propensity")}
        wanted = {our: theirs for our, theirs in named.items() if theirs is not None}
        # where Parquet and text meet, or two Parquets disagree, everything is compared as text
        kind = "::VARCHAR" if len(found) > 1 and not _same_types(found, list(wanted.values()), work) else ""
        picked = ", ".join(f"{name(theirs)}{kind} AS {name(our)}" for our, theirs in wanted.items())
        rows = " UNION ALL ".join(f"SELECT {picked} FROM ({_scan(path, list(wanted.values()), work)})" for path in found)
        return Log(
            layout="table",
            rows=rows,
            rule=self.rule,
            text=not all(map(_is_parquet, found)),
            features=None if items is None else _features(items, self.item, work),
            titles=None if items is None or items.title is None else _titles(items, self.item, work),
            time_unit=self.time_unit,
            time_format=self.time_format,
            options={
                "columns": wanted,
                "features": [] if items is None else list(items.features),
                "time_unit": self.time_unit,
                "time_format": self.time_format,
            },
        )


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _same_types(paths: Sequence[Path], wanted: Sequence[str], work: Workspace) -> bool:
    """Whether the wanted columns have the same types in every file."""
    picked = ", ".join(map(name, wanted))
    described = [work.connection.execute(f"DESCRIBE SELECT {picked} FROM ({_scan(path, wanted, work)})") for path in paths]
    return len({tuple(kind for _, kind, *_ in columns.fetchall()) for columns in described}) == 1


def _scan(path: Path, needed: Sequence[str], work: Workspace) -> str:
    """A SELECT over one file that is known to have the needed columns."""
    if _is_parquet(path):
        files.require_columns(path, files.parquet_columns(path), needed)
        return f"SELECT * FROM read_parquet({quote(str(path))})"
    text = files.text(path, work.scratch)
    headers = {delimiter: text.header(delimiter) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter in DELIMITERS if set(needed) <= set(headers[delimiter])]
    delimiter = fitting[0] if fitting else max(DELIMITERS, key=lambda d: (len(headers[d]), d == ","))
    files.require_columns(path, headers[delimiter], needed)
    return csv_sql(text, headers[delimiter], delimiter=delimiter)


def _item_table(items: Items, wanted: Sequence[str], work: Workspace) -> str:
    """A SELECT of the wanted columns from every file of the item table."""
    given = files.listed(items.paths)
    paths = files.require(files.gather(given, ITEM_PATTERNS, work.scratch), "items", given, ITEM_PATTERNS)
    picked = ", ".join(map(name, wanted))
    return " UNION ALL ".join(f"SELECT {picked} FROM ({_scan(path, wanted, work)})" for path in paths)


def _titles(items: Items, item_column: str, work: Workspace) -> str:
    key, title = items.key or item_column, items.title or ""
    table = _item_table(items, [key, title], work)
    return f"SELECT {name(key)}::VARCHAR AS item, {name(title)}::VARCHAR AS title FROM ({table})"


def _features(items: Items, item_column: str, work: Workspace) -> str:
    key = items.key or item_column
    table = f"({_item_table(items, [key, *items.features], work)})"
    described = work.connection.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
    kinds = {column: kind for column, kind, *_ in described}
    columns = [f"{name(key)}::VARCHAR AS item"]
    for feature in items.features:
        column, separator = name(feature), quote(items.separator)
        if kinds[feature].endswith("[]"):
            sql = f"{column}::VARCHAR[]"
        elif items.separator and _holds(work, table, column, separator):
            sql = f"list_transform(string_split({column}::VARCHAR, {separator}), lambda v: trim(v))"
        else:
            sql = f"nullif({column}::VARCHAR, '')"
        columns.append(f"{sql} AS {column}")
    return f"SELECT {', '.join(columns)} FROM {table}"


def _holds(work: Workspace, table: str, column: str, separator: str) -> bool:
    query = f"SELECT count(*) FROM {table} WHERE contains({column}::VARCHAR, {separator})"
    return bool(work.connection.execute(query).fetchall()[0][0])
