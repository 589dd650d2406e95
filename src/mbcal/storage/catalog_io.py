"""A catalogue as a Parquet table, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.types import FIRST_ITEM_ROW, Catalog, Feature


def parquet_table(data: bytes) -> pa.Table:
    """A Parquet file in memory as a table."""
    # without Arrow's thread pool: a process that ends soon after it was woken aborts now and then (pyarrow 26)
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def catalog_table(catalog: Catalog) -> pa.Table:
    """Items, titles and features as text, in catalogue order."""
    rows = range(FIRST_ITEM_ROW, catalog.n_rows)
    columns: dict[str, Any] = {"item": pa.array(catalog.items, pa.string())}
    if catalog.titles:
        columns["title"] = pa.array(catalog.titles, pa.string())
    for name, feature in catalog.features.items():
        if feature.offsets is None:
            columns[f"feature:{name}"] = pa.array([(*feature.values(row), None)[0] for row in rows], pa.string())
        else:
            columns[f"feature:{name}"] = pa.array([list(feature.values(row)) for row in rows], pa.list_(pa.string()))
    return pa.table(columns)


def table_catalog(table: pa.Table, features: bool = True) -> Catalog:
    """The catalogue such a table was made of, with or without what describes its items."""
    described = {}
    for column in table.column_names if features else ():
        if column.startswith("feature:"):
            name, values = column.removeprefix("feature:"), table[column].to_pylist()
            many = pa.types.is_list(table.schema.field(column).type)
            described[name] = Feature.multi(name, [row or () for row in values]) if many else Feature.single(name, values)
    titles = table["title"].to_pylist() if "title" in table.column_names else ()
    return Catalog(tuple(table["item"].to_pylist()), described, tuple(titles))
