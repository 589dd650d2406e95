"""Reading a decision log: segments and compacted segments, in the order written.

::

    LOG/segment-000003.log                                 open, or closed and not compacted yet
    LOG/decisions-000002.parquet, feedback-000002.parquet  segment 2, compacted (see `archive`)

Compaction removes a segment only after both of its Parquet files are complete on disk, and where both exist they are read
instead of the segment. So every record is read exactly once, at whatever point compaction is interrupted.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from mbcal.decision_log.archive import DamagedArchiveError, compacted_numbers, read_parquet
from mbcal.decision_log.numbering import GapFinder, Missing, read_mark
from mbcal.decision_log.records import SKEW, Record, decode
from mbcal.decision_log.segments import log_folders, parquet_paths, scan_segment, segment_numbers, segment_path
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


def read_log(folder: str | Path, lost: list[Loss] | None = None, since: int = 0) -> Iterator[Record]:
    """Yield every record in the order written, compacted or not. Needs no lock; a server may be writing.

    An incomplete record at the very end of the last segment is not yielded: it is being written, or was never acknowledged.
    The logs of several workers in one folder are read one after the other.

    Args:
        folder: The log.
        lost: If given, what is damaged or missing is appended to it and skipped. By default it raises.
        since: The oldest segments are left out if they were last written before this time, in microseconds since 1970. What
            is damaged or missing there is not reported.

    Raises:
        LogError: If the folder holds no log, or a file is damaged, missing or cannot be read.
    """
    for part in log_folders(Path(folder)):
        yield from _read_folder(part, lost, since)


def read_backwards(folder: Path) -> Iterator[Iterator[Record]]:
    """Yield the records of each segment of one worker's log, the newest segment first; what is lost is skipped.

    Raises:
        LogError: If a file cannot be read.
    """
    segments, compacted = segment_numbers(folder), compacted_numbers(folder)
    for segment in sorted({*segments, *compacted}, reverse=True):
        numbered = _numbered_records(folder, segment, segment in compacted, segment == max(segments, default=0), [])
        yield (record for _, record in numbered)


def read_logs(folders: Iterable[str | Path], lost: list[Loss] | None = None) -> Iterator[Record]:
    """Yield every record of several logs by time, workers merged. Arguments and errors as of `read_log`."""
    parts = [part for folder in folders for part in log_folders(Path(folder))]
    return merge_by_time(_read_folder(part, lost) for part in parts)


def merge_by_time(logs: Iterable[Iterator[R]]) -> Iterator[R]:
    """Yield the records of several logs in order of time, as far as each of them is in order; none is held for long."""
    return heapq.merge(*logs, key=attrgetter("time"))


def _read_folder(folder: Path, lost: list[Loss] | None, since: int = 0) -> Iterator[Record]:
    mark = read_mark(folder)  # before the segments: what they lack of it was lost, not written since
    segments, compacted = segment_numbers(folder), compacted_numbers(folder)
    last = max(segments, default=0)
    numbers = sorted({*segments, *compacted})
    oldest = next((place for place, segment in enumerate(numbers) if not is_older(folder, segment, since)), len(numbers) - 1)
    gaps = GapFinder(folder, lambda missing: _report(missing, lost))
    is_begun = oldest <= 0  # else the numbers begin with what is read
    for segment in numbers[max(oldest, 0) :]:
        gaps.enter(segment)
        n_lost = 0 if lost is None else len(lost)
        for number, record in _numbered_records(folder, segment, segment in compacted, segment == last, lost):
            if number == gaps.next or not is_begun:
                gaps.next, is_begun = number + 1, True
            else:
                gaps.skip_to(number, lost is not None and len(lost) > n_lost)
                n_lost = 0 if lost is None else len(lost)
            yield record
    gaps.end(mark)


def is_older(folder: Path, segment: int, since: int) -> bool:
    """Whether a segment was last written before a time, in microseconds since 1970, as far as clocks tell (`SKEW`)."""
    for paths in ((segment_path(folder, segment),), parquet_paths(folder, segment)):
        with contextlib.suppress(FileNotFoundError):
            return max(path.stat().st_mtime for path in paths) < since / 1e6 - SKEW
    return False


def _numbered_records(
    folder: Path, segment: int, is_compacted: bool, is_last: bool, lost: list[Loss] | None
) -> Iterator[tuple[int, Record]]:
    """Yield the records of one segment with their numbers."""
    path = segment_path(folder, segment)
    data = None if is_compacted else read_bytes(path)
    if data is not None:
        yield from segment_records(path, segment, data, is_last, lost)
        return
    try:  # compacted already, or since the folder was listed
        yield from read_parquet(folder, segment)
    except DamagedArchiveError as error:
        _report(Damage(error.path, 0, error.path.stat().st_size, error.reason), lost)


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
