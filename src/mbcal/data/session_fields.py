"""Fields of users and of steps in DuckDB: declared from typed columns, then encoded by SQL.

::

    context columns of the log ──▶ kinds (feature_kinds) ──┐
    user table                 ──▶ kinds                 ──┴▶ vocabularies, means, deviations, lengths ──▶ Fields
                                                             of the parts simulator and train               │
    rows of the log, users     ──▶ codes, standardised numbers, vectors  ◀──────────────────────────────────┘

A typed column is VARCHAR for a category, FLOAT for a number, FLOAT[] for a vector. Nothing of the test part enters a field,
unless there is no other part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mbcal.data.feature_kinds import KindFinder
from mbcal.data.source import CONTEXT, USER_KEY
from mbcal.data.sql import sql_identifier
from mbcal.errors import InputError
from mbcal.storage.field_columns import CONTEXT_PREFIX, USER_PREFIX, field_rows
from mbcal.types import NO_FIELDS, FeatureKind, Field, Fields
from mbcal.types.field import MAX_DEVIATIONS, MAX_LENGTH, MAX_VALUES

if TYPE_CHECKING:
    import duckdb

DIGITS = 6
"""Significant digits of means and deviations: sums in another order differ after them."""
_LEARNED, _TRAINED = "#learned", "#trained"
"""Columns of a SELECT of typed values: whether a row is of the part simulator or train, and whether it is of train."""
_KINDS: Mapping[str, FeatureKind] = {"VARCHAR": "category", "FLOAT": "number", "FLOAT[]": "vector"}


def context_fields(
    declared: Mapping[str, FeatureKind | None],
    connection: duckdb.DuckDBPyConnection,
    in_part: str = "",
    known: Fields = NO_FIELDS.context,
) -> Fields:
    """Declare the context columns of a log.

    Args:
        declared: Column -> kind, or None if it is inferred.
        connection: Has the tables `accepted` and `users`.
        in_part: Condition on rows that belong to the part of their user, as `WHERE …`; empty for all.
        known: Fields of the store that the log continues; see `continued_fields`.

    Raises:
        InputError: If a value is not of its kind or of that of a known field, or vectors are not of one length.
    """
    kinds = {one.name: one.kind for one in known}
    selected = ", ".join(f"{sql_identifier(CONTEXT + name)} AS {sql_identifier(name)}" for name in declared)
    flags = f"part < 2 AS {sql_identifier(_LEARNED)}, part = 1 AS {sql_identifier(_TRAINED)}"
    connection.execute(f"""
        CREATE OR REPLACE TEMP VIEW context_rows AS
        SELECT {selected}, {flags} FROM accepted JOIN users USING ("user") {in_part}""")
    types = {row[0]: row[1] for row in connection.execute("DESCRIBE context_rows").fetchall()}
    finder = KindFinder(connection, "context_rows", types, (), "")
    columns = ", ".join(
        finder.select_sql(name, kind) for name, kind in ((name, kind or kinds.get(name)) for name, kind in declared.items())
    )
    flags = f"{sql_identifier(_LEARNED)}, {sql_identifier(_TRAINED)}"
    return continued_fields(
        _declare(f"SELECT {columns}, {flags} FROM context_rows", "context", connection), known, "context"
    )


def continued_fields(fields: Fields, known: Fields, subject: str) -> Fields:
    """Return fields as a store has them that their log continues: new values of a category get the next codes.

    Numbers are standardised as in the store. Fields that the store does not have are new.

    Raises:
        InputError: If a field is of another kind than in the store, or its vectors of another length.
    """
    known_fields, continued = {one.name: one for one in known}, []
    for one in fields:
        before = known_fields.get(one.name, one)
        if (before.kind, before.length) != (one.kind, one.length):
            rule = (
                f"{subject}: {one.name!r} is {one.describe()} in the log and {before.describe()} in the store it continues"
            )
            raise InputError(f"{rule}; declare it with the same kind, or leave it out")
        continued.append(before.extended(one.vocabulary))
    return Fields(tuple(continued))


def user_fields(
    users_sql: str, connection: duckdb.DuckDBPyConnection, known: Fields = NO_FIELDS.user
) -> tuple[Fields, NDArray[np.float32]]:
    """Declare and encode the columns of a user table. A user with several rows has the smallest of the values.

    Args:
        users_sql: SELECT of USER_KEY and typed columns.
        connection: Has the table `users`.
        known: Fields of the store that the log continues; see `continued_fields`.

    Returns:
        The fields, and the encoded rows of all users (U, W) in their order.

    Raises:
        InputError: If no user of the log is in the table, vectors are not of one length, or a known field is of another
            kind.
    """
    key = sql_identifier(USER_KEY)
    names = [row[0] for row in connection.execute(f"DESCRIBE {users_sql}").fetchall() if row[0] != USER_KEY]
    values = ", ".join(f"min({sql_identifier(name)}) AS {sql_identifier(name)}" for name in names)
    connection.execute(f"CREATE TEMP TABLE user_values AS SELECT {key}, {values} FROM ({users_sql}) GROUP BY {key}")
    if not connection.execute(f"SELECT count(*) FROM users SEMI JOIN user_values ON {key} = name").fetchall()[0][0]:
        raise InputError("no user of the log is in the user table; check that both name users alike (--users-key)")
    flags = f"part < 2 AS {sql_identifier(_LEARNED)}, part = 1 AS {sql_identifier(_TRAINED)}"
    listed = ", ".join(sql_identifier(name) for name in names)
    fields = _declare(
        f"SELECT {listed}, {flags} FROM users LEFT JOIN user_values ON {key} = name", "user-features", connection
    )
    fields = continued_fields(fields, known, "user-features")
    columns, joins = encoded_sql(fields, {name: sql_identifier(name) for name in names}, USER_PREFIX, connection)
    rows = f"SELECT {columns} FROM users LEFT JOIN user_values ON {key} = name {joins} ORDER BY u"
    return fields, field_rows(fields, connection.sql(rows).to_arrow_table(), USER_PREFIX)


def encoded_context_sql(fields: Fields, connection: duckdb.DuckDBPyConnection) -> tuple[str, str]:
    """Return columns and joins that encode the context columns of `accepted`; both empty if there are no fields."""
    if not len(fields):
        return "", ""
    columns = {name: f"accepted.{sql_identifier(CONTEXT + name)}" for name in fields.names}
    selected, joins = encoded_sql(fields, columns, CONTEXT_PREFIX, connection)
    return f", {selected}", joins


def encoded_sql(
    fields: Fields, columns: Mapping[str, str], prefix: str, connection: duckdb.DuckDBPyConnection
) -> tuple[str, str]:
    """Return columns as `storage.field_columns` has them, and the joins that they need.

    Args:
        fields: At least one.
        columns: Field -> expression of its raw or typed value.
        prefix: What the names of the columns begin with.
        connection: Gets a table of the codes of every category.
    """
    selected, joins = [], ""
    for number, field in enumerate(fields):
        value = columns[field.name]
        if field.kind == "category":
            codes = sql_identifier(f"{prefix}codes_{number}")
            vocabulary = pa.array(field.vocabulary, pa.string())
            numbers = pa.array(range(1, len(vocabulary) + 1), pa.int32())
            connection.register(f"{prefix}codes_{number}", pa.table({"known_value": vocabulary, "known_code": numbers}))
            joins += f" LEFT JOIN {codes} ON {codes}.known_value = {value}::VARCHAR"
            encoded = f"coalesce({codes}.known_code, 0)::INTEGER"
        elif field.kind == "number":
            scaled = f"({_number_sql(value)}::DOUBLE - {field.mean!r}::DOUBLE) / {field.deviation!r}::DOUBLE"
            encoded = f"greatest(least({scaled}, {MAX_DEVIATIONS}), {-MAX_DEVIATIONS})::FLOAT"
            encoded = f"CASE WHEN {_number_sql(value)} IS NOT NULL THEN {encoded} END"
        else:
            vector = f"try_cast({value} AS FLOAT[])"
            encoded = f"CASE WHEN len({vector}) = {field.length} THEN {vector} END"
        selected.append(f"{encoded} AS {sql_identifier(prefix + field.name)}")
    return ", ".join(selected), joins


def _number_sql(value: str) -> str:
    number = f"try_cast({value} AS DOUBLE)"
    return f"CASE WHEN abs({number}) < 3e38 THEN {number}::FLOAT END"


def _declare(typed_sql: str, subject: str, connection: duckdb.DuckDBPyConnection) -> Fields:
    """Declare the typed columns of a SELECT, which also has `_LEARNED` and `_TRAINED`."""
    fields = []
    for name, column_type, *_ in connection.execute(f"DESCRIBE {typed_sql}").fetchall():
        if name in (_LEARNED, _TRAINED):
            continue
        kind = _KINDS.get(column_type)
        if kind is None:
            raise InputError(f"{subject}: {name!r} holds {column_type}; a user or step has one value of a category")
        column = sql_identifier(name)
        if kind == "category":
            fields.append(Field(name, kind, vocabulary=_vocabulary(column, typed_sql, connection)))
        elif kind == "number":
            mean, deviation = _statistics(column, typed_sql, connection)
            fields.append(Field(name, kind, mean=mean, deviation=deviation))
        else:
            fields.append(Field(name, kind, length=_length(name, typed_sql, subject, connection)))
    return Fields(tuple(fields))


def _vocabulary(column: str, typed_sql: str, connection: duckdb.DuckDBPyConnection) -> tuple[str, ...]:
    """The most frequent values, shortest first (so that whole numbers are in order)."""
    for of_part in (f"AND {sql_identifier(_LEARNED)}", ""):
        query = f"""SELECT {column}, count(*) AS n FROM ({typed_sql}) WHERE {column} IS NOT NULL {of_part}
                    GROUP BY {column} ORDER BY n DESC, {column} LIMIT {MAX_VALUES}"""
        values = [value for value, _ in connection.execute(query).fetchall()]
        if values:
            break
    return tuple(sorted(values, key=lambda value: (len(value), value)))


def _statistics(column: str, typed_sql: str, connection: duckdb.DuckDBPyConnection) -> tuple[float, float]:
    """Mean and deviation over the train part; over what there is if it has no values."""
    for of_part in (f"WHERE {sql_identifier(_TRAINED)}", f"WHERE {sql_identifier(_LEARNED)}", ""):
        query = f"SELECT count({column}), favg({column}), stddev_pop({column}) FROM ({typed_sql}) {of_part}"
        count, mean, deviation = connection.execute(query).fetchall()[0]
        if count:
            rounded = float(f"{deviation:.{DIGITS}g}")
            return float(f"{mean:.{DIGITS}g}"), rounded if rounded > 0 else 1.0
    return 0.0, 1.0


def _length(name: str, typed_sql: str, subject: str, connection: duckdb.DuckDBPyConnection) -> int:
    column = sql_identifier(name)
    query = f"SELECT len({column}) AS length, count(*) AS n FROM ({typed_sql}) WHERE {column} IS NOT NULL GROUP BY length"
    lengths: list[tuple[Any, ...]] = sorted(connection.execute(query).fetchall(), key=lambda row: (-row[1], row[0]))
    if len(lengths) != 1 or not 1 <= lengths[0][0] <= MAX_LENGTH:
        found = " and ".join(str(length) for length, _ in lengths[:2]) or "no"
        raise InputError(f"{subject}: vectors of {name!r} have {found} numbers; give all one length, up to {MAX_LENGTH}")
    bad = f"SELECT count(*) FROM ({typed_sql}) WHERE len(list_filter({column}, lambda v: v IS NULL OR NOT isfinite(v))) > 0"
    if connection.execute(bad).fetchall()[0][0]:
        raise InputError(f"{subject}: vectors of {name!r} hold NaN or infinity; leave such a vector out, it is then missing")
    return int(lengths[0][0])
