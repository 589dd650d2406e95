"""Reading what was added to a decision log since the last time, of all workers that write to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mbcal.decision_log.archive import DamagedArchiveError, compacted_numbers, read_parquet
from mbcal.decision_log.reader import is_older, merge_by_time, read_bytes
from mbcal.decision_log.records import Record, decode
from mbcal.decision_log.segments import log_folders, scan_segment, segment_numbers, segment_path
from mbcal.errors import LogError

_HEAD_BYTES = 128
"""Bytes at the beginning of a segment by which it is recognised: its header and the checksum of its first record."""


@dataclass
class _Position:
    """How far the log of one worker was read."""

    segment: int = 0
    """The segment read last."""
    size: int = 0
    """Its bytes at that time; unchanged if nothing was added."""
    record: int = 0
    """Number of the last record."""
    first: int = 0
    """Number of the first; 0 if none was read."""
    expected: int = 0
    """What that was for an earlier follower; 0 if there was none."""
    head: bytes = b""
    """The first bytes of the segment, as far as they were written."""


class LogFollower:
    """Reads a log again and again, each record once. Damaged records are skipped.

    A log that was moved away and begun anew is read from its beginning. After an error, and if a log was restored from a
    copy, records may be yielded again.

    Args:
        folder: The log of a server, with the folders of its workers if it has several. It may not exist yet.
        since: The oldest segments are left out if they were last written before this time, in microseconds since 1970.
        known: What an earlier follower had read (`folders`): it must be there, from the same records on.
    """

    def __init__(self, folder: str | Path, since: int = 0, known: Mapping[str, int] | None = None) -> None:
        self._folder, self._since = Path(folder), since
        self._known = {Path(folder, name): first for name, first in (known or {}).items()}
        self._positions: dict[Path, _Position] = {}
        self.lost = 0
        """Records that were damaged, or missing between others, so far."""

    def read(self) -> Iterator[Record]:
        """Yield the records that were added since the last call, by time where several workers write (`merge_by_time`).

        Raises:
            LogError: If a file cannot be read, or the log, or that of a worker, was there before and is gone, as with a disk
                that is away.
        """
        try:
            folders = log_folders(self._folder)
        except LogError as error:
            if self._positions or self._known:
                raise LogError(f"{self._folder}: the log was there and is gone; bring it back, or begin it anew") from error
            return  # nothing was logged yet
        was_read = {folder for folder, position in self._positions.items() if position.record}
        if gone := sorted((was_read | self._known.keys()) - {*folders}):
            raise LogError(f"{gone[0]}: the log was there and is gone; bring it back, or begin it anew")
        yield from merge_by_time(map(self._read_folder, folders))

    @property
    def folders(self) -> dict[str, int]:
        """The folders in which records were read, of workers or `.` for the log's own, with the number of the first."""
        read = ((str(folder.relative_to(self._folder)), position.first) for folder, position in self._positions.items())
        return {name: first for name, first in sorted(read) if first}

    def _read_folder(self, folder: Path) -> Iterator[Record]:
        segments = sorted({*segment_numbers(folder), *compacted_numbers(folder)})
        position = self._positions.setdefault(folder, _Position(expected=self._known.get(folder, 0)))
        if _is_another_log(folder, segments, position):
            position = self._positions[folder] = _Position()
        for segment in segments:
            if segment < position.segment:
                continue
            if not position.segment and is_older(folder, segment, self._since):
                continue  # the oldest alone: what comes after a newer one may be of any time
            yield from self._read_segment(folder, segment, position)

    def _read_segment(self, folder: Path, segment: int, position: _Position) -> Iterator[Record]:
        data = self._segment_bytes(segment_path(folder, segment), segment, position)
        if data is None:
            with contextlib.suppress(DamagedArchiveError):  # what it held is missed by its numbers
                for number, record in read_parquet(folder, segment):
                    if number > position.record:
                        yield record
                        self._take_note(position, number)
            position.segment, position.size, position.head = segment + 1, 0, b""
        elif data:
            for _, _, number, payload in scan_segment(data, segment):
                if payload is None or number <= position.record:
                    continue
                try:
                    record = decode(payload)
                except ValueError:
                    continue
                yield record
                self._take_note(position, number)
            position.segment, position.size, position.head = segment, len(data), data[:_HEAD_BYTES]

    def _take_note(self, position: _Position, number: int) -> None:
        """Take note that a record was taken: only then, so that an error in another log loses nothing."""
        expected = position.record + 1 if position.record else position.expected or number
        self.lost += max(number - expected, 0)
        position.first, position.record = position.first or number, number

    def _segment_bytes(self, path: Path, segment: int, position: _Position) -> bytes | None:
        """The bytes of a segment; empty if nothing in it is new, None if it was compacted."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return b"" if (segment, status.st_size) == (position.segment, position.size) else read_bytes(path)


def _is_another_log(folder: Path, segments: list[int], position: _Position) -> bool:
    """Whether the segments are not those of the log that was read up to this position."""
    if not position.record:
        return False
    if not {position.segment, position.segment - (not position.size)} & {*segments}:
        return True
    try:
        with segment_path(folder, position.segment).open("rb") as file:
            head = file.read(len(position.head))
    except OSError:  # compacted, or not there yet
        return False
    return head != position.head
