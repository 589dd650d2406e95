"""Data frames as input: pandas, and everything that has the Arrow PyCapsule interface (polars, pyarrow, DuckDB relations).

A frame becomes a Parquet file in the scratch folder, with the columns that are needed. From there on it is a log in Parquet:
the store is the same, a stream may be larger than memory, and the workers of an engine can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.data.files import require_columns
from mbcal.errors import InputError

FRAME = "the data frame"
"""Subject of messages about a frame."""
_ROW_GROUP = 1 << 18
"""Rows in a row group. The workers of an engine share a file by row groups."""


class ArrowStream(Protocol):
    """A table that exports an Arrow stream: polars and pandas frames, pyarrow's Table and RecordBatchReader."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a PyCapsule of an ArrowArrayStream."""


class ArrowBatch(Protocol):
    """A table that exports one Arrow array: pyarrow's RecordBatch."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        """Return PyCapsules of an ArrowSchema and an ArrowArray."""


Frame = ArrowStream | ArrowBatch


def is_frame(source: object) -> TypeGuard[Frame]:
    """Whether an object is a data frame, without importing pandas."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__") or _is_pandas(source)


def write_frame(frame: Frame, columns: Sequence[str], scratch: Path) -> Path:
    """Write some columns of a frame to a Parquet file.

    Args:
        frame: The frame. A stream is consumed.
        columns: Names of the columns.
        scratch: Where a new folder with the file is created.

    Returns:
        The file.

    Raises:
        InputError: If a column is missing, appears twice, or holds values of several types or of a type that a log
            cannot hold (durations, periods).
    """
    try:
        reader = _pandas_reader(frame, columns) if _is_pandas(frame) else _arrow_reader(frame)
        require_columns(FRAME, reader.schema.names, columns)
        schema = pa.schema([_plain_field(reader.schema.field(name)) for name in columns])
        folder = scratch / f"frame-{len(list(scratch.iterdir()))}"
        folder.mkdir()
        path = folder / "frame.parquet"
        _write(reader, schema, path)
    except (pa.ArrowException, TypeError) as error:  # TypeError: values of several types in a pandas column
        raise InputError(f"{FRAME}: cannot be read ({_first_line(error)}); give every column one type") from error
    return path


def _write(reader: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    with pq.ParquetWriter(path, schema, compression="lz4") as writer:
        for batch in reader:
            table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            writer.write_table(table, _ROW_GROUP)


def _arrow_reader(frame: Any) -> pa.RecordBatchReader:
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame)
    batch = pa.record_batch(frame)
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


def _is_pandas(source: object) -> bool:
    bases = type(source).__mro__
    return any(base.__name__ == "DataFrame" and base.__module__.partition(".")[0] == "pandas" for base in bases)


def _pandas_reader(frame: Any, columns: Sequence[str]) -> pa.RecordBatchReader:
    """Convert only the columns that are needed: others may hold anything. NaN and NaT become null."""
    names = [name if isinstance(name, str) else f"{name!r} ({type(name).__name__})" for name in frame.columns]
    require_columns(FRAME, names, columns)
    return pa.Table.from_pandas(frame[list(columns)], preserve_index=False).to_reader(_ROW_GROUP)


def _plain_field(field: pa.Field) -> pa.Field:
    """The field with a type that Parquet and DuckDB read as what it is.

    Dictionaries (categories) become their values, string views text, and half floats floats. Parquet stores durations and
    extension types, such as pandas periods, as plain integers that would pass for epoch times: these are refused.
    """
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_duration(kind) or isinstance(kind, pa.BaseExtensionType):
        raise InputError(f"{FRAME}: column {field.name!r} holds {kind}; convert it to text, numbers or timestamps")
    if pa.types.is_string_view(kind):
        kind = pa.large_string()
    if pa.types.is_float16(kind):
        kind = pa.float32()
    return pa.field(field.name, kind)


def _first_line(error: BaseException) -> str:
    return " ".join(str(part) for part in error.args).splitlines()[0]
