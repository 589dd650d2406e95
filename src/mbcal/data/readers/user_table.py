"""A table of users: one column names the user, others become fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mbcal.data.feature_kinds import FRACTIONS, KindFinder, is_list, split_kinds
from mbcal.data.files import Paths
from mbcal.data.frames import Frame
from mbcal.data.readers.table_files import column_kinds, open_described
from mbcal.data.source import USER_KEY
from mbcal.data.sql import entity_name_sql, plain_text_sql, sql_identifier
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError, OptionError

_TIMES = ("TIMESTAMP", "DATE")


@dataclass(frozen=True)
class UserTable:
    """A table of the fields of users. A user with several rows has the smallest of the values.

    Raises:
        OptionError: If a field is empty, reserved or named twice, or its kind is unknown.
    """

    source: Paths | Frame
    """Files, folders or zips; or a data frame."""
    features: Sequence[str]
    """Columns that become fields, each with its kind if that is not to be inferred: `["country", "age:number"]`."""
    key: str | None = None
    """Column that names the user; None if it is called as in the log."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that become fields, without kinds."""
        return split_kinds(self.features)[0]

    def __post_init__(self) -> None:
        lowered = [column.lower() for column in self.columns]  # DuckDB ignores case in names
        for column in self.columns:
            if column in ("", USER_KEY) or lowered.count(column.lower()) > 1:
                raise OptionError(f"user-features: {column!r} is empty, reserved or named twice; write each column once")
        if not self.columns:
            raise OptionError("user-features: none were named; write the columns to use, 'country,age:number'")


def create_user_table(users: UserTable, user_column: str, work: Workspace) -> str:
    """Create the table `user_table`, and return a SELECT of USER_KEY and the fields, each of a type that says its kind.

    Args:
        users: The table.
        user_column: Column that names the user in the log.
        work: Holds the DuckDB connection.

    Raises:
        InputError: If a file cannot be read or lacks a column, or a value is not of its declared kind.
    """
    key, (columns, kinds) = users.key or user_column, split_kinds(users.features)
    tables = open_described(users.source, "user", key, columns, work)
    types = {column: {table.kinds[column] for table in tables} for column in columns}

    def value(column: str, column_type: str) -> str:
        if types[column] <= set(FRACTIONS) and len(types[column]) == 1:
            return sql_identifier(column)
        if is_list(column_type):
            raise InputError(
                f"user-features: {column!r} holds {column_type}; a user has one value, or a vector of fractions"
            )
        return f"({plain_text_sql(sql_identifier(column), column_type)})::VARCHAR"

    def selected(found: Mapping[str, str]) -> str:
        name = f"({entity_name_sql(sql_identifier(key), found[key])})::VARCHAR AS {sql_identifier(USER_KEY)}"
        return ", ".join([name, *(f"{value(column, found[column])} AS {sql_identifier(column)}" for column in columns)])

    rows = " UNION ALL ".join(f"SELECT {selected(table.kinds)} FROM {table.from_sql}" for table in tables)
    work.connection.execute(f"CREATE TEMP TABLE user_table AS {rows}")
    times = {column for column, found in types.items() if all(kind.startswith(_TIMES) for kind in found)}
    finder = KindFinder(work.connection, "user_table", column_kinds(columns, "user_table", work), times, "")
    typed = ", ".join(finder.select_sql(column, kinds.get(column)) for column in columns)
    return f"SELECT {sql_identifier(USER_KEY)}, {typed} FROM user_table"
