"""Compaction of a decision log: closed segments become Parquet files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mbcal.decision_log.archive import compacted_numbers, to_parquet
from mbcal.decision_log.reader import Loss, read_bytes, segment_records
from mbcal.decision_log.segments import log_folders, parquet_paths, segment_numbers, segment_path
from mbcal.errors import LogError
from mbcal.progress import SILENT, Progress
from mbcal.storage.atomic import fsync, to_output_error, write_atomic


@dataclass
class Compacted:
    """The result of a compaction."""

    segments: int = 0
    """Segments that were removed."""
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left: list[Loss] = field(default_factory=list)
    """Damage that was found; segments with damage are left as they are."""


def compact_log(folder: str | Path, progress: Progress = SILENT) -> Compacted:
    """Convert every segment but the last, which a server may be writing, into Parquet files.

    It may be interrupted at any point and run again: a segment is removed only after both of its Parquet files are on disk.

    Args:
        folder: The log.
        progress: Receives the number of segments done.

    Raises:
        LogError: If another process compacts this log, or a segment cannot be read.
        OutputError: If the folder cannot be written.
    """
    folder, result = Path(folder), Compacted()
    closed = {part: segment_numbers(part)[:-1] for part in log_folders(folder)}
    progress.phase("Compacting segments", sum(map(len, closed.values())))
    for part, segments in closed.items():
        try:
            _compact_folder(part, segments, result, progress)
        except OSError as error:
            raise to_output_error(str(part), error) from error
    return result


def _compact_folder(folder: Path, segments: Sequence[int], result: Compacted, progress: Progress) -> None:
    lock = os.open(folder / "compaction.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"{folder}: another process compacts this decision log; wait for it to end") from None
        for leftover in folder.glob(".*.parquet.partial-*"):
            leftover.unlink()
        for segment in segments:
            _compact_segment(folder, segment, result)
            progress.advance(1)
    finally:
        os.close(lock)


def _compact_segment(folder: Path, number: int, result: Compacted) -> None:
    path = segment_path(folder, number)
    data = read_bytes(path)
    if data is None:
        return
    if number not in compacted_numbers(folder):
        written = path.stat().st_mtime
        damage: list[Loss] = []
        records = list(segment_records(path, number, data, False, damage))
        if damage:
            result.left += damage
            return
        for file, content in zip(parquet_paths(folder, number), to_parquet(records), strict=True):
            write_atomic(file, content)
            os.utime(file, (written, written))  # readers leave out what was last written before a time
            result.bytes_after += len(content)
        result.records += len(records)
    path.unlink()
    fsync(folder)
    result.segments += 1
    result.bytes_before += len(data)
