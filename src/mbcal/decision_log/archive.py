"""Compacted segments: the records of one segment as two Parquet files, a tenth of its size.

::

    decisions-000002.parquet, feedback-000002.parquet    the records of segment 2, with their numbers
"""

from __future__ import annotations

import heapq
import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.decision_log.records import Decision, Feedback, Record, fields
from mbcal.decision_log.segments import parquet_numbers, parquet_paths
from mbcal.errors import LogError

_NAMES = pa.list_(pa.string())
_NUMBERS = pa.list_(pa.float64())
_DECISION_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("id", pa.string()),
        ("time", pa.int64()),
        ("session", pa.string()),
        ("user", pa.string()),
        ("step", pa.int64()),
        ("version", pa.string()),
        ("epsilon", pa.float64()),
        ("history_items", _NAMES),
        ("history_behaviours", _NAMES),
        ("shown_items", _NAMES),
        ("shown_behaviours", _NAMES),
        ("candidates", _NAMES),
        ("items", _NAMES),
        ("propensities", _NUMBERS),
        ("request", pa.string()),
        ("scores", _NUMBERS),
        ("parts", pa.map_(pa.string(), _NUMBERS)),
        ("seen", pa.list_(pa.bool_())),
        ("repeats", pa.bool_()),
        *((name, pa.string()) for name in ("features", "context", "user_features")),  # JSON; null if there are none
        ("shown_context", _NAMES),
    ]
)
_FEEDBACK_SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("decision", pa.string()),
        ("item", pa.string()),
        ("behaviour", pa.string()),
        ("time", pa.int64()),
        ("id", pa.string()),
    ]
)
_BATCH_ROWS = 4096
"""Records read from Parquet at a time."""


class DamagedArchiveError(LogError):
    """A file of a compacted segment is damaged.

    Args:
        path: The file.
        reason: What is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: cannot be read ({reason}); restore the file from a copy")
        self.path, self.reason = path, reason


def compacted_numbers(folder: Path) -> set[int]:
    """Return the numbers of segments whose two Parquet files both exist."""
    return {number for number in parquet_numbers(folder) if all(path.is_file() for path in parquet_paths(folder, number))}


def to_parquet(numbered: Sequence[tuple[int, Record]]) -> tuple[bytes, bytes]:
    """Return the content of the two Parquet files for the numbered records of one segment: decisions and feedback."""
    decisions = [_decision_row(number, record) for number, record in numbered if isinstance(record, Decision)]
    feedback = [{"number": number, **fields(record)} for number, record in numbered if isinstance(record, Feedback)]
    return _table_bytes(decisions, _DECISION_SCHEMA), _table_bytes(feedback, _FEEDBACK_SCHEMA)


def read_parquet(folder: Path, segment: int) -> Iterator[tuple[int, Record]]:
    """Yield the records of a compacted segment with their numbers, in the order in which they were written.

    Raises:
        LogError: If a file is damaged or cannot be read.
    """
    decisions, feedback = parquet_paths(folder, segment)
    return heapq.merge(_rows(decisions, _to_decision), _rows(feedback, lambda row: Feedback(**row)), key=itemgetter(0))


def _decision_row(number: int, record: Decision) -> dict[str, Any]:
    row = fields(record)
    for name in ("history", "shown"):
        steps = row.pop(name)
        row[f"{name}_items"], row[f"{name}_behaviours"] = [step[0] for step in steps], [step[1] for step in steps]
    for name in ("features", "context", "user_features"):
        row[name] = json.dumps(row[name], ensure_ascii=False) if row[name] else None
    return {"number": number, **row}


def _to_decision(row: dict[str, Any]) -> Decision:
    for name in ("history", "shown"):
        row[name] = list(zip(row.pop(f"{name}_items"), row.pop(f"{name}_behaviours"), strict=True))
    row["parts"] = dict(row["parts"])
    for name in ("features", "context", "user_features"):
        row[name] = json.loads(row.get(name) or "{}")
    row["shown_context"] = row.get("shown_context") or []
    return Decision(**row)


def _table_bytes(rows: list[dict[str, Any]], schema: pa.Schema) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), content, compression="zstd", write_page_checksum=True)
    return content.getvalue()


def _rows(path: Path, to_record: Callable[[dict[str, Any]], Record]) -> Iterator[tuple[int, Record]]:
    """Yield (number, record) from one file."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                columns = [_to_list(column) for column in batch.columns]
                for values in zip(*columns, strict=True):
                    row = dict(zip(batch.schema.names, values, strict=True))
                    yield row.pop("number"), to_record(row)
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())  # one line
        if isinstance(error, OSError) and error.errno is not None:
            raise LogError(f"{path}: cannot be read ({reason}); check its permissions") from error
        raise DamagedArchiveError(path, reason) from error


def _to_list(column: pa.Array) -> list[Any]:
    """`column.to_pylist()`; several times as fast for lists of numbers or names, whose text is created once per batch."""
    if column.type == _NAMES:
        encoded = column.flatten().dictionary_encode()
        values = np.array(encoded.dictionary.to_pylist(), dtype=object)[encoded.indices.to_numpy()].tolist()
    elif column.type == _NUMBERS:
        values = column.flatten().to_numpy().tolist()
    else:
        return list(column.to_pylist())
    offsets = column.offsets.to_numpy() - column.offsets[0].as_py()
    return [values[start:end] for start, end in pairwise(offsets.tolist())]


def last_number(folder: Path, segment: int) -> int:
    """Return the number of the last record of a compacted segment; 0 if it has none.

    Raises:
        LogError: If a file is damaged or cannot be read.
    """
    return max((number for number, _ in read_parquet(folder, segment)), default=0)
