"""Following a log while it is written: every record once, whatever happens to the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mbcal.decision_log import DecisionLog, Loss, Record, compact_log, read_log
from mbcal.decision_log.follow import LogFollower
from mbcal.decision_log.reader import Damage
from mbcal.errors import LogError
from tests.support.decision_records import decision, mixed_records, write_log


def test_a_follower_reads_every_record_once(tmp_path: Path) -> None:
    records, folder = mixed_records(60), tmp_path / "log"
    follower = LogFollower(folder)
    assert list(follower.read()) == []
    with DecisionLog(folder, segment_bytes=1500) as log:
        read: list[Record] = []
        for number, record in enumerate(records):
            log.append(record).result(10)
            if number % 7 == 0:
                read += follower.read()
            if number == 40:
                assert compact_log(folder).segments > 1
    read += follower.read()
    assert read == records
    assert list(follower.read()) == []
    assert list(LogFollower(folder).read()) == records  # a restart begins anew
    write_log(folder / "worker-1", mixed_records(4))
    assert list(follower.read()) == mixed_records(4)


def test_a_follower_reads_a_log_that_was_begun_anew(tmp_path: Path) -> None:
    old, new = mixed_records(40), [decision(number, id=f"new-{number}") for number in range(10)]
    log, follower = tmp_path / "log", LogFollower(tmp_path / "log")
    write_log(log, old, segment_bytes=1500)
    assert list(follower.read()) == old
    log.rename(tmp_path / "old")
    for _ in range(2):
        with pytest.raises(LogError, match="log: the log was there and is gone"):
            list(follower.read())
    write_log(log, new)
    assert list(follower.read()) == new
    assert list(follower.read()) == []
    log.rename(tmp_path / "old2")
    write_log(log, old[:1])  # now a segment with the same number
    assert list(follower.read()) == old[:1]
    compact_log(log)
    assert list(follower.read()) == []


def test_a_follower_misses_the_folder_of_one_worker(tmp_path: Path) -> None:
    log, records = tmp_path / "log", [decision(number, id=f"d{number}") for number in range(4)]
    follower = LogFollower(log)
    for worker in range(2):
        write_log(log / f"worker-{worker}", records[worker : worker + 1])
    assert len(list(follower.read())) == 2
    (log / "worker-1").rename(tmp_path / "away")
    write_log(log / "worker-0", records[2:3])
    with pytest.raises(LogError, match="worker-1: the log was there and is gone"):
        list(follower.read())
    (tmp_path / "away").rename(log / "worker-1")
    assert list(follower.read()) == records[2:3]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_follower_counts_what_is_lost_between_others(tmp_path: Path, is_compacted: bool) -> None:
    log, records = tmp_path / "log", mixed_records(12)
    write_log(log, records, segment_bytes=260)  # two records in each
    if is_compacted:
        compact_log(log)
    for path in log.glob("*-000003.*"):
        path.unlink()
    follower = LogFollower(log)
    assert list(follower.read()) == records[:4] + records[6:]
    assert follower.lost == 2
    write_log(log, records[:3])
    assert list(follower.read()) == records[:3]
    assert follower.lost == 2


def test_segments_that_are_compacted_meanwhile_are_not_lost(tmp_path: Path) -> None:
    """Readers leave out old segments by the time they were last written, which compaction keeps."""
    log, records = tmp_path / "log", mixed_records(12)
    write_log(log, records, segment_bytes=260)
    for path in log.glob("segment-00000[1-3].log"):
        os.utime(path, (1000, 1000))
    since = 2000 * 10**6
    compact_log(log)
    (log / "segment-000002.log").write_bytes(b"")  # as if the compaction had been interrupted between the two
    for follower in (LogFollower(log, since), LogFollower(log, since, {".": 7})):
        assert list(follower.read()) == records[6:]
        assert (follower.lost, follower.folders) == (0, {".": 7})


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_follower_that_is_started_again_counts_what_is_gone_from_the_beginning(tmp_path: Path, is_compacted: bool) -> None:
    log, records = tmp_path / "log", mixed_records(12)
    write_log(log, records, segment_bytes=260)
    if is_compacted:
        compact_log(log)
    follower = LogFollower(log)
    assert list(follower.read()) == records
    for path in log.glob("*-00000[1-2].*"):
        path.unlink()
    again = LogFollower(log, known=follower.folders)
    assert list(again.read()) == records[4:]
    assert again.lost == 4


def test_a_damaged_archive_is_skipped_and_missed(tmp_path: Path) -> None:
    log, records = tmp_path / "log", mixed_records(12)
    write_log(log, records, segment_bytes=260)
    compact_log(log)
    (damaged,) = log.glob("decisions-000002.parquet")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    follower, lost = LogFollower(log), list[Loss]()
    kept = list(follower.read())
    assert kept[:2] + kept[-8:] == records[:2] + records[4:]
    assert follower.lost >= 1
    assert list(read_log(log, lost))[-8:] == records[4:]
    assert any(isinstance(loss, Damage) and loss.path == damaged for loss in lost)
    with pytest.raises(LogError, match=r"decisions-000002.parquet: damaged at byte 0"):
        list(read_log(log))


def test_a_follower_that_is_started_again_misses_what_an_earlier_one_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for part in ("", "worker-1"):
        write_log(log / part, mixed_records(4))
    follower = LogFollower(log)
    assert len(list(follower.read())) == 8
    known = follower.folders
    assert known == {".": 1, "worker-1": 1}
    assert len(list(LogFollower(log, known=known).read())) == 8
    (log / "worker-1").rename(tmp_path / "away")
    with pytest.raises(LogError, match="worker-1: the log was there and is gone"):
        list(LogFollower(log, known=known).read())
    log.rename(tmp_path / "gone")
    with pytest.raises(LogError, match="log: the log was there and is gone"):
        list(LogFollower(log, known=known).read())
    assert list(LogFollower(log).read()) == []


def test_an_error_in_one_log_loses_nothing_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = mixed_records(20)
    for worker in range(2):
        write_log(tmp_path / f"worker-{worker}", records[worker::2])
    follower, path = LogFollower(tmp_path), tmp_path / "worker-1" / "segment-000001.log"
    read: list[Record] = []
    hidden = path.rename(tmp_path / "hidden")
    path.mkdir()
    with pytest.raises(LogError):
        read.extend(follower.read())
    path.rmdir()
    hidden.rename(path)
    read.extend(follower.read())
    assert {record.id for record in read} == {record.id for record in records}
    assert len(read) == 20


def test_a_follower_waits_for_the_rest_of_a_record_and_skips_damage(tmp_path: Path) -> None:
    records = mixed_records(6)
    write_log(tmp_path, records)
    (segment,) = tmp_path.glob("segment-*.log")
    content = segment.read_bytes()
    segment.write_bytes(content[:-3])
    follower = LogFollower(tmp_path)
    assert list(follower.read()) == records[:-1]
    segment.write_bytes(content)
    assert list(follower.read()) == records[-1:]
    damaged = bytearray(content)
    damaged[40] ^= 1  # in the first record
    segment.write_bytes(damaged)
    assert list(LogFollower(tmp_path).read()) == records[1:]


def test_what_was_compacted_before_the_time_that_matters_is_not_read(tmp_path: Path) -> None:
    """Not even if it is damaged: a trial needs nothing of it."""
    records, folder = mixed_records(60), tmp_path / "log"
    write_log(folder, records[:40], segment_bytes=1500)
    with DecisionLog(folder, segment_bytes=1 << 20) as log:  # begins a segment, so that those before it can be compacted
        log.append(records[40]).result(10)
    compact_log(folder)
    archive = sorted(folder.glob("*.parquet"))
    assert archive
    for path in archive:
        path.write_bytes(b"damaged")
        os.utime(path, (1000.0, 1000.0))
    assert LogFollower(folder).lost == 0
    follower = LogFollower(folder, since=10**15)
    assert records[40] in list(follower.read())
    write_log(folder, records[41:])
    assert list(follower.read()) == records[41:]
