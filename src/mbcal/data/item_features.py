"""The catalogue of a log in DuckDB: every item that occurs in it, joined with titles and features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from mbcal.data.source import ITEM_KEY, LogDescription
from mbcal.data.sql import sql_identifier
from mbcal.errors import InputError

if TYPE_CHECKING:
    import duckdb

_CONFLICT = sql_identifier("#conflict")
"""Column of the table `features`: whether an item's rows contradict each other."""


def create_item_catalog(log: LogDescription, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """Return the items of the table `items` in their order, with titles and features as text.

    An item may occur in the item table more than once: it gets the smallest of its titles and single values, and all of its
    multiple values.

    Args:
        log: Has the SELECTs of titles and features.
        connection: Has the table `items`.

    Returns:
        Columns `item`, `title` if there are titles, and `feature:NAME` for each feature.

    Raises:
        InputError: If no item has features.
    """
    selected, joins, key = ["items.name AS item"], "", sql_identifier(ITEM_KEY)
    if log.titles_sql is not None:
        titles = f"SELECT {key}, min(title) AS title FROM ({log.titles_sql}) GROUP BY {key}"
        selected.append("titles.title")
        joins += f" LEFT JOIN ({titles}) titles ON titles.{key} = items.name"
    if log.features_sql is not None:
        selected += [f"features.{column}" for column in _create_features(log.features_sql, connection)]
        joins += f" LEFT JOIN features ON features.{key} = items.name"
    query = f"SELECT {', '.join(selected)} FROM items{joins} ORDER BY items.i"
    return connection.sql(query).to_arrow_table()


def count_item_conflicts(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many items of the log have rows in the item table that contradict each other in a single-valued feature.

    Args:
        connection: Has the tables `items` and `features`.
    """
    matched = f"features.{sql_identifier(ITEM_KEY)} = items.name AND features.{_CONFLICT}"
    return int(connection.execute(f"SELECT count(*) FROM items SEMI JOIN features ON {matched}").fetchall()[0][0])


def _create_features(features_sql: str, connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Create the table `features`, one row per item; returns its feature columns, quoted."""
    key = sql_identifier(ITEM_KEY)
    aggregates: dict[str, str] = {}
    conflicts = ["false"]
    for column, kind, *_ in connection.execute(f"DESCRIBE {features_sql}").fetchall():
        if column != ITEM_KEY:
            value = sql_identifier(column)
            all_values = f"list_sort(list_distinct(list_filter(flatten(list({value})), lambda v: v <> '')))"
            aggregates[sql_identifier(f"feature:{column}")] = all_values if kind.endswith("[]") else f"min({value})"
            if not kind.endswith("[]"):
                conflicts.append(f"coalesce(min({value}) <> max({value}), false)")
    selected = ", ".join([key, *(f"{aggregate} AS {name}" for name, aggregate in aggregates.items())])
    selected += f", {' OR '.join(conflicts)} AS {_CONFLICT}"
    connection.execute(f"CREATE TEMP TABLE features AS SELECT {selected} FROM ({features_sql}) GROUP BY {key}")
    matched = f"SELECT count(*) FROM items SEMI JOIN features ON features.{key} = items.name"
    if connection.execute(matched).fetchall()[0][0] == 0:
        raise InputError("no item of the log is in the item table; check that both name items alike (--items-key)")
    return list(aggregates)
