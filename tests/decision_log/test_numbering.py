"""Records are numbered over segments, restarts and compaction; a reader names what is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mbcal.decision_log import DecisionLog, Loss, Missing, compact_log, read_log
from mbcal.decision_log.archive import read_parquet
from mbcal.decision_log.numbering import Mark, read_mark
from mbcal.decision_log.reader import read_backwards
from mbcal.decision_log.segments import scan_segment
from mbcal.errors import LogError
from tests.support.decision_records import mixed_records, write_log


def segment(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:06d}.log"


def numbers_in(path: Path) -> list[int]:
    return [span.number for span in scan_segment(path.read_bytes(), int(path.stem.split("-")[1]))]


@pytest.fixture
def log(folder: Path) -> Path:
    """Twelve records in segments of two, written by two processes."""
    for records in (mixed_records(12)[:5], mixed_records(12)[5:]):
        write_log(folder, records, segment_bytes=260)
    assert [numbers_in(segment(folder, number)) for number in range(1, 7)] == [[n, n + 1] for n in range(1, 12, 2)]
    return folder


def test_numbers_continue_over_segments_restarts_and_compaction(log: Path) -> None:
    assert read_mark(log) == Mark(6, 12)
    assert compact_log(log).records == 10
    assert [number for number, _ in read_parquet(log, 3)] == [5, 6]
    write_log(log, mixed_records(3))
    assert numbers_in(segment(log, 6)) == [11, 12, 13, 14, 15]
    (log / "acknowledged").unlink()  # the numbers are in the files, too
    segment(log, 6).unlink()
    write_log(log, mixed_records(1))
    assert numbers_in(segment(log, 6)) == [11]
    assert list(read_log(log)) == [*mixed_records(12)[:10], mixed_records(1)[0]]


def test_missing_segments_are_named(log: Path) -> None:
    for removed, first, last, reason in (
        ([3], 5, 6, "missing"),
        ([1], 1, 2, "missing"),
        ([2, 3], 3, 6, "missing, and all segments up to segment-000003.log"),
        ([6], 11, 12, "missing"),
        ([5, 6], 9, 12, "missing, and all segments up to segment-000006.log"),
    ):
        contents = {number: segment(log, number).read_bytes() for number in removed}
        for number in removed:
            segment(log, number).unlink()
        lost: list[Loss] = []
        assert list(read_log(log, lost)) == mixed_records(12)[: first - 1] + mixed_records(12)[last:]
        assert lost == [Missing(segment(log, removed[0]), first, last, reason)]
        with pytest.raises(
            LogError, match=rf"{segment(log, removed[0]).name}: missing.*are lost; restore the file, or skip"
        ):
            list(read_log(log))
        for number, content in contents.items():
            segment(log, number).write_bytes(content)
    assert list(read_log(log)) == mixed_records(12)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_segments_from_before_a_time_are_not_read_nor_missed(log: Path, is_compacted: bool) -> None:
    if is_compacted:
        compact_log(log)
    for path in log.glob("*-00000*"):  # the first three were last written at 1,000 seconds, the others at 2,000
        seconds = 1000 if int(path.stem.split("-")[1]) <= 3 else 2000
        os.utime(path, (seconds, seconds))
    assert list(read_log(log, since=1_900 * 10**6)) == mixed_records(12)[6:]
    assert list(read_log(log, since=1_000 * 10**6)) == mixed_records(12)  # clocks may differ by a minute
    assert list(read_log(log, since=9_000 * 10**6)) == mixed_records(12)[10:]  # the last is always read
    for path in log.glob("*-000002.*"):
        path.unlink()
    lost: list[Loss] = []
    assert list(read_log(log, lost, since=1_900 * 10**6)) == mixed_records(12)[6:]
    assert lost == []
    for path in log.glob("*-000005.*"):
        path.unlink()
    assert list(read_log(log, lost, since=1_900 * 10**6)) == mixed_records(12)[6:8] + mixed_records(12)[10:]
    assert [str(loss).split("; ")[1] for loss in lost] == ["records 9 to 10 are lost"]


def test_segments_are_read_backwards(log: Path) -> None:
    compact_log(log)
    write_log(log, mixed_records(1))
    expected = [mixed_records(12)[n : n + 2] for n in range(10, -1, -2)]
    found = [list(records) for records in read_backwards(log)]
    assert found == [[*expected[0], *mixed_records(1)], *expected[1:]]


def test_a_missing_parquet_file_is_named(log: Path) -> None:
    compact_log(log)
    (log / "feedback-000002.parquet").unlink()
    lost: list[Loss] = []
    assert list(read_log(log, lost)) == mixed_records(12)[:2] + mixed_records(12)[4:]
    assert lost == [Missing(segment(log, 2), 3, 4, "missing")]


@pytest.mark.parametrize("number", [2, 6])
def test_a_segment_cut_between_two_records_is_named(log: Path, number: int) -> None:
    path = segment(log, number)
    spans = list(scan_segment(path.read_bytes(), number))
    path.write_bytes(path.read_bytes()[: spans[0].end])
    gone = 2 * number
    lost: list[Loss] = []
    assert list(read_log(log, lost)) == mixed_records(12)[: gone - 1] + mixed_records(12)[gone:]
    assert lost == [Missing(path, gone, gone, "cut off")]
    with DecisionLog(log) as opened:  # the numbers of lost records are not used again
        opened.append(mixed_records(1)[0]).result(10)
        assert opened.last_record == 13
        assert opened.lost == (number == 6)
        note = f"{path}: 1 acknowledged records are missing at the end of the log; segment 7 is begun"
        assert opened.notes == ((note,) if number == 6 else ())
    lost = []
    assert len(list(read_log(log, lost))) == 12
    assert lost == [Missing(path, gone, gone, "cut off")]


def test_a_log_that_is_gone_but_for_its_mark_is_named(log: Path) -> None:
    for path in log.glob("*.log"):
        path.unlink()
    lost: list[Loss] = []
    assert list(read_log(log, lost)) == []
    assert [(loss.first, loss.last) for loss in lost if isinstance(loss, Missing)] == [(1, 12)]


def test_a_damaged_mark_is_not_believed(log: Path) -> None:
    mark = log / "acknowledged"
    mark.write_bytes(b"\xff" * 16)
    assert read_mark(log) == Mark(0, 0)
    mark.write_bytes(b"short")
    assert read_mark(log) == Mark(0, 0)
    assert list(read_log(log)) == mixed_records(12)
    with DecisionLog(log) as opened:
        assert (opened.last_record, opened.notes) == (12, ())


def test_a_mark_that_was_removed_is_written_again(folder: Path) -> None:
    mark, records = folder / "acknowledged", mixed_records(3)
    with DecisionLog(folder) as log:
        log.append(records[0]).result(10)
        mark.unlink()
        log.append(records[1]).result(10)
        assert read_mark(folder) == Mark(1, 2)
        mark.unlink()
        deadline = time.monotonic() + 10
        while read_mark(folder) != Mark(1, 2) and time.monotonic() < deadline:  # also while nothing is logged
            time.sleep(0.01)
        assert read_mark(folder) == Mark(1, 2)
        mark.unlink()
        mark.mkdir()
        log.append(records[2]).result(10)  # a mark that cannot be written stops nothing
    assert list(read_log(folder)) == records


def test_the_logs_of_several_workers_are_read_as_one(folder: Path) -> None:
    records = mixed_records(8)
    write_log(folder / "worker-0", records[:3])
    write_log(folder / "worker-1", records[3:6], segment_bytes=170)
    assert list(read_log(folder)) == records[:6]
    assert compact_log(folder).records == 2
    assert list(read_log(folder)) == records[:6]
    write_log(folder, records[6:])  # by a single server
    assert list(read_log(folder)) == records[6:] + records[:6]
    next((folder / "worker-1").glob("decisions*")).unlink()
    with pytest.raises(LogError, match=r"worker-1/segment-000001.log: missing; records 1 to 2 are lost"):
        list(read_log(folder))
