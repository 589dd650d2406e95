"""Encoded fields as columns of a table, one per field, and back, without loss.

A category is its code (int32), a number its standardised value (float32, null if missing), a vector a list of fixed size
(float32, null if missing).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mbcal.types import Fields

USER_PREFIX, CONTEXT_PREFIX = "user:", "context:"
"""What the names of columns begin with: fields of users, and of steps."""


def field_columns(fields: Fields, rows: NDArray[np.float32], prefix: str) -> dict[str, pa.Array]:
    """Return encoded rows (N, W) as columns by name."""
    columns: dict[str, pa.Array] = {}
    for field in fields:
        values = rows[:, fields.columns[field.name]]
        if field.kind == "category":
            column = pa.array(values[:, 0].astype(np.int32))
        else:
            missing = values[:, -1] == 0
            if field.kind == "number":
                column = pa.array(np.ascontiguousarray(values[:, 0]), mask=missing)
            else:
                numbers = pa.array(np.ascontiguousarray(values[:, :-1]).ravel())
                column = pa.FixedSizeListArray.from_arrays(numbers, field.length, mask=pa.array(missing))
        columns[f"{prefix}{field.name}"] = column
    return columns


def field_rows(fields: Fields, table: pa.Table | pa.RecordBatch, prefix: str) -> NDArray[np.float32]:
    """Return the encoded rows (N, W) of a table with the columns of `field_columns`."""
    rows = np.zeros((table.num_rows, fields.width), np.float32)
    for field in fields:
        column: Any = table.column(f"{prefix}{field.name}")
        column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        target = rows[:, fields.columns[field.name]]
        if field.kind == "category":
            target[:, 0] = column.to_numpy(zero_copy_only=False)
            continue
        present = column.is_valid().to_numpy(zero_copy_only=False)
        target[:, -1] = present
        values = column.drop_null() if field.kind == "number" else column.flatten()  # both leave out what is missing
        target[present, :-1] = values.to_numpy(zero_copy_only=False).reshape(-1, field.width - 1)
    return rows
