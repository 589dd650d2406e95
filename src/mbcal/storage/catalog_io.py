"""A catalogue as a Parquet table, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.types import FIRST_ITEM_ROW, AnyFeature, Catalog, Feature, NumberFeature, VectorFeature
from mbcal.types.feature_values import FeatureDeclaration
from mbcal.types.features import default_vocabulary
from mbcal.types.kinds import require_kind

PREFIX = "feature:"
"""Before the name of a feature, in the names of columns."""
_VOCABULARY = b"vocabulary"
"""Key of a column's metadata."""


def parquet_table(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table in the bytes of a Parquet file, or those of the given columns that it has."""
    file = pq.ParquetFile(pa.BufferReader(data))
    # without Arrow's thread pool: a process that ends soon after starting it sometimes aborts (pyarrow 26)
    return file.read(columns if columns is None else list(columns), use_threads=False)


def table_declarations(data: bytes) -> dict[str, FeatureDeclaration]:
    """Return the kinds of the features in the bytes of a catalogue's Parquet file, without reading their values."""
    declared = {}
    for field in pq.read_schema(pa.BufferReader(data)):
        if field.name.startswith(PREFIX):
            name, kind, length = field.name.removeprefix(PREFIX), "category", 0
            if pa.types.is_floating(field.type):
                kind = "number"
            elif pa.types.is_fixed_size_list(field.type):
                kind, length = "vector", field.type.list_size
            declared[name] = FeatureDeclaration(name, require_kind(kind, name), length, pa.types.is_list(field.type))
    return declared


def table_vocabulary(data: bytes, name: str) -> tuple[str, ...]:
    """Return the vocabulary of a category in the bytes of a catalogue's Parquet file, in the order of the codes."""
    table = parquet_table(data, [f"{PREFIX}{name}"])
    field, column = table.schema.field(0), table.column(0)
    metadata = field.metadata or {}
    if _VOCABULARY in metadata:
        return tuple(json.loads(metadata[_VOCABULARY]))
    values = pc.list_flatten(column) if pa.types.is_list(field.type) else column
    return default_vocabulary(pc.unique(values.drop_null()).to_pylist())


def catalog_table(catalog: Catalog) -> pa.Table:
    """Return a catalogue as a table in row order: item, title (if any), and `feature:NAME`.

    The type of a feature's column says its kind: text, or lists of text, for categories, float for numbers, lists of a fixed
    size for vectors. A vocabulary that has grown is not in the default order and is kept in the column's metadata.
    """
    columns: dict[str, pa.Array] = {"item": pa.array(catalog.items, pa.string())}
    if catalog.titles:
        columns["title"] = pa.array(catalog.titles, pa.string())
    columns |= {f"{PREFIX}{name}": _feature_column(feature) for name, feature in catalog.features.items()}
    table = pa.table(columns)
    for name, feature in catalog.features.items():
        if isinstance(feature, Feature) and not feature.has_default_vocabulary:
            index = table.schema.get_field_index(f"{PREFIX}{name}")
            field = table.schema.field(index).with_metadata({_VOCABULARY: json.dumps(feature.vocabulary)})
            table = table.cast(table.schema.set(index, field))
    return table


def names_catalog(data: bytes) -> Catalog:
    """Return the catalogue in the bytes of its Parquet file without features, which are not read."""
    names = pq.read_schema(pa.BufferReader(data)).names
    return table_catalog(parquet_table(data, [name for name in ("item", "title") if name in names]))


def table_catalog(table: pa.Table) -> Catalog:
    """Return the catalogue of a table that `catalog_table` made; raises InputError if an item's name is no text."""
    if table.schema.field("item").type not in (pa.string(), pa.large_string()) or table["item"].null_count:
        raise InputError("catalogue: item names must be text")
    loaded: dict[str, AnyFeature] = {}
    for column in table.column_names:
        if column.startswith(PREFIX):
            name = column.removeprefix(PREFIX)
            loaded[name] = _feature(name, table.schema.field(column), table[column])
    titles = table["title"].to_pylist() if "title" in table.column_names else ()
    return Catalog(tuple(table["item"].to_pylist()), loaded, tuple(titles))


def vector_column(vectors: NDArray[np.float32]) -> pa.Array:
    """Return vectors (N, D) as lists of a fixed size; null where a row is NaN."""
    missing = pa.array(np.isnan(vectors[:, 0]))
    return pa.FixedSizeListArray.from_arrays(pa.array(np.nan_to_num(vectors).ravel()), vectors.shape[1], mask=missing)


def _feature_column(feature: AnyFeature) -> pa.Array:
    rows = range(FIRST_ITEM_ROW, feature.n_rows)
    if isinstance(feature, NumberFeature):
        return pa.array(feature.numbers[FIRST_ITEM_ROW:], pa.float32(), from_pandas=True)  # NaN becomes null
    if isinstance(feature, VectorFeature):
        return vector_column(feature.vectors[FIRST_ITEM_ROW:])
    if feature.offsets is None:
        return pa.array([(*feature.values(row), None)[0] for row in rows], pa.string())
    return pa.array([list(feature.values(row)) for row in rows], pa.list_(pa.string()))


def _feature(name: str, field: pa.Field, column: pa.ChunkedArray) -> AnyFeature:
    if pa.types.is_floating(field.type):
        return NumberFeature(name, _with_special_rows(column.to_numpy()[:, None])[:, 0])
    if pa.types.is_fixed_size_list(field.type):
        lists = column.combine_chunks()
        vectors = lists.values.to_numpy(zero_copy_only=False).reshape(len(lists), field.type.list_size)
        present = lists.is_valid().to_numpy(zero_copy_only=False)
        return VectorFeature(name, _with_special_rows(np.where(present[:, None], vectors, np.nan)))
    metadata = field.metadata or {}
    vocabulary = json.loads(metadata[_VOCABULARY]) if _VOCABULARY in metadata else None
    values = column.to_pylist()
    if pa.types.is_list(field.type):
        return Feature.multi(name, [row or () for row in values], vocabulary)
    return Feature.single(name, values, vocabulary)


def _with_special_rows(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers (items, D) as (rows, D): the special rows have none."""
    special = np.full((FIRST_ITEM_ROW, numbers.shape[1]), np.nan)
    return np.concatenate([special, numbers]).astype(np.float32)
