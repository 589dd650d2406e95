"""RecBole's atomic files: `NAME.inter` (interactions), `NAME.item` and `NAME.user` (features), tabs and typed headers.

::

    user_id:token   item_id:token   rating:float   timestamp:float          item_id:token   class:token_seq   year:float
    196             242             3              881250949                242             Comedy Drama      1997
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mbcal.data import files
from mbcal.data.behaviour_rules import Labels, Levels
from mbcal.data.files import Paths
from mbcal.data.source import CONTEXT, ITEM_KEY, USER_KEY, LogDescription, LogFile
from mbcal.data.sql import csv_sql, finite_sql, sql_identifier
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError, OptionError
from mbcal.types import FeatureKind

WHERE = """\
RecBole publishes more than forty logs as atomic files (MovieLens, Amazon, Yelp, Steam, Diginetica, Tmall, …), under the
terms of their owners, at https://recbole.io/dataset_list.html.
Download one, then:  mbcal prepare recbole ml-100k.zip --out DIR"""

PATTERNS = {"inter": ["*.inter"], "item": ["*.item"], "user": ["*.user"]}
KINDS = ("token", "token_seq", "float", "float_seq")
"""Types of RecBole's columns: a category, several separated by spaces, a number, a vector."""
FIELD_KINDS: dict[str, FeatureKind] = {
    "token": "category",
    "float": "number",
    "float_seq": "vector",
    "token_seq": "category",
}
"""Type of a column -> kind of the field of steps that it becomes."""
BEHAVIOUR_COLUMNS = ("rating", "label")
"""Columns that are taken for the behaviour, the first that exists."""
CLICKS = Labels({"none": 0.0, "click": 1.0})
"""The rule of a log of clicks alone: every row is a `click`."""
MOST_VALUES = 12
"""Most distinct numbers that become labels without being named."""


@dataclass(frozen=True)
class RecBole:
    """A log in RecBole's atomic files.

    Without a rule, each distinct number of the behaviour column is a label whose reward is the number. A log without a
    behaviour column, or with one value in it, is a log of clicks.
    """

    paths: Paths
    """A folder, a zip or single files."""
    behaviour: str | None = None
    """Column with the behaviour; None for `rating` or `label`, if there is one."""
    rule: Labels | Levels | None = None
    """How the behaviour column becomes behaviours; None to take its numbers as they are."""
    user: str | None = None
    """Column that names the user; None for `user_id`, or `session_id` in a log of sessions without users."""
    item: str = "item_id"
    """Column that names the item, in `.inter` and `.item`."""
    time: str = "timestamp"
    """Column with the time."""
    session: str | None = None
    """Column that names the session, if the log has one."""
    features: Sequence[str] | None = None
    """Columns of the `.item` file that become features; None for all but the title."""
    user_features: Sequence[str] | None = None
    """Columns of the `.user` file that become fields of users; None for all but those with several categories."""
    context: Sequence[str] = ()
    """Columns of the `.inter` file that become fields of steps."""
    title: str | None = None
    """Column of the `.item` file with titles for display; None for the first whose name ends in `title` or `name`."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            InputError: If there is no `.inter` file, or a file cannot be read or lacks a column.
            OptionError: If the behaviour column needs a rule.
        """
        paths = files.as_paths(self.paths)
        found = files.find_files(paths, PATTERNS, work.scratch)
        logs = [_AtomicFile(path, work, "log") for path in files.require_files(found, "inter", paths, PATTERNS)]
        items = [_AtomicFile(path, work, "item") for path in found["item"]]
        users = [_AtomicFile(path, work, "user") for path in found["user"]]
        behaviour, rule = self._behaviours(logs, work)
        columns = {"user": self._user(logs[0]), "item": self.item, "time": self.time, "behaviour": behaviour}
        columns |= {} if self.session is None else {"session": self.session}
        columns |= {f"{CONTEXT}{column}": column for column in self.context}
        named = {role: column for role, column in columns.items() if column is not None}
        selected = ", ".join(f"{sql_identifier(column)} AS {sql_identifier(role)}" for role, column in named.items())
        if behaviour is None:
            selected += ", 'click' AS behaviour"
        title, features = self._item_columns(items)
        fields = self._user_columns(users, columns["user"] or "")
        return LogDescription(
            layout="recbole",
            files=tuple(LogFile(log.text.path, selected, f"({log.select(list(named.values()))})") for log in logs),
            rule=rule,
            features_sql=_features_sql(items, self.item, ITEM_KEY, features) if features else None,
            titles_sql=_titles_sql(items, self.item, title) if title else None,
            users_sql=_features_sql(users, columns["user"] or "", USER_KEY, fields) if fields else None,
            context={column: FIELD_KINDS[_kinds(logs)[column]] for column in self.context},
            options={"columns": named, "features": list(features)},
        )

    def _user(self, log: _AtomicFile) -> str:
        if self.user is not None:
            return self.user
        return "session_id" if "user_id" not in log.header and "session_id" in log.header else "user_id"

    def _behaviours(self, logs: Sequence[_AtomicFile], work: Workspace) -> tuple[str | None, Labels | Levels]:
        """Return the column with the behaviour, None if every row is a click, and its rule."""
        present = [column for column in BEHAVIOUR_COLUMNS if all(column in log.header for log in logs)]
        column = self.behaviour or (present[0] if present else None)
        if column is None:
            return None, self.rule or CLICKS
        if self.rule is not None:
            return column, self.rule
        rows = " UNION ALL ".join(log.select([column]) for log in logs)
        number = finite_sql(sql_identifier(column))
        query = f"SELECT DISTINCT {number} AS v FROM ({rows}) WHERE {number} IS NOT NULL ORDER BY v LIMIT {MOST_VALUES + 1}"
        values = [row[0] for row in work.connection.execute(query).fetchall()]
        if not values:
            raise OptionError(f"rewards: column {column!r} holds no numbers; give a reward for each label: click=1,buy=5")
        if len(values) > MOST_VALUES:
            raise OptionError(
                f"levels: column {column!r} has more than {MOST_VALUES} distinct numbers; give cut points: 0.5,3,10"
            )
        if len(values) == 1:
            return None, CLICKS
        return column, Labels({f"{value:.15g}": value for value in values})

    def _item_columns(self, items: Sequence[_AtomicFile]) -> tuple[str | None, dict[str, str]]:
        """Return the column with titles, and the kinds of the columns that become features."""
        kinds = {column: kind for column, kind in _kinds(items).items() if column != self.item}
        named = [*(self.features or ()), *([self.title] if self.title is not None else [])]
        files.require_columns(items[0].text.path if items else "the .item file", list(kinds), named)
        titles = [column for column in kinds if column.endswith(("title", "name"))]
        title = self.title or (titles[0] if titles else None)
        chosen = [column for column in kinds if column != title] if self.features is None else self.features
        return title, {column: kinds[column] for column in chosen}

    def _user_columns(self, users: Sequence[_AtomicFile], user: str) -> dict[str, str]:
        """Return the kinds of the columns that become fields of users, which have one value each."""
        kinds = {column: kind for column, kind in _kinds(users).items() if column != user}
        if self.user_features is None:
            return {column: kind for column, kind in kinds.items() if kind != "token_seq"}
        files.require_columns(users[0].text.path if users else "the .user file", list(kinds), self.user_features)
        for column in self.user_features:
            if kinds[column] == "token_seq":
                raise OptionError(f"user-features: {column!r} holds several categories, and a user has one; leave it out")
        return {column: kinds[column] for column in self.user_features}


class _AtomicFile:
    """One atomic file; its header gives the name and the type of every column."""

    def __init__(self, path: Path, work: Workspace, rejects: str) -> None:
        self.text = files.inspect_text(path, work.scratch)
        self.rejects = rejects
        typed = [column.rpartition(":") for column in self.text.header("\t")]
        if any(not colon or kind not in KINDS for _, colon, kind in typed):
            raise InputError(
                f"{path}: the first line is not a header of RecBole; its columns are NAME:TYPE, separated by tabs"
            )
        self.kinds = {name: kind for name, _, kind in typed}
        self.header = [name for name, _, _ in typed]

    def select(self, columns: Sequence[str]) -> str:
        """Return a SELECT of some columns as text; raises InputError if one is missing."""
        files.require_columns(self.text.path, self.header, columns)
        distinct = list(dict.fromkeys(columns))
        return csv_sql(self.text, self.header, distinct, delimiter="\t", quoted=False, rejects=self.rejects)


def _kinds(tables: Sequence[_AtomicFile]) -> dict[str, str]:
    """Return the RecBole types of the columns of several files."""
    return {column: kind for table in tables for column, kind in table.kinds.items()}


def _features_sql(tables: Sequence[_AtomicFile], named: str, key: str, features: dict[str, str]) -> str:
    """Return a SELECT of the features of all files; a file may lack a column.

    Args:
        tables: The files.
        named: Column that names the item or user.
        key: What it is called in the result: ITEM_KEY or USER_KEY.
        features: Column -> RecBole type.
    """
    selects = []
    for table in tables:
        present = [feature for feature in features if feature in table.kinds]
        columns = {feature: sql_identifier(feature) if feature in present else "NULL::VARCHAR" for feature in features}
        values = [f"{_value_sql(columns[feature], kind)} AS {sql_identifier(feature)}" for feature, kind in features.items()]
        name = f"{sql_identifier(named)} AS {sql_identifier(key)}"
        selects.append(f"SELECT {', '.join([name, *values])} FROM ({table.select([named, *present])})")
    return " UNION ALL ".join(selects)


def _value_sql(column: str, kind: str) -> str:
    """Return an expression for a value of a RecBole type; empty and unreadable values are missing."""
    if kind == "token_seq":
        return f"string_split({column}, ' ')"
    if kind == "float":
        return f"({finite_sql(column)})::FLOAT"
    if kind == "float_seq":
        return f"try_cast(string_split(nullif(trim({column}), ''), ' ') AS FLOAT[])"
    return f"nullif(trim({column}), '')"


def _titles_sql(items: Sequence[_AtomicFile], item: str, title: str) -> str:
    select = f"SELECT {sql_identifier(item)} AS {sql_identifier(ITEM_KEY)}, nullif({sql_identifier(title)}, '') AS title"
    return " UNION ALL ".join(f"{select} FROM ({table.select([item, title])})" for table in items if title in table.kinds)
