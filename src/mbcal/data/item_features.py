"""The catalogue of a log in DuckDB: every item that occurs in it, joined with titles and features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mbcal.data.source import ITEM_KEY, LogDescription
from mbcal.data.sql import sql_identifier
from mbcal.errors import InputError
from mbcal.storage.catalog_io import PREFIX, vector_column

if TYPE_CHECKING:
    import duckdb

VECTOR = "FLOAT[]"
"""DuckDB type of the vectors of a feature."""
_CONFLICT = sql_identifier("#conflict")
"""Column of the table `features`: whether an item's rows contradict each other."""


def create_item_catalog(log: LogDescription, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Return the items of the table `items` in their order, with titles and features.

    An item may occur in the item table more than once: it gets the smallest of its titles and single values, and all of its
    multiple values.

    Args:
        log: Has the SELECTs of titles and features.
        connection: Has the table `items`.

    Returns:
        Columns `item`, `title` if there are titles, and `feature:NAME` for each feature, as `storage.catalog_io` reads them.

    Raises:
        InputError: If no item has features, or vectors are not of one length or not finite.
    """
    selected, joins, key = ["items.name AS item"], "", sql_identifier(ITEM_KEY)
    vectors: list[str] = []
    if log.titles_sql is not None:
        titles = f"SELECT {key}, min(title) AS title FROM ({log.titles_sql}) GROUP BY {key}"
        selected.append("titles.title")
        joins += f" LEFT JOIN ({titles}) titles ON titles.{key} = items.name"
    if log.features_sql is not None:
        types = _create_features(log.features_sql, connection)
        selected += [f"features.{sql_identifier(column)}" for column in types]
        joins += f" LEFT JOIN features ON features.{key} = items.name"
        vectors = [column for column, column_type in types.items() if column_type == VECTOR]
    query = f"SELECT {', '.join(selected)} FROM items{joins} ORDER BY items.i"
    table = connection.sql(query).to_arrow_table()
    for column in vectors:
        index = table.column_names.index(column)
        table = table.set_column(index, column, _fixed_size(column, table[column]))
    return table


def count_item_conflicts(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many items of the log have rows in the item table that contradict each other in a single-valued feature.

    Args:
        connection: Has the tables `items` and `features`.
    """
    matched = f"features.{sql_identifier(ITEM_KEY)} = items.name AND features.{_CONFLICT}"
    return int(connection.execute(f"SELECT count(*) FROM items SEMI JOIN features ON {matched}").fetchall()[0][0])


def _create_features(features_sql: str, connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Create the table `features`, one row per item; returns its feature columns and their types."""
    key = sql_identifier(ITEM_KEY)
    aggregates, types, conflicts = {}, {}, ["false"]
    for column, column_type, *_ in connection.execute(f"DESCRIBE {features_sql}").fetchall():
        if column == ITEM_KEY:
            continue
        name, value = f"{PREFIX}{column}", sql_identifier(column)
        types[name] = column_type
        if column_type.endswith("[]") and column_type != VECTOR:
            aggregates[name] = f"list_sort(list_distinct(list_filter(flatten(list({value})), lambda v: v <> '')))"
        else:
            aggregates[name] = f"min({value})"
            conflicts.append(f"coalesce(min({value}) <> max({value}), false)")
    conflict = f"{' OR '.join(conflicts)} AS {_CONFLICT}"
    columns = [f"{aggregate} AS {sql_identifier(name)}" for name, aggregate in aggregates.items()]
    selected = ", ".join([key, conflict, *columns])
    connection.execute(f"CREATE TEMP TABLE features AS SELECT {selected} FROM ({features_sql}) GROUP BY {key}")
    matched = f"SELECT count(*) FROM items SEMI JOIN features ON features.{key} = items.name"
    if connection.execute(matched).fetchall()[0][0] == 0:
        raise InputError("no item of the log is in the item table; check that both name items alike (--items-key)")
    for name, column_type in types.items():
        if column_type == VECTOR:
            _require_vectors(name, connection)
    return types


def _require_vectors(column: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Raise InputError if the vectors of a column of `features` are not of one length, or not finite."""
    name, value, key = column.removeprefix(PREFIX), sql_identifier(column), sql_identifier(ITEM_KEY)
    lengths = (
        f"SELECT len({value}), min({key}), count(*) FROM features WHERE {value} IS NOT NULL GROUP BY 1 ORDER BY 3 DESC, 1"
    )
    found = connection.execute(lengths).fetchall()
    if not found:
        raise InputError(f"feature {name!r}: no item has a vector; leave the column out, or check what it holds")
    if len(found) > 1:
        (usual, _, _), (length, item, _) = found[:2]
        problem = f"feature {name!r}: the vector of item {item!r} has {length} numbers, most have {usual}"
        raise InputError(f"{problem}; repair it or leave it out")
    is_bad = f"len(list_filter({value}, lambda v: v IS NULL OR NOT isfinite(v))) > 0"
    item = connection.execute(f"SELECT min({key}) FROM features WHERE {is_bad}").fetchall()[0][0]
    if item is not None:
        raise InputError(f"feature {name!r}: the vector of item {item!r} holds NaN or infinity; repair it or leave it out")


def _fixed_size(column: str, lists: pa.ChunkedArray) -> pa.Array:
    """A column of lists of one length as `storage.catalog_io` has vectors."""
    present = ~lists.is_null().to_numpy()
    if not present.any():
        name = column.removeprefix(PREFIX)
        raise InputError(f"feature {name!r}: no item of the log has a vector; check that both tables name items alike")
    numbers = lists.combine_chunks().flatten().to_numpy()
    vectors = np.full((len(lists), len(numbers) // int(present.sum())), np.nan, np.float32)
    vectors[present] = numbers.reshape(-1, vectors.shape[1])
    return vector_column(vectors)
