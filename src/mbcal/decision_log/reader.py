"""Reading a decision log: segments and compacted segments, in the order written.

::

    LOG/segment-000003.log                                 open, or closed and not compacted yet
    LOG/decisions-000002.parquet, feedback-000002.parquet  segment 2, compacted (see `archive`)

Compaction removes a segment only after both of its Parquet files are complete on disk, and where both exist they are read
instead of the segment. So every record is read exactly once, at whatever point compaction is interrupted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from mbcal.decision_log.archive import compacted_numbers, read_parquet
from mbcal.decision_log.numbering import GapFinder, Missing, read_mark
from mbcal.decision_log.records import Record, decode
from mbcal.decision_log.segments import log_folders, scan_segment, segment_numbers, segment_path
from mbcal.errors import LogError
from mbcal.storage.plain_file import read_plain

R = TypeVar("R", bound=Record)


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


Loss = Damage | Missing
"""What a log has lost."""


def read_log(folder: str | Path, lost: list[Loss] | None = None) -> Iterator[Record]:
    """Yield every record in the order written, compacted or not. Needs no lock; a server may be writing.

    An incomplete record at the very end of the last segment is not yielded: it is being written, or was never acknowledged.
    The logs of several workers in one folder are read one after the other.

    Args:
        folder: The log.
        lost: If given, what is damaged or missing is appended to it and skipped. By default it raises.

    Raises:
        LogError: If the folder holds no log, or a file is damaged, missing or cannot be read.
    """
    for part in log_folders(Path(folder)):
        yield from _read_folder(part, lost)


def read_logs(folders: Iterable[str | Path], lost: list[Loss] | None = None) -> Iterator[Record]:
    """Yield every record of several logs by time, workers merged. Arguments and errors as of `read_log`."""
    parts = [part for folder in folders for part in log_folders(Path(folder))]
    return merge_by_time(_read_folder(part, lost) for part in parts)


def merge_by_time(logs: Iterable[Iterator[R]]) -> Iterator[R]:
    """Yield the records of several logs in order of time, as far as each of them is in order; none is held for long."""
    return heapq.merge(*logs, key=attrgetter("time"))


def _read_folder(folder: Path, lost: list[Loss] | None) -> Iterator[Record]:
    mark = read_mark(folder)  # before the segments: what they lack of it was lost, not written since
    segments, compacted = segment_numbers(folder), compacted_numbers(folder)
    last = max(segments, default=0)
    gaps = GapFinder(folder, lambda missing: _report(missing, lost))
    for segment in sorted({*segments, *compacted}):
        gaps.enter(segment)
        path = segment_path(folder, segment)
        data = None if segment in compacted else read_bytes(path)
        if data is None:  # compacted already, or since the folder was listed
            numbered = read_parquet(folder, segment)
        else:
            numbered = segment_records(path, segment, data, segment == last, lost)
        n_lost = 0 if lost is None else len(lost)
        for number, record in numbered:
            if number == gaps.next:
                gaps.next += 1
            else:
                gaps.skip_to(number, lost is not None and len(lost) > n_lost)
                n_lost = 0 if lost is None else len(lost)
            yield record
    gaps.end(mark)


def _report(loss: Loss, lost: list[Loss] | None) -> None:
    """Append to the list, or raise if there is none."""
    if lost is None:
        raise LogError(f"{loss}; restore the file, or skip what is lost (--skip-damaged)")
    lost.append(loss)


def read_bytes(path: Path) -> bytes | None:
    """Read a segment; None if it no longer exists.

    Raises:
        LogError: If it cannot be read.
    """
    try:
        return read_plain(path)[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def segment_records(
    path: Path, segment: int, data: bytes, is_last: bool, lost: list[Loss] | None
) -> Iterator[tuple[int, Record]]:
    """Yield the records of one segment, with their numbers.

    Args:
        path: The segment's path, for errors.
        segment: Its number.
        data: Its bytes.
        is_last: Whether an incomplete record at its end is ignored, since it may be being written.
        lost: Where damage is appended; None to raise.

    Raises:
        LogError: If there is damage and `lost` is None.
    """
    for start, end, number, payload in scan_segment(data, segment):
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
                yield number, record
                continue
        _report(Damage(path, start, end - start, reason), lost)
