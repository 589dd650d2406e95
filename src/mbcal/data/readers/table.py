"""Anybody's log: Parquet or CSV (plain or gzipped), one file or many, with the column names given."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mbcal.data import files
from mbcal.data.files import Paths
from mbcal.data.source import ITEM_KEY, Labels, Levels, LogDescription, LogFile
from mbcal.data.sql import TimeUnit, csv_sql, entity_name_sql, parquet_sql, sql_identifier, sql_string
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError, OptionError

PATTERNS = {"log": ["*.parquet", "*.pq", "*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz", "*.txt"]}
ITEM_PATTERNS = {"items": PATTERNS["log"]}
TITLE = "#title"
"""What the title column is called within: not a name a feature would have."""
DELIMITERS = (",", "\t", ";", "|")


@dataclass(frozen=True)
class ItemTable:
    """The item-feature table: where it is, its key (the log's item column unless named) and the columns to take.

    `title` is the column that names an item to people. A list column of a Parquet is multi-valued, and so is a text column
    in which any value holds the separator.
    """

    paths: Paths
    features: Sequence[str]
    key: str | None = None
    separator: str = "|"
    title: str | None = None

    def __post_init__(self) -> None:
        lowered = [feature.lower() for feature in self.features]  # names that differ only in case are one to DuckDB
        for feature in self.features:
            if feature in ("", ITEM_KEY, TITLE) or lowered.count(feature.lower()) > 1:
                raise OptionError(f"features: {feature!r} is empty, reserved or named twice; write each column once")


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
        example = {"split": "0.4,0.4,0.2", "levels": "0.5,3,10"}.get(option, "0,1,2")
        raise OptionError(f"{option}: {text!r} is not a list of numbers; write {example}, for instance") from None


@dataclass(frozen=True)
class TableLog:
    """A log and which of its columns is what."""

    paths: Paths
    user: str
    item: str
    time: str
    behaviour: str
    rule: Labels | Levels
    session: str | None = None
    propensity: str | None = None
    items: ItemTable | None = None
    time_unit: TimeUnit = "auto"
    time_format: str | None = None

    def read(self, work: Workspace) -> LogDescription:
        """Describe it for ingestion."""
        paths, items = files.as_paths(self.paths), self.items
        named = {our: getattr(self, our) for our in ("user", "item", "time", "behaviour", "session", "propensity")}
        wanted = {our: theirs for our, theirs in named.items() if theirs is not None}
        if self.user == self.item:
            raise OptionError(f"item: {self.item!r} is the user column too; name another")
        distinct = set(wanted.values())
        if len({column.lower() for column in distinct}) < len(distinct):
            raise OptionError(f"columns {', '.join(sorted(distinct))}: two differ only in case; rename one in the log")
        if self.time_format is not None:
            _check_format(self.time_format, work)
        found = files.require_files(files.find_files(paths, PATTERNS, work.scratch), "log", paths, PATTERNS)
        if items is not None:
            _load_items(items, self.item, work)
        return LogDescription(
            layout="table",
            pieces=_pieces(found, wanted, work),
            rule=self.rule,
            features=_features(items, work) if items is not None and items.features else None,
            titles=f"SELECT {sql_identifier(ITEM_KEY)}, {sql_identifier(TITLE)} AS title FROM item_table"
            if items is not None and items.title
            else None,
            time_unit=self.time_unit,
            time_format=self.time_format,
            options={
                "columns": wanted,
                "features": [] if items is None else list(items.features),
                "time_unit": self.time_unit,
                "time_format": self.time_format,
            },
        )


def _check_format(form: str, work: Workspace) -> None:
    import duckdb

    try:
        work.connection.execute("SELECT try_strptime('', ?)", [form])
    except duckdb.Error as error:
        why = str(error).splitlines()[0].rpartition(": ")[2]
        raise OptionError(f"time-format: {form!r} is no strptime format ({why})") from error


def _pieces(paths: Sequence[Path], wanted: Mapping[str, str], work: Workspace) -> tuple[LogFile, ...]:
    """Every file. Where their types differ, or Parquet and text meet, all is compared as text."""
    needed = list(dict.fromkeys(wanted.values()))
    sources = [_source(path, needed, work, "log") for path in paths]
    kinds = [_kinds(needed, source, work) for source in sources]
    for column, kind in ((column, kind[column]) for kind in kinds for column in wanted.values()):
        if re.search(r"\]$|^(STRUCT|MAP|BLOB)", kind):
            raise InputError(f"column {column!r} holds {kind}; a log's columns must hold one plain value each")
    alike = all(kind == kinds[0] for kind in kinds)

    def picked(kind: Mapping[str, str], our: str, theirs: str) -> str:
        return f"{sql_identifier(theirs) if alike else f'({entity_name_sql(sql_identifier(theirs), kind[theirs])})::VARCHAR'} AS {sql_identifier(our)}"

    selects = [", ".join(picked(kind, our, theirs) for our, theirs in wanted.items()) for kind in kinds]
    return tuple(
        LogFile(path, select, source, _is_parquet(path))
        for path, select, source in zip(paths, selects, sources, strict=True)
    )


def _kinds(columns: Sequence[str], source: str, work: Workspace) -> dict[str, str]:
    """Column -> DuckDB's name of its type."""
    query = f"DESCRIBE SELECT {', '.join(map(sql_identifier, columns))} FROM {source}"
    return {column: kind for column, kind, *_ in work.connection.execute(query).fetchall()}


def _is_parquet(path: Path) -> bool:
    return files.is_parquet(path) or path.suffix.lower() in (".parquet", ".pq")


def _source(path: Path, needed: Sequence[str], work: Workspace, rejects: str) -> str:
    """One file, with at least the needed columns."""
    if _is_parquet(path):
        present = files.parquet_columns(path)
        files.require_columns(path, present, needed)
        lowered = [column.lower() for column in present]
        if twins := [column for column in needed if lowered.count(column.lower()) > 1]:
            raise InputError(f"{path}: two columns are called {twins[0]!r} but for upper and lower case; rename one")
        return parquet_sql(path)
    text = files.inspect_text(path, work.scratch)
    headers = {delimiter: text.header(delimiter) for delimiter in DELIMITERS}
    fitting = [delimiter for delimiter in DELIMITERS if set(needed) <= set(headers[delimiter])]
    delimiter = fitting[0] if fitting else max(DELIMITERS, key=lambda d: (len(headers[d]), d == ","))
    files.require_columns(path, headers[delimiter], needed)
    return f"({csv_sql(text, headers[delimiter], needed, delimiter=delimiter, rejects=rejects)})"


def _load_items(items: ItemTable, item_column: str, work: Workspace) -> None:
    """The item table, read once: `item_table` holds ITEM_KEY, the features as text or lists of text, and TITLE."""
    given, key = files.as_paths(items.paths), items.key or item_column
    paths = files.require_files(files.find_files(given, ITEM_PATTERNS, work.scratch), "items", given, ITEM_PATTERNS)
    columns = list(dict.fromkeys([key, *items.features, *([items.title] if items.title else [])]))
    if len({column.lower() for column in columns}) < len(columns):
        raise OptionError(f"items: of the columns {', '.join(columns)} two differ only in case; rename one")
    sources = [_source(path, columns, work, "item") for path in paths]
    kinds = [_kinds(columns, source, work) for source in sources]
    lists = [feature for feature in items.features if any(kind[feature].endswith("[]") for kind in kinds)]

    def picked(kind: Mapping[str, str]) -> str:
        sql = {column: f"({entity_name_sql(sql_identifier(column), kind[column])})::VARCHAR" for column in columns}
        for feature in lists:  # what is a list in one file becomes one in all
            split = f"string_split({sql[feature]}, {sql_string(items.separator)})"
            sql[feature] = f"{sql_identifier(feature)}::VARCHAR[]" if kind[feature].endswith("[]") else split
        named = [
            f"{sql[key]} AS {sql_identifier(ITEM_KEY)}",
            *(f"{sql[feature]} AS {sql_identifier(feature)}" for feature in items.features),
        ]
        return ", ".join([*named, f"{sql[items.title] if items.title else 'NULL::VARCHAR'} AS {sql_identifier(TITLE)}"])

    table = " UNION ALL ".join(f"SELECT {picked(kind)} FROM {source}" for source, kind in zip(sources, kinds, strict=True))
    work.connection.execute(f"CREATE TEMP TABLE item_table AS {table}")


def _features(items: ItemTable, work: Workspace) -> str:
    kinds, columns = _kinds(items.features, "item_table", work), [sql_identifier(ITEM_KEY)]
    for feature in items.features:
        column, separator = sql_identifier(feature), sql_string(items.separator)
        if not kinds[feature].endswith("[]") and items.separator and _holds(work, column, separator):
            columns.append(f"list_transform(string_split({column}, {separator}), lambda v: trim(v)) AS {column}")
        else:
            columns.append(column)
    return f"SELECT {', '.join(columns)} FROM item_table"


def _holds(work: Workspace, column: str, separator: str) -> bool:
    query = f"SELECT count(*) FROM item_table WHERE contains({column}, {separator})"
    return bool(work.connection.execute(query).fetchall()[0][0])
