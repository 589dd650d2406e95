"""The decision log keeps what it acknowledged: through kills, torn tails, flipped bytes, full disks and compaction."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mbcal.decision_log import Damage, Decision, DecisionLog, Feedback, compaction, writer
from mbcal.decision_log.compaction import compact_log
from mbcal.decision_log.reader import read_log, segment_records
from mbcal.decision_log.records import Record, decode, encode
from mbcal.decision_log.segments import FRAME_BYTES, HEADER, MAX_RECORD_BYTES, frame_record, segment_header
from mbcal.errors import InputError, LogError, LogFullError, OptionError, OutputError
from mbcal.storage import atomic


def decision(number: int, **changes: Any) -> Decision:
    said: dict[str, Any] = {
        "id": f"d{number}",
        "time": 1_000_000 * number,
        "session": f"s{number % 3}",
        "user": "ümläut",
        "step": number,
        "version": "v1",
        "epsilon": 0.1,
        "history": [("a", "click"), ("b", "skip")],
        "shown": [("c", "click")] * (number % 2),
        "candidates": ["a", "b", "c"],
        "items": ["c", "a"],
        "propensities": [0.9 + 1e-16, 0.1 / 3],
    }
    return Decision(**{**said, **changes})


def feedback(number: int) -> Feedback:
    return Feedback(f"d{number}", "c", "click", 1_000_000 * number + 5, f"f{number}")


def mixed(count: int) -> list[Record]:
    return [feedback(number // 2) if number % 2 else decision(number // 2) for number in range(count)]


def write(folder: Path, records: list[Record], **options: Any) -> None:
    with DecisionLog(folder, **options) as opened:
        for record in records:
            opened.append(record).result(10)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def slow_sync(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every sync takes 20 ms; the list holds one entry each."""
    calls: list[int] = []
    sync = os.fdatasync

    def slowly(file: int) -> None:
        calls.append(file)
        time.sleep(0.02)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", slowly)
    return calls


def test_records_come_back_as_they_went(place: Path) -> None:
    records = mixed(7)
    write(place, records)
    assert list(read_log(place)) == records
    assert [decode(encode(record)) for record in records] == records
    assert (place / "segment-000001.log").read_bytes()[:16] == b"mbcallog\x01\0\0\0\x01\0\0\0"


def test_a_decision_refuses_propensities_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"decision 'd1': 2 items but 1 propensities; give one each"):
        decision(1, propensities=[1.0])
    with pytest.raises(ValueError, match=r"propensities must be in \(0, 1\], got 0"):
        decision(1, propensities=[0.5, 0])
    with pytest.raises(ValueError, match=r"got nan"):
        decision(1, propensities=[0.5, float("nan")])


def test_a_log_goes_on_where_it_ended(place: Path) -> None:
    records = mixed(6)
    write(place, records[:3])
    write(place, records[3:])
    assert list(read_log(place)) == records
    assert [path.name for path in place.glob("*.log")] == ["segment-000001.log"]


def test_every_truncation_recovers_exactly_the_whole_records(place: Path) -> None:
    records = mixed(4)
    write(place, records)
    path = place / "segment-000001.log"
    whole = path.read_bytes()
    ends = [HEADER.size]
    for record in records:
        ends.append(ends[-1] + FRAME_BYTES + len(encode(record)))
    assert ends[-1] == len(whole)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = sum(size >= end for end in ends[1:])
        assert list(read_log(place)) == records[:kept]  # reading does not mend
        with DecisionLog(place) as opened:
            torn = size not in ends and size > HEADER.size
            cut = f"{path}: {size - ends[kept]} bytes of an incomplete record removed after {kept} records"
            assert opened.notes == ((cut,) if torn else ())
            opened.append(records[-1]).result(10)
        assert list(read_log(place)) == [*records[:kept], records[-1]]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\xff" * 40, b"\x10\0\0\0abcd", os.urandom(300)])
def test_a_tail_of_anything_is_cut(place: Path, tail: bytes) -> None:
    """A machine that loses power may leave zeros, or an old block, where the last write was to be."""
    records = mixed(3)
    write(place, records)
    with (place / "segment-000001.log").open("ab") as file:
        file.write(tail)
    assert list(read_log(place)) == records
    with DecisionLog(place) as opened:
        assert len(opened.notes) == 1
    assert list(read_log(place)) == records


def test_a_record_quoted_in_another_is_never_taken_for_one(place: Path) -> None:
    quoted = frame_record(encode(decision(7)), 1, HEADER.size).decode("latin-1")
    write(place, [decision(1, user=quoted)])
    path = place / "segment-000001.log"
    path.write_bytes(path.read_bytes()[:-1])
    assert list(read_log(place)) == []
    with DecisionLog(place) as opened:
        assert "removed after 0 records" in opened.notes[0]


def test_every_flipped_byte_costs_its_record_and_no_other(place: Path) -> None:
    records = mixed(3)
    write(place, records)
    path = place / "segment-000001.log"
    whole = path.read_bytes()
    second = HEADER.size + FRAME_BYTES + len(encode(records[0]))
    third = second + FRAME_BYTES + len(encode(records[1]))
    for at in range(second, third):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(LogError, match=rf"segment-000001.log: damaged at byte {second} .*--skip-damaged"):
            list(read_log(place))
        skipped: list[Damage] = []
        assert list(read_log(place, skipped)) == [records[0], records[2]]
        assert [(damage.offset, damage.size) for damage in skipped] == [(second, third - second)]
    with DecisionLog(place) as opened:  # records follow the damage, so it is no torn tail: nothing may be cut
        assert opened.notes == (f"{path}: damaged in the middle; it is left as it is and segment 2 is begun",)
        opened.append(records[1]).result(10)
    assert list(read_log(place, [])) == [records[0], records[2], records[1]]


def test_flips_at_the_tail_and_in_the_header(place: Path) -> None:
    records = mixed(3)
    write(place, records)
    path = place / "segment-000001.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\xff")
    assert list(read_log(place)) == records[:2]
    for at in range(HEADER.size):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        if 8 <= at < 12:
            with pytest.raises(LogError, match=r"this mbcal reads up to 1; read it with a newer mbcal"):
                list(read_log(place))
        else:
            with pytest.raises(LogError, match=r"damaged at byte 0 .no valid segment header"):
                list(read_log(place))
            assert list(read_log(place, [])) == records


def test_damage_in_a_closed_segment_names_it(place: Path) -> None:
    records = mixed(40)
    write(place, records, segment_bytes=1000)
    first = place / "segment-000001.log"
    assert len(list(place.glob("*.log"))) > 2
    whole = first.read_bytes()
    first.write_bytes(whole[:-3])  # a tail is torn only at the end of the last segment
    with pytest.raises(LogError, match=r"segment-000001.log: damaged at byte"):
        list(read_log(place))
    skipped: list[Damage] = []
    rest = list(read_log(place, skipped))
    assert len(skipped) == 1
    assert len(rest) == len(records) - 1
    assert compact_log(place).left == skipped
    assert first.read_bytes() == whole[:-3]
    assert list(read_log(place, [])) == rest


def test_segments_stay_within_their_size(place: Path) -> None:
    records = mixed(60)
    with DecisionLog(place, segment_bytes=1000) as opened:
        for done in [opened.append(record) for record in records]:
            done.result(10)
    sizes = [path.stat().st_size for path in place.glob("*.log")]
    assert max(sizes) <= 1000
    assert len(sizes) >= sum(sizes) / 1000
    assert list(read_log(place)) == records
    write(place / "tiny", records[:3], segment_bytes=1)  # a record that fits nowhere gets a segment of its own
    assert len(list((place / "tiny").glob("*.log"))) == 3


KILLED = """
import sys, threading
from mbcal.decision_log import Decision, DecisionLog
log, first = DecisionLog(sys.argv[1], segment_bytes=20_000), sys.argv[2]
def keep_appending(thread):
    for number in range(10**9):
        name = f"{first}-{thread}-{number}"
        log.append(Decision(name, 1, "s", "u", 0, "v", 0.1, [], [], ["a"] * 30, ["a"], [1.0])).result()
        sys.stdout.write(name + "\\n"); sys.stdout.flush()
for thread in range(4):
    threading.Thread(target=keep_appending, args=[thread], daemon=True).start()
threading.Event().wait()
"""


def test_a_kill_loses_nothing_acknowledged(place: Path) -> None:
    acknowledged: set[str] = set()
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(place), str(attempt)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))  # noqa: B023
        reader.start()
        time.sleep(0.05 + 0.03 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()
        process.stdout.close()
        acknowledged |= {line[:-1] for line in lines if line.endswith("\n")}
        assert sum(name.startswith(f"{attempt}-") for name in acknowledged) > 0
        logged = [record.id for record in read_log(place)]
        assert acknowledged <= set(logged)
        assert len(logged) == len(set(logged))
    assert len(list(place.glob("*.log"))) > 1
    compact_log(place)
    assert acknowledged <= {record.id for record in read_log(place)}


def test_a_thousand_appends_share_few_syncs(place: Path, slow_sync: list[int]) -> None:
    with DecisionLog(place) as opened:
        slow_sync.clear()
        records = [decision(number) for number in range(1000)]

        async def all_at_once() -> None:
            await asyncio.gather(*(opened.append_async(record) for record in records))

        asyncio.run(all_at_once())
        assert 1 <= len(slow_sync) <= 5
        slow_sync.clear()
        threads = [threading.Thread(target=lambda k=k: opened.append(decision(k)).result(10)) for k in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(slow_sync) <= 100
    assert {record.id for record in read_log(place)} == {record.id for record in records}
    assert len(list(read_log(place))) == 1200


def test_a_record_lingers_for_others(place: Path, slow_sync: list[int]) -> None:
    with DecisionLog(place, linger=0.2) as opened:
        slow_sync.clear()

        async def several() -> None:
            waiting = [asyncio.create_task(opened.append_async(decision(number))) for number in range(10)]
            for number in range(10, 20):  # and those that come a little later
                await asyncio.sleep(0.005)
                waiting.append(asyncio.create_task(opened.append_async(decision(number))))
            await asyncio.gather(*waiting)

        asyncio.run(several())
        assert len(slow_sync) == 1
    assert len(list(read_log(place))) == 20
    with pytest.raises(OptionError, match="linger"):
        DecisionLog(place, linger=-1)


def test_what_lingers_is_written_though_its_loop_is_gone(place: Path) -> None:
    with DecisionLog(place, linger=1.0) as opened:

        async def leave(number: int) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(opened.append_async(decision(number)), 0.01)

        asyncio.run(leave(0))
        asyncio.run(leave(1))
        assert opened.waiting == 2
    assert [record.id for record in read_log(place)] == [decision(0).id, decision(1).id]


def test_nothing_is_acknowledged_before_its_sync(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DecisionLog(place) as opened:
        allowed = threading.Event()
        monkeypatch.setattr(os, "fdatasync", lambda file: allowed.wait(10))
        done = opened.append(decision(1))
        time.sleep(0.1)
        assert not done.done()
        assert not done.cancel()
        allowed.set()
        assert done.result(10) is None


def test_too_many_waiting_are_refused(place: Path, slow_sync: list[int]) -> None:
    with DecisionLog(place, max_waiting=10) as opened:
        accepted = [opened.append(decision(number)) for number in range(10)]
        with pytest.raises(LogFullError, match=r"10 records wait to be written; try again in a moment"):
            opened.append(decision(10))
        for done in accepted:
            done.result(10)
        opened.append(decision(11)).result(10)  # room again
        assert opened.waiting == 0
    assert [record.id for record in read_log(place)] == [*(f"d{number}" for number in range(10)), "d11"]


def test_a_client_who_left_does_not_disturb_the_others(place: Path, slow_sync: list[int]) -> None:
    async def leave() -> None:
        left, stayed = (asyncio.ensure_future(opened.append_async(decision(number))) for number in (1, 2))
        await asyncio.sleep(0)
        left.cancel()
        await stayed

    with DecisionLog(place) as opened:
        asyncio.run(leave())
    assert [record.id for record in read_log(place)] == ["d1", "d2"]


def test_closing_writes_what_waits(place: Path, slow_sync: list[int]) -> None:
    opened = DecisionLog(place)
    waiting = [opened.append(decision(number)) for number in range(50)]
    opened.close()
    opened.close()
    assert all(done.done() and done.exception() is None for done in waiting)
    assert len(list(read_log(place))) == 50
    with pytest.raises(LogError, match=r"the decision log is closed; open it again to append"):
        opened.append(decision(51))


@pytest.mark.parametrize("written", [0, 1, 9, 60])
def test_a_full_disk_fails_what_waits_and_is_forgotten(place: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    with DecisionLog(place) as opened:
        opened.append(decision(1)).result(10)
        real, left = os.write, [written]

        def full(file: int, data: bytes) -> int:
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            part, left[0] = left[0], 0
            return real(file, data[:part])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(OutputError, match=r"log: the disk is full; 1 record was not logged, free some space and"):
                opened.append(decision(2)).result(10)
            assert [record.id for record in read_log(place)] == ["d1"]
        opened.append(decision(3)).result(10)
        assert opened.waiting == 0
        assert [record.id for record in read_log(place)] == ["d1", "d3"]
    assert [record.id for record in read_log(place)] == ["d1", "d3"]


def test_a_disk_full_at_the_end_leaves_a_log_that_opens(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with DecisionLog(place) as opened:
        opened.append(decision(1)).result(10)
        monkeypatch.setattr(os, "fdatasync", fail)  # written, but who knows what is on the disk
        with pytest.raises(OutputError, match=r"cannot be written \(Input/output error\); 1 record was not logged"):
            asyncio.run(opened.append_async(decision(2)))
        monkeypatch.undo()
    write(place, [decision(3)])
    assert [record.id for record in read_log(place)] == ["d1", "d3"]


def test_a_segment_that_cannot_begin_is_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with DecisionLog(place, segment_bytes=150) as opened:
        opened.append(decision(1)).result(10)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "fsync", fail)
            for _ in range(2):
                with pytest.raises(OutputError, match=r"the disk is full"):
                    opened.append(decision(2)).result(10)
            assert [path.name for path in place.glob("*.log")] == ["segment-000001.log"]
        opened.append(decision(3)).result(10)
    assert sorted(path.name for path in place.glob("*.log")) == ["segment-000001.log", "segment-000002.log"]
    assert [record.id for record in read_log(place)] == ["d1", "d3"]


def test_one_writer_a_folder(place: Path) -> None:
    with DecisionLog(place):
        with pytest.raises(LogError, match=r"another process writes this decision log; stop it or choose another folder"):
            DecisionLog(place)
        script = f"from mbcal.decision_log import DecisionLog; DecisionLog({str(place)!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "another process writes this decision log" in done.stderr
    DecisionLog(place).close()


def test_reading_while_writing_sees_a_prefix(place: Path) -> None:
    records = mixed(400)
    with DecisionLog(place, segment_bytes=4000) as opened:
        writer = threading.Thread(target=lambda: [opened.append(record).result(10) for record in records])
        writer.start()
        sizes = []
        while writer.is_alive():
            if list(place.glob("*.log")):
                found = list(read_log(place))
                assert found == records[: len(found)]
                sizes.append(len(found))
            if len(sizes) % 3 == 0:
                compact_log(place)
        writer.join()
    assert sizes == sorted(sizes)
    assert list(read_log(place)) == records


def test_what_cannot_be_logged_is_said_at_once(place: Path, tmp_path: Path) -> None:
    with DecisionLog(place) as opened:
        with pytest.raises(LogError, match=f"at most {MAX_RECORD_BYTES:,} are allowed; give fewer candidates"):
            opened.append(decision(1, user="x" * (MAX_RECORD_BYTES + 1)))
        with pytest.raises(InputError, match=r"record 'd1': cannot be written .*; give plain text and 64-bit numbers"):
            opened.append(decision(1, user="\ud800"))
        with pytest.raises(InputError, match=r"64-bit"):
            opened.append(decision(1, time=2**70))
        opened.append(decision(2)).result(10)
    assert [record.id for record in read_log(place)] == ["d2"]
    with pytest.raises(
        OptionError, match=r"segment_bytes and max_waiting must be at least 1 and linger in .0, 1., got 0, 5 and 0.0"
    ):
        DecisionLog(place, segment_bytes=0, max_waiting=5)
    with pytest.raises(LogError, match=r"nothing: cannot be read .No such file or directory.; give the folder"):
        list(read_log(tmp_path / "nothing"))
    with pytest.raises(LogError, match=r"no decision log .no segments."):
        list(read_log(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file: cannot be written"):
        DecisionLog(tmp_path / "file")


def test_a_record_of_a_later_kind_is_damage_by_name(place: Path) -> None:
    place.mkdir()
    payload = b"\x92\x09\xa1x"  # kind 9
    later = frame_record(payload, 1, HEADER.size)
    (place / "segment-000001.log").write_bytes(segment_header(1) + later)
    with pytest.raises(LogError, match=r"damaged at byte 16 .no record this mbcal can read: Invalid value 9"):
        list(read_log(place))


def test_compaction_changes_nothing_but_the_size(place: Path) -> None:
    bare = decision(500, history=[], shown=[], items=[], propensities=[], candidates=[], version="v2")
    records = [bare, feedback(501), *mixed(200)]
    write(place / "single", records[:4], segment_bytes=1)  # a record a segment: lists and files without anything in them
    assert compact_log(place / "single").records == 3
    assert list(read_log(place / "single")) == records[:4]
    write(place, records, segment_bytes=8000)
    before = len(list(place.glob("*.log")))
    done = compact_log(place)
    assert (done.segments, done.left) == (before - 1, [])
    assert done.records == sum(1 for _ in read_log(place)) - len([*records_of_last(place)])
    assert [path.name for path in place.glob("*.log")] == [f"segment-{before:06d}.log"]
    assert list(read_log(place)) == records
    assert compact_log(place).segments == 0
    write(place, [decision(900)])
    assert list(read_log(place)) == [*records, decision(900)]
    (place / f"segment-{before:06d}.log").unlink()  # even without its last segment a log never takes a number twice
    write(place, [decision(901)], segment_bytes=8000)
    (made,) = place.glob("*.log")
    assert made.name == f"segment-{before:06d}.log"


def records_of_last(place: Path) -> list[Record]:
    (path,) = place.glob("*.log")
    number = int(path.stem.split("-")[1])
    return list(segment_records(path, number, path.read_bytes(), True, None))


class Stopped(Exception):  # noqa: N818  # it stands for a kill
    pass


@pytest.mark.parametrize("step", range(9))
def test_compaction_may_stop_anywhere(place: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Every rename, removal and flush of it in turn is the last thing that happens, or just does not."""
    records = mixed(60)
    write(place, records, segment_bytes=1500)
    counter = [0]

    def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
        def stop(*given: Any, **named: Any) -> Any:
            counter[0] += 1
            if counter[0] > step:
                raise Stopped
            return real(*given, **named)

        return stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping(os.replace))
        patch.setattr(Path, "unlink", stopping(Path.unlink))
        patch.setattr(atomic, "fsync", stopping(atomic.fsync))
        patch.setattr(compaction, "fsync", stopping(compaction.fsync))
        with pytest.raises(Stopped):
            compact_log(place)
    assert list(read_log(place)) == records
    write(place, [decision(99)], segment_bytes=1500)
    assert list(read_log(place)) == [*records, decision(99)]
    assert compact_log(place).left == []
    assert list(read_log(place)) == [*records, decision(99)]
    names = sorted(path.name for path in place.iterdir())
    assert not [name for name in names if "partial" in name]
    assert len([name for name in names if name.startswith("segment")]) == 1


def test_damaged_parquet_is_named(place: Path) -> None:
    write(place, mixed(60), segment_bytes=1500)
    compact_log(place)
    path = place / "decisions-000001.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes(byte ^ 0xFF for byte in whole[100:110]) + whole[110:])
    with pytest.raises(LogError, match=r"decisions-000001.parquet: cannot be read .*; restore the file from a copy"):
        list(read_log(place))


def test_one_compaction_at_a_time(place: Path) -> None:
    import fcntl

    write(place, mixed(60), segment_bytes=1500)
    with (place / "compaction.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LogError, match=r"another process compacts this decision log"):
            compact_log(place)
    assert compact_log(place).segments > 0


def test_serving_needs_no_torch() -> None:
    script = "import sys, mbcal.serving; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_msgspec_one_sentence() -> None:
    script = "import sys; sys.modules['msgspec'] = None; import mbcal.decision_log"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert re.search(r"OptionError: msgspec is not installed, .*; pip install 'mbcal\[serve\]'$", done.stderr.strip())
