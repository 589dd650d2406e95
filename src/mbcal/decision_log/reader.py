"""Reading a decision log: segments and compacted segments, in the order written.

::

    LOG/segment-000003.log                                 open, or closed and not compacted yet
    LOG/decisions-000002.parquet, feedback-000002.parquet  segment 2, compacted (see `archive`)

Compaction removes a segment only after both of its Parquet files are complete on disk, and where both exist they are read
instead of the segment. So every record is read exactly once, at whatever point compaction is interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mbcal.decision_log.archive import compacted_numbers, read_parquet
from mbcal.decision_log.records import Record, decode
from mbcal.decision_log.segments import scan_segment, segment_numbers, segment_path
from mbcal.errors import LogError


@dataclass(frozen=True)
class Damage:
    """A range of bytes in a segment that is not a valid record."""

    path: Path
    offset: int
    size: int
    """Bytes."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: damaged at byte {self.offset} ({self.reason}, {self.size} bytes)"


def read_log(folder: str | Path, skipped: list[Damage] | None = None) -> Iterator[Record]:
    """Yield every record in the order written, compacted or not. Needs no lock; a server may be writing.

    An incomplete record at the very end of the last segment is not yielded: it is being written, or was never acknowledged.

    Args:
        folder: The log.
        skipped: If given, damaged ranges are appended to it and skipped. By default damage raises.

    Raises:
        LogError: If the folder holds no log, or a file is damaged or cannot be read.
    """
    folder = Path(folder)
    segments, compacted = segment_numbers(folder), compacted_numbers(folder)
    if not segments and not compacted:
        raise LogError(f"{folder}: no decision log (no segments); give the folder a server logs to")
    last = max(segments, default=0)
    for number in sorted({*segments, *compacted}):
        path = segment_path(folder, number)
        data = None if number in compacted else read_bytes(path)
        if data is None:  # compacted already, or since the folder was listed
            yield from read_parquet(folder, number)
        else:
            yield from segment_records(path, number, data, number == last, skipped)


def read_bytes(path: Path) -> bytes | None:
    """Read a segment; None if it no longer exists.

    Raises:
        LogError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def segment_records(path: Path, number: int, data: bytes, is_last: bool, skipped: list[Damage] | None) -> Iterator[Record]:
    """Yield the records of one segment.

    Args:
        path: The segment's path, for errors.
        number: Its number.
        data: Its bytes.
        is_last: Whether an incomplete record at its end is ignored, since it may be being written.
        skipped: Where damage is appended; None to raise.

    Raises:
        LogError: If there is damage and `skipped` is None.
    """
    for start, end, payload in scan_segment(data, number):
        if payload is None:
            if is_last and end == len(data):
                return
            reason = "no valid segment header" if start == 0 else "no record, or its checksum does not match"
        else:
            try:
                record = decode(payload)
            except ValueError as error:
                reason = f"no record this mbcal can read: {error}"
            else:
                yield record
                continue
        damage = Damage(path, start, end - start, reason)
        if skipped is None:
            raise LogError(f"{damage}; restore the file, or skip what is damaged (--skip-damaged)")
        skipped.append(damage)
