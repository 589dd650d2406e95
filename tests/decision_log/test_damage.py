"""Incomplete and damaged segments: only the affected records are lost, and damage is reported."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbcal.decision_log import Damage, DecisionLog, Feedback, Loss, Missing
from mbcal.decision_log.checksums import range_checksums
from mbcal.decision_log.compaction import compact_log
from mbcal.decision_log.numbering import Mark, MarkFile
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import encode
from mbcal.decision_log.segments import FRAME_BYTES, HEADER, frame_record, scan_segment, segment_header
from mbcal.errors import LogError, OutputError
from tests.support.decision_records import decision, mixed_records, write_log


def test_every_truncation_keeps_exactly_the_complete_records(folder: Path) -> None:
    records = mixed_records(4)
    write_log(folder, records)
    path = folder / "segment-000001.log"
    content = path.read_bytes()
    ends = [HEADER.size]
    for record in records:
        ends.append(ends[-1] + FRAME_BYTES + len(encode(record)))
    assert ends[-1] == len(content)
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        kept = sum(size >= end for end in ends[1:])
        set_mark(folder, Mark(1, kept))  # the write that a crash tore had not been acknowledged
        assert list(read_log(folder)) == records[:kept]  # reading does not change the file
        with DecisionLog(folder) as log:
            torn = size not in ends and size > HEADER.size
            cut = f"{path}: {size - ends[kept]} bytes of an incomplete record removed after {kept} records"
            assert log.notes == ((cut,) if torn else ())
            log.append(records[-1]).result(10)
        assert list(read_log(folder)) == [*records[:kept], records[-1]]


def set_mark(folder: Path, mark: Mark) -> None:
    file = MarkFile(folder)
    file.write(mark)
    file.close()


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\xff" * 40, b"\x10\0\0\0abcd"])
def test_a_tail_that_is_no_record_is_removed(folder: Path, tail: bytes) -> None:
    """After a power failure, zeros or an old block may be where the last write should be."""
    records = mixed_records(3)
    write_log(folder, records)
    with (folder / "segment-000001.log").open("ab") as file:
        file.write(tail)
    assert list(read_log(folder)) == records
    with DecisionLog(folder) as log:
        assert len(log.notes) == 1
    assert list(read_log(folder)) == records


def segment_of(payloads: list[bytes]) -> tuple[bytes, list[tuple[int, int]]]:
    """A segment with these payloads, and the range of bytes of each record."""
    data, ranges = segment_header(1), []
    for number, payload in enumerate(payloads, 1):
        frame = frame_record(payload, 1, len(data), number)
        ranges.append((len(data), len(data) + len(frame)))
        data += frame
    return data, ranges


payload_lists = st.lists(st.binary(min_size=1, max_size=30), max_size=6)


@given(payload_lists, st.binary(min_size=1, max_size=60))
def test_any_tail_is_one_range_of_damage(payloads: list[bytes], tail: bytes) -> None:
    data, _ = segment_of(payloads)
    spans = list(scan_segment(data + tail, 1))
    assert [(span.number, span.payload) for span in spans] == [*enumerate(payloads, 1), (0, None)]
    assert (spans[-1].start, spans[-1].end) == (len(data), len(data) + len(tail))


@given(payload_lists, st.integers(HEADER.size, 300), st.binary(min_size=1, max_size=60))
def test_overwritten_bytes_cost_only_the_records_they_touch(payloads: list[bytes], offset: int, replacement: bytes) -> None:
    data, ranges = segment_of(payloads)
    start = min(offset, len(data))
    damaged = (data[:start] + replacement + data[start + len(replacement) :])[: len(data)]
    intact = [
        payload for payload, (first, end) in zip(payloads, ranges, strict=True) if damaged[first:end] == data[first:end]
    ]
    spans = list(scan_segment(damaged, 1))
    assert [span.payload for span in spans if span.payload is not None] == intact
    assert [span.start for span in spans] == [HEADER.size, *(span.end for span in spans)][: len(spans)]  # no gaps


@given(st.binary(min_size=1, max_size=200), st.data())
def test_checksums_of_ranges_are_those_of_zlib(content: bytes, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, len(content)), min_size=1, max_size=5))
    ends = [data.draw(st.integers(start, len(content))) for start in starts]
    before = [data.draw(st.integers(0, 2**32 - 1)) for _ in starts]
    lengths = np.array(ends) - np.array(starts)
    found = range_checksums(memoryview(content), np.array(starts), lengths, np.array(before, np.uint32))
    assert found.tolist() == [
        zlib.crc32(content[start:end], first) for start, end, first in zip(starts, ends, before, strict=True)
    ]


def test_names_that_look_like_records_do_not_slow_the_search_after_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = (1 << 20).to_bytes(8, "little") * 20_000  # at every eighth byte a record of 1 MiB could begin
    data, ranges = segment_of([planted] * 20)
    damaged = bytearray(data)
    damaged[ranges[1][0] + FRAME_BYTES] ^= 1
    read, crc32 = [0], zlib.crc32

    def counted(part: bytes, start: int = 0) -> int:
        read[0] += len(part)
        return crc32(part, start)

    monkeypatch.setattr(zlib, "crc32", counted)
    spans = list(scan_segment(bytes(damaged), 1))
    assert [span.number for span in spans] == [1, 0, *range(3, 21)]
    assert [(span.start, span.end) for span in spans] == ranges
    assert read[0] < 10 * len(data)


def test_a_record_inside_another_is_not_read_as_a_record(folder: Path) -> None:
    quoted = frame_record(encode(decision(7)), 1, HEADER.size, 1).decode("latin-1")
    write_log(folder, [decision(1, user=quoted)])
    path = folder / "segment-000001.log"
    path.write_bytes(path.read_bytes()[:-1])
    set_mark(folder, Mark(1, 0))
    assert list(read_log(folder)) == []
    with DecisionLog(folder) as log:
        assert "removed after 0 records" in log.notes[0]


def test_every_flipped_byte_costs_its_record_only(folder: Path) -> None:
    records = mixed_records(3)
    write_log(folder, records)
    path = folder / "segment-000001.log"
    content = path.read_bytes()
    second = HEADER.size + FRAME_BYTES + len(encode(records[0]))
    third = second + FRAME_BYTES + len(encode(records[1]))
    for offset in range(second, third):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x55]) + content[offset + 1 :])
        with pytest.raises(LogError, match=rf"segment-000001.log: damaged at byte {second} .*--skip-damaged"):
            list(read_log(folder))
        lost: list[Loss] = []
        assert list(read_log(folder, lost)) == [records[0], records[2]]
        assert [(damage.offset, damage.size) for damage in lost if isinstance(damage, Damage)] == [(second, third - second)]
    with DecisionLog(folder) as log:  # records follow the damage, so nothing is removed
        assert log.notes == (f"{path}: damaged in the middle; it is left as it is and segment 2 is begun",)
        log.append(records[1]).result(10)
    assert list(read_log(folder, [])) == [records[0], records[2], records[1]]


def test_flips_at_the_tail_and_in_the_header(folder: Path) -> None:
    records = mixed_records(3)
    write_log(folder, records)
    path = folder / "segment-000001.log"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\xff")
    with pytest.raises(LogError, match=r"segment-000001.log: cut off; record 3 is lost"):
        list(read_log(folder))
    assert list(read_log(folder, [])) == records[:2]
    for offset in range(HEADER.size):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x80]) + content[offset + 1 :])
        with pytest.raises(LogError, match=r"damaged at byte 0 .no valid segment header"):
            list(read_log(folder))
        assert list(read_log(folder, [])) == records
    path.write_bytes(b"mbcallog\x01\0\0\0\x01\0\0\0" + bytes(40))
    with pytest.raises(LogError, match=r"segment 1: format 1, this mbcal reads format 2; read it with the mbcal that"):
        list(read_log(folder, []))


def test_damage_in_a_closed_segment_is_reported(folder: Path) -> None:
    records = mixed_records(40)
    write_log(folder, records, segment_bytes=1000)
    first = folder / "segment-000001.log"
    assert len(list(folder.glob("*.log"))) > 2
    content = first.read_bytes()
    first.write_bytes(content[:-3])  # only the last segment may end in an incomplete record
    with pytest.raises(LogError, match=r"segment-000001.log: damaged at byte"):
        list(read_log(folder))
    lost: list[Loss] = []
    rest = list(read_log(folder, lost))
    damage, missing = lost
    assert isinstance(missing, Missing)
    assert str(missing) == f"{first}: cut off; record {missing.first} is lost"
    assert records[: missing.first - 1] + records[missing.first :] == rest
    assert compact_log(folder).left == [damage]
    assert first.read_bytes() == content[:-3]
    assert list(read_log(folder, [])) == rest


def test_a_record_of_an_unknown_kind_is_damage(folder: Path) -> None:
    folder.mkdir()
    payload = b"\x92\x09\xa1x"  # kind 9
    later = frame_record(payload, 1, HEADER.size, 1)
    (folder / "segment-000001.log").write_bytes(segment_header(1) + later)
    with pytest.raises(LogError, match=r"damaged at byte 16 .no record this mbcal can read: Invalid value 9"):
        list(read_log(folder))


@pytest.mark.parametrize("time", [2**63, 2**64 - 1])
def test_a_time_beyond_64_bits_is_refused_and_in_a_log_it_is_damage(folder: Path, time: int) -> None:
    words = rf"time must be microseconds since 1970 in 64 bits with a sign, got {time}"
    with pytest.raises(ValueError, match=rf"decision 'd0': {words}"):
        decision(0, time=time)
    with pytest.raises(ValueError, match=rf"feedback 'f': {words}"):
        Feedback("d0", "a", "click", time, "f")
    payload = msgspec.msgpack.encode([2, "d0", "a", "click", time, "f"])  # as an earlier mbcal wrote it
    folder.mkdir()
    (folder / "segment-000001.log").write_bytes(segment_header(1) + frame_record(payload, 1, HEADER.size, 1))
    with pytest.raises(LogError, match=rf"damaged at byte 16 .no record this mbcal can read: feedback 'f': {words}"):
        list(read_log(folder))
    lost: list[Loss] = []
    assert list(read_log(folder, lost)) == []
    assert len(lost) == 1


def test_damaged_parquet_is_reported(folder: Path) -> None:
    write_log(folder, mixed_records(60), segment_bytes=1500)
    compact_log(folder)
    path = folder / "decisions-000001.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(byte ^ 0xFF for byte in content[100:110]) + content[110:])
    with pytest.raises(
        LogError, match=r"decisions-000001.parquet: damaged at byte 0 .*; restore the file, or skip what is lost"
    ):
        list(read_log(folder))


@pytest.mark.parametrize("special", ["pipe", "endless"])
def test_a_segment_that_does_not_end_is_one_sentence(tmp_path: Path, special: str) -> None:
    write_log(tmp_path, [decision(1)])
    segment = tmp_path / "segment-000002.log"
    if special == "pipe":
        os.mkfifo(segment)
    else:
        segment.symlink_to("/dev/zero")
    with pytest.raises(LogError, match=r"segment-000002.log: cannot be read \(not a plain file\)"):
        list(read_log(tmp_path))
    with pytest.raises(OutputError, match="not a plain file"):
        DecisionLog(tmp_path)


@pytest.mark.parametrize("name", ["segment-1000000000000000000000.log", "segment-4294967295.log", "segment-٠٠٠٠٠٢.log"])
def test_files_with_numbers_of_no_log_are_not_read(folder: Path, name: str) -> None:
    records = mixed_records(4)
    write_log(folder, records[:3])
    (folder / name).write_bytes((folder / "segment-000001.log").read_bytes())
    with DecisionLog(folder) as log:
        log.append(records[3]).result(10)
    assert list(read_log(folder)) == records


def test_a_mark_in_a_segment_of_no_log_is_not_believed(folder: Path) -> None:
    records = mixed_records(4)
    write_log(folder, records[:3])
    set_mark(folder, Mark(2**32 - 1, 2**64 - 1))
    with DecisionLog(folder) as log:
        log.append(records[3]).result(10)
    assert list(read_log(folder)) == records
