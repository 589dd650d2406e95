"""A log that cannot be written says so, refuses records, and recovers by itself when the cause has gone."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mbcal.decision_log import DecisionLog, Loss, Missing, appender, writer
from mbcal.decision_log.reader import read_log
from mbcal.errors import LogUnavailableError, OutputError
from tests.support.decision_records import decision, write_log


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.02)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Events(list[tuple[str, dict[str, Any]]]):
    def __call__(self, event: str, **values: Any) -> None:
        self.append((event, values))


def ids(folder: Path) -> list[str]:
    return [record.id for record in read_log(folder)]


@pytest.mark.parametrize("written", [0, 1, 9, 60])
def test_a_full_disk_is_one_outage(folder: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    events = Events()
    with DecisionLog(folder, on_event=events) as log:
        log.append(decision(1)).result(10)
        real, left = os.write, [written]

        def full(file: int, data: bytes) -> int:
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            part, left[0] = left[0], 0
            return real(file, data[:part])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(LogUnavailableError, match=r"log: cannot be written \(the disk is full\); 1 record was not"):
                log.append(decision(2)).result(10)
            assert log.outage == "the disk is full"
            for _ in range(3):  # refused at once, without a write
                with pytest.raises(LogUnavailableError, match="the disk is full"):
                    log.append(decision(3))
            with pytest.raises(LogUnavailableError, match="the disk is full"):
                asyncio.run(log.append_async(decision(3)))
            time.sleep(0.1)
            assert log.outage is not None
            assert ids(folder) == ["d1"]
        wait_until(lambda: log.outage is None)
        log.append(decision(4)).result(10)
        assert (log.waiting, log.outages, log.last_record, log.lost) == (0, 1, 2, 0)
    assert ids(folder) == ["d1", "d4"]
    assert [event for event, _ in events] == ["log_outage", "log_recovered"]
    assert (events[0][1]["reason"], events[1][1]["refused"]) == ("the disk is full", 5)


def test_a_failed_sync_at_the_end_leaves_a_log_that_opens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with DecisionLog(folder) as log:
        log.append(decision(1)).result(10)
        monkeypatch.setattr(os, "fdatasync", fail)  # written, but possibly not on disk
        with pytest.raises(LogUnavailableError, match=r"cannot be written \(Input/output error\); 1 record was not logged"):
            asyncio.run(log.append_async(decision(2)))
    monkeypatch.undo()
    write_log(folder, [decision(3)])
    assert ids(folder) == ["d1", "d3"]


def test_a_segment_that_cannot_be_created_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with DecisionLog(folder, segment_bytes=200) as log:
        log.append(decision(1)).result(10)
        with monkeypatch.context() as patch:
            patch.setattr(appender, "fsync", fail)
            for number in (2, 3):
                with pytest.raises(LogUnavailableError, match=r"the disk is full"):
                    log.append(decision(number)).result(10)
                wait_until(lambda: log.outage is None)  # the old segment has room for the probe, but not for a record
            assert [path.name for path in folder.glob("*.log")] == ["segment-000001.log"]
        log.append(decision(4)).result(10)
    assert sorted(path.name for path in folder.glob("*.log")) == ["segment-000001.log", "segment-000002.log"]
    assert ids(folder) == ["d1", "d4"]


def test_a_read_only_disk_is_an_outage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int, data: bytes) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    with DecisionLog(folder) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fail)
            with pytest.raises(LogUnavailableError, match=r"\(Read-only file system\)") as refusal:
                log.append(decision(1)).result(10)
            assert refusal.value.reason == "Read-only file system"
        wait_until(lambda: log.outage is None)
        log.append(decision(2)).result(10)
    assert ids(folder) == ["d2"]


@pytest.mark.parametrize("is_busy", [True, False])
def test_an_unlinked_segment_is_noticed_and_named(folder: Path, is_busy: bool) -> None:
    events = Events()
    with DecisionLog(folder, on_event=events) as log:
        for number in (1, 2):
            log.append(decision(number)).result(10)
        (folder / "segment-000001.log").unlink()
        if is_busy:
            with pytest.raises(LogUnavailableError, match="the current segment has vanished"):
                log.append(decision(3)).result(10)
        wait_until(lambda: [event for event, _ in events] == ["log_outage", "log_recovered"])  # also without records
        assert log.lost == 2
        log.append(decision(4)).result(10)
    lost: list[Loss] = []
    assert [record.id for record in read_log(folder, lost)] == ["d4"]
    assert lost == [Missing(folder / "segment-000001.log", 1, 2, "missing")]
    assert str(lost[0]) == f"{folder}/segment-000001.log: missing; records 1 to 2 are lost"


@pytest.mark.parametrize("is_reopened", [True, False])
def test_a_log_that_was_removed_counts_all_of_its_records(folder: Path, is_reopened: bool) -> None:
    log = DecisionLog(folder, segment_bytes=500)
    for number in range(1, 8):
        log.append(decision(number)).result(10)
    if is_reopened:
        log.close()
        log = DecisionLog(folder, segment_bytes=500)
    with log:
        assert len(list(folder.glob("segment-*.log"))) >= 2
        log.append(decision(8)).result(10)
        shutil.rmtree(folder)
        folder.mkdir()
        wait_until(lambda: log.outages == 1 and log.outage is None)
        assert log.lost == 8
        log.append(decision(9)).result(10)
        next(folder.glob("segment-*.log")).unlink()
        wait_until(lambda: log.outages == 2 and log.outage is None)
        assert log.lost == 9


def test_losses_add_up(folder: Path) -> None:
    with DecisionLog(folder) as log:
        for outage, segment in enumerate(("segment-000001.log", "segment-000002.log"), start=1):
            for number in (1, 2, 3):
                log.append(decision(10 * outage + number)).result(10)
            os.truncate(folder / segment, 150)  # the first record is left
            wait_until(lambda: log.outages == outage and log.outage is None)  # noqa: B023 - called at once
            assert log.lost == 2 * outage


@pytest.mark.parametrize(
    ("change", "reason", "loss"),
    [
        (lambda path: os.truncate(path, 150), "the current segment was cut off", "cut off; record 2 is lost"),
        (
            lambda path: path.write_bytes(path.read_bytes() + b"?"),
            "another program has written to the current",
            "damaged at byte",
        ),
    ],
)
def test_a_segment_changed_by_another_program_is_left_behind(
    folder: Path, change: Callable[[Path], Any], reason: str, loss: str
) -> None:
    with DecisionLog(folder) as log:
        for number in (1, 2):
            log.append(decision(number)).result(10)
        change(folder / "segment-000001.log")
        wait_until(lambda: log.outages == 1 and log.outage is None)
        log.append(decision(3)).result(10)
        assert log.lost == (1 if "cut" in reason else 0)
    lost: list[Loss] = []
    kept = ["d1", "d3"] if "cut" in reason else ["d1", "d2", "d3"]
    assert [record.id for record in read_log(folder, lost)] == kept
    assert loss in str(lost[-1])


def test_a_folder_that_moved_is_waited_for(folder: Path, tmp_path: Path) -> None:
    with DecisionLog(folder) as log:
        log.append(decision(1)).result(10)
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(LogUnavailableError, match="vanished"):
            log.append(decision(2)).result(10)
        time.sleep(0.1)
        assert log.outage == "No such file or directory"
        assert not folder.exists()  # a folder that has gone, perhaps with its disk, is not made anew
        (tmp_path / "elsewhere").rename(folder)
        wait_until(lambda: log.outage is None)
        log.append(decision(3)).result(10)
    assert ids(folder) == ["d1", "d3"]
    assert len(list(folder.glob("*.log"))) == 1  # the same segment goes on


def test_a_folder_that_was_replaced_is_locked_and_continued(folder: Path, tmp_path: Path) -> None:
    with DecisionLog(folder) as log:
        log.append(decision(1)).result(10)
        folder.rename(tmp_path / "elsewhere")
        folder.mkdir()
        wait_until(lambda: log.outages == 1 and log.outage is None)
        log.append(decision(2)).result(10)
        with pytest.raises(Exception, match="another process writes this decision log"):
            DecisionLog(folder)
    lost: list[Loss] = []
    assert [record.id for record in read_log(folder, lost)] == ["d2"]
    assert lost == [Missing(folder / "segment-000001.log", 1, 1, "missing")]
    shutil.copy(tmp_path / "elsewhere/segment-000001.log", folder)
    assert ids(folder) == ["d1", "d2"]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_records_of_another_log_in_its_place_do_not_count_as_left(folder: Path, tmp_path: Path, is_reopened: bool) -> None:
    write_log(tmp_path / "other", [decision(number) for number in range(10, 20)])
    log = DecisionLog(folder)
    for number in (1, 2, 3):
        log.append(decision(number)).result(10)
    if is_reopened:
        log.close()
        log = DecisionLog(folder)
    with log:
        folder.rename(tmp_path / "elsewhere")
        (tmp_path / "other").rename(folder)
        wait_until(lambda: log.outages == 1 and log.outage is None)
        assert log.lost == 3
        log.append(decision(4)).result(10)
    assert ids(folder) == [*(f"d{number}" for number in range(10, 20)), "d4"]


def test_a_segment_that_was_restored_is_not_lost(folder: Path, tmp_path: Path) -> None:
    with DecisionLog(folder) as log:
        for number in (1, 2, 3):
            log.append(decision(number)).result(10)
        shutil.copytree(folder, tmp_path / "copy")
        folder.rename(tmp_path / "elsewhere")
        (tmp_path / "copy").rename(folder)  # the same bytes in other files, as on a disk that was mounted again
        wait_until(lambda: log.outages == 1 and log.outage is None)
        assert log.lost == 0
        log.append(decision(4)).result(10)
    assert ids(folder) == ["d1", "d2", "d3", "d4"]


def test_a_folder_that_must_exist_is_not_made(folder: Path) -> None:
    with pytest.raises(OutputError, match="log: cannot be written"):
        DecisionLog(folder, create=False)
    assert not folder.exists()
    DecisionLog(folder).close()
    DecisionLog(folder, create=False).close()


def test_closing_does_not_wait_for_a_disk_that_stalls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, goes_on, real = DecisionLog(folder), threading.Event(), appender._fdatasync
    log.append(decision(1)).result(10)
    monkeypatch.setattr(appender, "_fdatasync", lambda file: (goes_on.wait(20), real(file)))
    waiting = log.append(decision(2))
    assert not log.close(0.1)
    assert not waiting.done()
    goes_on.set()
    assert log.close()
    waiting.result(10)
    assert ids(folder) == ["d1", "d2"]


def test_a_disk_that_does_not_answer_refuses_new_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "STALL_SECONDS", 0.1)
    goes_on, real = threading.Event(), appender._fdatasync
    with DecisionLog(folder) as log:
        monkeypatch.setattr(appender, "_fdatasync", lambda file: (goes_on.wait(20), real(file)))
        waiting = log.append(decision(1))
        wait_until(lambda: log.problem is not None)
        with pytest.raises(LogUnavailableError, match=r"cannot be written \(the disk does not answer\)"):
            log.append(decision(2))
        with pytest.raises(LogUnavailableError):
            log.require_writable()  # what /readyz asks
        goes_on.set()
        waiting.result(10)
        wait_until(lambda: log.problem is None)
        log.append(decision(3)).result(10)
    assert ids(folder) == ["d1", "d3"]
