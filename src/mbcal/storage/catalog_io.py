"""A catalogue as a Parquet table, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.types import FIRST_ITEM_ROW, Catalog, Feature


def parquet_table(data: bytes) -> pa.Table:
    """Return the table in the bytes of a Parquet file."""
    # without Arrow's thread pool: a process that ends soon after starting it sometimes aborts (pyarrow 26)
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def catalog_table(catalog: Catalog) -> pa.Table:
    """Return a catalogue as a table: item, title (if any) and `feature:NAME` as text or lists of text, in row order."""
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
    """Return the catalogue of a table that `catalog_table` made, with or without its features."""
    loaded = {}
    for column in table.column_names if features else ():
        if column.startswith("feature:"):
            name, values = column.removeprefix("feature:"), table[column].to_pylist()
            is_multi = pa.types.is_list(table.schema.field(column).type)
            loaded[name] = Feature.multi(name, [row or () for row in values]) if is_multi else Feature.single(name, values)
    titles = table["title"].to_pylist() if "title" in table.column_names else ()
    return Catalog(tuple(table["item"].to_pylist()), loaded, tuple(titles))
