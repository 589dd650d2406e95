"""The decision log, read; and its closed segments as Parquet, which takes a fraction of the space.

::

    LOG/segment-000003.log                                 open, or closed and not compacted yet
    LOG/decisions-000002.parquet, feedback-000002.parquet  the records of segment 2; `place` is their order in it

Both files of a number are there, whole, before its segment is removed, and where both are there they are read instead of
it: whenever compaction is interrupted, every record is read exactly once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.decision_log.records import Decision, Feedback, Record, decode
from mbcal.decision_log.segments import numbers, pieces, segment_path
from mbcal.decision_log.writer import PARQUET
from mbcal.errors import LogError

_TEXTS = pa.list_(pa.string())
_DECISIONS = pa.schema(
    [
        ("place", pa.int64()),
        ("id", pa.string()),
        ("time", pa.int64()),
        ("session", pa.string()),
        ("user", pa.string()),
        ("step", pa.int64()),
        ("version", pa.string()),
        ("epsilon", pa.float64()),
        ("history_items", _TEXTS),
        ("history_behaviours", _TEXTS),
        ("shown_items", _TEXTS),
        ("shown_behaviours", _TEXTS),
        ("candidates", _TEXTS),
        ("items", _TEXTS),
        ("propensities", pa.list_(pa.float64())),
    ]
)
_FEEDBACK = pa.schema(
    [
        ("place", pa.int64()),
        ("decision", pa.string()),
        ("item", pa.string()),
        ("behaviour", pa.string()),
        ("time", pa.int64()),
        ("id", pa.string()),
    ]
)
_ROWS = 4096
"""Records read from Parquet at a time."""


@dataclass(frozen=True)
class Damage:
    """A stretch of a segment that is no record."""

    path: Path
    offset: int
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: damaged at byte {self.offset} ({self.reason}, {self.size} bytes)"


def read_log(folder: str | Path, skipped: list[Damage] | None = None) -> Iterator[Record]:
    """Every record in the order written, compacted or not, also while the log is being written.

    An unfinished record at the very end is not there yet. Damage anywhere else is an error that names it; given a list,
    what is damaged is put there and passed over.
    """
    folder = Path(folder)
    segments, compacted = numbers(folder), _compacted(folder)
    if not segments and not compacted:
        raise LogError(f"{folder}: no decision log (no segments); give the folder a server logs to")
    last = max(segments, default=0)
    for number in sorted({*segments, *compacted}):
        data = None if number in compacted else _bytes(segment_path(folder, number))
        if data is None:  # compacted before we looked, or since
            yield from _parquet_records(folder, number)
        else:
            yield from _segment_records(segment_path(folder, number), number, data, number == last, skipped)


def _compacted(folder: Path) -> set[int]:
    """Numbers of which both files are there."""
    return {number for number in numbers(folder, PARQUET) if all(file.is_file() for file in _files(folder, number))}


def _files(folder: Path, number: int) -> tuple[Path, Path]:
    return folder / f"decisions-{number:06d}.parquet", folder / f"feedback-{number:06d}.parquet"


def _bytes(path: Path) -> bytes | None:
    """Of a segment; None where it is gone."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def _segment_records(path: Path, number: int, data: bytes, last: bool, skipped: list[Damage] | None) -> Iterator[Record]:
    for start, end, payload in pieces(data, number):
        if payload is None:
            if last and end == len(data):
                return
            reason = "no segment begins like this" if start == 0 else "no record, or its checksum does not fit"
        else:
            try:
                record = decode(payload)
            except ValueError as error:
                reason = f"no record of this mbcal: {error}"
            else:
                yield record
                continue
        damage = Damage(path, start, end - start, reason)
        if skipped is None:
            raise LogError(f"{damage}; restore the file, or pass over what is damaged (--skip-damaged)")
        skipped.append(damage)


def _decision(row: dict[str, Any]) -> Decision:
    for name in ("history", "shown"):
        row[name] = list(zip(row.pop(f"{name}_items"), row.pop(f"{name}_behaviours"), strict=True))
    return Decision(**row)


def _parquet_records(folder: Path, number: int) -> Iterator[Record]:
    decisions, feedback = _files(folder, number)
    both = heapq.merge(_rows(decisions, _decision), _rows(feedback, lambda row: Feedback(**row)), key=itemgetter(0))
    return (record for _, record in both)


def _rows(path: Path, make: Callable[[dict[str, Any]], Record]) -> Iterator[tuple[int, Record]]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_ROWS, use_threads=False):
                columns = [_values(column) for column in batch.columns]
                for values in zip(*columns, strict=True):
                    row = dict(zip(batch.schema.names, values, strict=True))
                    yield row.pop("place"), make(row)
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise LogError(f"{path}: cannot be read ({error}); restore the file from a copy") from error


def _values(column: pa.Array) -> list[Any]:
    """What `to_pylist` gives, with lists of names several times as fast: each name is made once a batch."""
    if column.type != _TEXTS:
        return list(column.to_pylist())
    encoded = column.flatten().dictionary_encode()
    names = np.array(encoded.dictionary.to_pylist(), dtype=object)[encoded.indices.to_numpy()].tolist()
    offsets = column.offsets.to_numpy() - column.offsets[0].as_py()
    return [names[start:end] for start, end in pairwise(offsets.tolist())]
