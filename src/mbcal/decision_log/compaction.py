"""Closed segments of a decision log as Parquet."""

from __future__ import annotations

import fcntl
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.decision_log.reader import _DECISIONS, _FEEDBACK, Damage, _bytes, _compacted, _files, _segment_records
from mbcal.decision_log.records import Decision, Feedback, fields
from mbcal.decision_log.segments import numbers, segment_path
from mbcal.errors import LogError
from mbcal.progress import SILENT, Progress
from mbcal.storage.atomic import fsync, to_output_error, write_atomic


@dataclass
class Compacted:
    """What compaction did."""

    segments: int = 0
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left: list[Damage] = field(default_factory=list)
    """Damage found: these segments stay as they are."""


def compact_log(folder: str | Path, progress: Progress = SILENT) -> Compacted:
    """Turn every segment but the last, which a server may be writing, into Parquet. May be stopped at any point."""
    folder = Path(folder)
    closed, done = numbers(folder)[:-1], Compacted()
    progress.phase("Compacting segments", len(closed))
    try:
        lock = os.open(folder / "compaction.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LogError(f"{folder}: another process compacts this decision log; wait for it to end") from None
            for leftover in folder.glob(".*.parquet.partial-*"):
                leftover.unlink()
            for number in closed:
                _compact_segment(folder, number, done)
                progress.advance(1)
        finally:
            os.close(lock)
    except OSError as error:
        raise to_output_error(str(folder), error) from error
    return done


def _compact_segment(folder: Path, number: int, done: Compacted) -> None:
    path = segment_path(folder, number)
    data = _bytes(path)
    if data is None:
        return
    if number not in _compacted(folder):
        damage: list[Damage] = []
        records = list(_segment_records(path, number, data, False, damage))
        if damage:
            done.left += damage
            return
        placed = list(enumerate(records))
        decisions = [_decision_row(place, record) for place, record in placed if isinstance(record, Decision)]
        feedback = [_feedback_row(place, record) for place, record in placed if isinstance(record, Feedback)]
        for file, rows, schema in zip(_files(folder, number), (decisions, feedback), (_DECISIONS, _FEEDBACK), strict=True):
            content = _parquet(pa.Table.from_pylist(rows, schema))
            write_atomic(file, content)
            done.bytes_after += len(content)
        done.records += len(records)
    path.unlink()
    fsync(folder)
    done.segments += 1
    done.bytes_before += len(data)


def _decision_row(place: int, record: Decision) -> dict[str, Any]:
    row = fields(record)
    for name in ("history", "shown"):
        steps = row.pop(name)
        row[f"{name}_items"], row[f"{name}_behaviours"] = [step[0] for step in steps], [step[1] for step in steps]
    return {"place": place, **row}


def _feedback_row(place: int, record: Feedback) -> dict[str, Any]:
    return {"place": place, **fields(record)}


def _parquet(table: pa.Table) -> bytes:
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd", write_page_checksum=True)
    return content.getvalue()
