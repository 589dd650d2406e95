"""A log of any origin: Parquet, CSV (plain or gzipped) or a data frame, with the column names given."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mbcal.data.behaviour_rules import Labels, Levels, NextClick
from mbcal.data.clicks import CLICK, CLICKS_ONLY, NEXT_CLICK
from mbcal.data.feature_kinds import FRACTIONS, KindFinder, is_list, split_kinds
from mbcal.data.files import Paths
from mbcal.data.frames import Frame
from mbcal.data.readers.table_files import OpenTable, column_kinds, open_described, open_tables
from mbcal.data.readers.user_table import UserTable, create_user_table
from mbcal.data.source import CONTEXT, ITEM_KEY, LogDescription, LogFile
from mbcal.data.sql import TimeUnit, entity_name_sql, plain_text_sql, sql_identifier, sql_string
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError, OptionError
from mbcal.types import FeatureKind

TITLE = "#title"
"""Name of the title column in DuckDB: not a name a feature would have."""


@dataclass(frozen=True)
class ItemTable:
    """A table of item features and titles.

    A feature is a category, a number or a vector, which is inferred from its values (`data.feature_kinds`) unless it is
    declared: `"words:number"`. Categories in a list column (Parquet, frames) are multi-valued, and so are those in a text
    column in which any value holds the separator.

    Raises:
        OptionError: If a feature is empty, reserved or named twice, or its kind is unknown.
    """

    source: Paths | Frame
    """Files, folders or zips; or a data frame."""
    features: Sequence[str]
    """Columns that become features, each with its kind if that is not to be inferred: `["category", "words:number"]`."""
    key: str | None = None
    """Column that names the item; None if it is called as in the log."""
    separator: str = "|"
    """Separates the values of a multi-valued text column; empty if there is none."""
    title: str | None = None
    """Column with a title for display."""
    default_kinds: Mapping[str, FeatureKind] = field(default_factory=dict)
    """Kinds of columns that are neither declared nor inferred, such as those of a store that this log continues."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that become features, without kinds."""
        return split_kinds(self.features)[0]

    @property
    def kinds(self) -> dict[str, FeatureKind]:
        """Column -> kind, where it is not inferred."""
        return {**self.default_kinds, **split_kinds(self.features)[1]}

    def __post_init__(self) -> None:
        lowered = [feature.lower() for feature in self.columns]  # DuckDB ignores case in names
        for feature in self.columns:
            if feature in ("", ITEM_KEY, TITLE) or lowered.count(feature.lower()) > 1:
                raise OptionError(f"features: {feature!r} is empty, reserved or named twice; write each column once")


def parse_rewards(text: str) -> dict[str, float]:
    """Parse `skip=0,click=1,like=5`.

    Raises:
        OptionError: If an entry is not LABEL=NUMBER, or a label is named twice.
    """
    rewards: dict[str, float] = {}
    for entry in next(csv.reader([text], skipinitialspace=True)):
        label, equals, reward = entry.rpartition("=")
        try:
            if not equals or label.strip() in rewards:
                raise ValueError
            rewards[label.strip()] = float(reward)
        except ValueError:
            raise OptionError(f"rewards: {entry!r} is not a new LABEL=NUMBER; write skip=0,click=1,like=5") from None
    return rewards


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Parse `0.5,3,10`.

    Args:
        option: Name of the option, for the message.
        text: The list.

    Raises:
        OptionError: If an entry is not a number.
    """
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        example = {"split": "0.4,0.4,0.2", "levels": "0.5,3,10"}.get(option, "0,1,2")
        raise OptionError(f"{option}: {text!r} is not a list of numbers; write {example}, for instance") from None


@dataclass(frozen=True)
class TableLog:
    """A log of any origin, and the names of its columns."""

    source: Paths | Frame
    """Files, folders or zips; or a data frame."""
    user: str
    item: str
    time: str
    behaviour: str | None
    """Column; None if every row is a click, `next-click` to derive dwell from the next one."""
    rule: Labels | Levels | NextClick
    """How the behaviour column becomes behaviours."""
    session: str | None = None
    propensity: str | None = None
    items: ItemTable | None = None
    """Item features and titles."""
    context: Sequence[str] = ()
    """Columns that describe steps, each with its kind if that is not to be inferred: `["device", "hour:number"]`."""
    users: UserTable | None = None
    """Fields of users."""
    time_unit: TimeUnit = "auto"
    time_format: str | None = None
    """strptime format of the time column."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            OptionError: If a column is named for two purposes, or the time format is not valid.
            InputError: If a file cannot be read or lacks a column.
        """
        roles = {role: getattr(self, role) for role in ("user", "item", "time", "behaviour", "session", "propensity")}
        columns = {role: column for role, column in roles.items() if column is not None}
        if columns.get("behaviour") == NEXT_CLICK:
            del columns["behaviour"]
        names, kinds = split_kinds(self.context)
        columns |= {f"{CONTEXT}{name}": name for name in names}
        self._require_distinct(columns)
        if self.time_format is not None:
            _require_valid_format(self.time_format, work)
        log_files = _log_files(self.source, columns, work)
        features_sql = titles_sql = None
        if self.items is not None:
            times = _create_item_table(self.items, self.item, work)
            features_sql = _features_sql(self.items, times, work) if self.items.features else None
            if self.items.title:
                titles_sql = f"SELECT {sql_identifier(ITEM_KEY)}, {sql_identifier(TITLE)} AS title FROM item_table"
        options: dict[str, Any] = {}
        if names:
            options["context"] = list(names)
        if self.users is not None:
            options["user_features"] = list(self.users.columns)
        return LogDescription(
            layout="table",
            files=log_files,
            rule=self.rule,
            features_sql=features_sql,
            titles_sql=titles_sql,
            users_sql=None if self.users is None else create_user_table(self.users, self.user, work),
            context={name: kinds.get(name) for name in names},
            time_unit=self.time_unit,
            time_format=self.time_format,
            options={
                "columns": columns,
                "features": [] if self.items is None else list(self.items.columns),
                "time_unit": self.time_unit,
                "time_format": self.time_format,
                **({} if "behaviour" in columns else {CLICKS_ONLY: True}),
                **options,
            },
        )

    def _require_distinct(self, columns: Mapping[str, str]) -> None:
        if self.user == self.item:
            raise OptionError(f"item: {self.item!r} is the user column too; name another")
        distinct = set(columns.values())
        if len({column.lower() for column in distinct}) < len(distinct):
            raise OptionError(f"columns {', '.join(sorted(distinct))}: two differ only in case; rename one in the log")


def _require_valid_format(time_format: str, work: Workspace) -> None:
    import duckdb

    try:
        work.connection.execute("SELECT try_strptime('', ?)", [time_format])
    except duckdb.Error as error:
        problem = str(error).splitlines()[0].rpartition(": ")[2]
        raise OptionError(f"time-format: {time_format!r} is not a strptime format ({problem})") from error


def _log_files(source: Paths | Frame, columns: Mapping[str, str], work: Workspace) -> tuple[LogFile, ...]:
    """Open the files of a log. If their types differ, such as for Parquet beside text, all values are read as text."""
    tables = open_tables(source, "log", list(dict.fromkeys(columns.values())), work)
    single = [column for role, column in columns.items() if not role.startswith(CONTEXT)]
    for column, kind in ((column, table.kinds[column]) for table in tables for column in single):
        if re.search(r"\]$|^(STRUCT|MAP|BLOB)", kind):
            raise InputError(f"column {column!r} holds {kind}; a log's columns must hold one plain value each")
    same_types = all(table.kinds == tables[0].kinds for table in tables)
    lists = [column for column in columns.values() if any(is_list(table.kinds[column]) for table in tables)]

    def selected(table: OpenTable, role: str, column: str) -> str:
        value = sql_identifier(column)
        if not same_types and column in lists:
            value = f"try_cast({value} AS DOUBLE[])"
        elif not same_types:
            value = f"({plain_text_sql(value, table.kinds[column])})::VARCHAR"
        return f"{value} AS {sql_identifier(role)}"

    every_row = () if "behaviour" in columns else (f"{sql_string(CLICK)} AS behaviour",)
    return tuple(
        LogFile(
            table.path,
            ", ".join([*(selected(table, role, column) for role, column in columns.items()), *every_row]),
            table.from_sql,
            table.is_parquet,
        )
        for table in tables
    )


def _create_item_table(items: ItemTable, item_column: str, work: Workspace) -> set[str]:
    """Create `item_table`: ITEM_KEY, the features as text, lists of text or of fractions, and TITLE; returns its times."""
    key = items.key or item_column
    columns = list(dict.fromkeys([key, *items.columns, *([items.title] if items.title else [])]))
    if len({column.lower() for column in columns}) < len(columns):
        raise OptionError(f"items: of the columns {', '.join(columns)} two differ only in case; rename one")
    tables = open_described(items.source, "item", key, columns, work)
    types = {feature: {table.kinds[feature] for table in tables} for feature in items.columns}
    # a column that is a list in one file becomes one in all
    lists = [feature for feature in items.columns if any(map(is_list, types[feature]))]
    fractions = [feature for feature in lists if types[feature] <= set(FRACTIONS) and len(types[feature]) == 1]

    def selected(kinds: Mapping[str, str]) -> str:
        values = {column: f"({plain_text_sql(sql_identifier(column), kinds[column])})::VARCHAR" for column in columns}
        for feature in lists:
            split = f"string_split({values[feature]}, {sql_string(items.separator)})"
            values[feature] = f"{sql_identifier(feature)}::VARCHAR[]" if is_list(kinds[feature]) else split
        values |= {feature: sql_identifier(feature) for feature in fractions}
        features = [f"{values[feature]} AS {sql_identifier(feature)}" for feature in items.columns]
        title = values[items.title] if items.title else "NULL::VARCHAR"
        name = f"({entity_name_sql(sql_identifier(key), kinds[key])})::VARCHAR"
        return ", ".join([f"{name} AS {sql_identifier(ITEM_KEY)}", *features, f"{title} AS {sql_identifier(TITLE)}"])

    rows = " UNION ALL ".join(f"SELECT {selected(table.kinds)} FROM {table.from_sql}" for table in tables)
    work.connection.execute(f"CREATE TEMP TABLE item_table AS {rows}")
    return {feature for feature, found in types.items() if all(kind.startswith(("TIMESTAMP", "DATE")) for kind in found)}


def _features_sql(items: ItemTable, times: set[str], work: Workspace) -> str:
    """Return a SELECT of ITEM_KEY and the features, each of a type that says its kind."""
    types = column_kinds(items.columns, "item_table", work)
    finder = KindFinder(work.connection, "item_table", types, times, items.separator)
    columns = [finder.select_sql(feature, items.kinds.get(feature)) for feature in items.columns]
    return f"SELECT {', '.join([sql_identifier(ITEM_KEY), *columns])} FROM item_table"
