"""The latest decisions of a log, for a server that starts again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mbcal.decision_log.archive import compacted_numbers, read_parquet
from mbcal.decision_log.reader import Loss, merge_by_time, read_bytes, segment_records
from mbcal.decision_log.records import Decision
from mbcal.decision_log.segments import log_folders, parquet_paths, segment_numbers, segment_path
from mbcal.errors import LogError

COMPACTION = 8
"""How many times smaller a compacted segment is, about."""


def recent_decisions(folder: Path, since: int, max_bytes: int) -> Iterator[Decision]:
    """Yield the latest decisions of a log, or of the logs of its workers together, oldest first.

    Whoever keeps only so many of them keeps the latest of all workers.

    Args:
        folder: The log.
        since: Microseconds since 1970; segments that were last written before are not read, earlier decisions not yielded.
        max_bytes: Bytes of segments to read, the newest first; of every log at least the newest segment is read.

    What is damaged or cannot be read is skipped; reading the whole log reports it.
    """
    try:
        folders = log_folders(folder)
    except LogError:  # nothing was logged yet
        return
    yield from merge_by_time([_decisions(part, since, max_bytes // len(folders)) for part in folders])


def _decisions(folder: Path, since: int, max_bytes: int) -> Iterator[Decision]:
    """The latest decisions of one folder, oldest first."""
    for segment in _newest_segments(folder, since, max_bytes):
        try:
            for record in _records(folder, segment):
                if isinstance(record, Decision) and record.time >= since:
                    yield record
        except LogError:
            continue


def _newest_segments(folder: Path, since: int, max_bytes: int) -> list[int]:
    compacted = compacted_numbers(folder)
    chosen: list[int] = []
    for segment in sorted({*segment_numbers(folder), *compacted}, reverse=True):
        is_compacted = segment in compacted
        paths = parquet_paths(folder, segment) if is_compacted else (segment_path(folder, segment),)
        try:
            found = [path.stat() for path in paths]
        except OSError:
            continue
        max_bytes -= sum(entry.st_size for entry in found) * (COMPACTION if is_compacted else 1)
        if max(entry.st_mtime for entry in found) * 1e6 < since or (chosen and max_bytes < 0):
            break
        chosen.append(segment)
    return chosen[::-1]


def _records(folder: Path, segment: int) -> Iterator[object]:
    path, ignored = segment_path(folder, segment), list[Loss]()
    data = None if segment in compacted_numbers(folder) else read_bytes(path)
    numbered = read_parquet(folder, segment) if data is None else segment_records(path, segment, data, True, ignored)
    return (record for _, record in numbered)
