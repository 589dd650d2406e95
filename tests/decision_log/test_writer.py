"""The decision log keeps every record it acknowledged: through kills and cancelled clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mbcal.decision_log import DecisionLog
from mbcal.decision_log.compaction import compact_log
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import decode, encode
from mbcal.decision_log.segments import MAX_RECORD_BYTES
from mbcal.errors import InputError, LogError, LogFullError, OptionError, OutputError
from tests.support.decision_records import decision, mixed_records, write_log


def test_records_are_read_as_they_were_written(folder: Path) -> None:
    records = mixed_records(7)
    write_log(folder, records)
    assert list(read_log(folder)) == records
    assert [decode(encode(record)) for record in records] == records
    assert (folder / "segment-000001.log").read_bytes()[:16] == b"mbcallog\x02\0\0\0\x01\0\0\0"


def test_a_decision_refuses_invalid_propensities() -> None:
    with pytest.raises(ValueError, match=r"decision 'd1': 2 items but 1 propensities; give one each"):
        decision(1, propensities=[1.0])
    with pytest.raises(ValueError, match=r"propensities must be in \(0, 1\], got 0"):
        decision(1, propensities=[0.5, 0])
    with pytest.raises(ValueError, match=r"got nan"):
        decision(1, propensities=[0.5, float("nan")])


def test_a_log_continues_its_last_segment(folder: Path) -> None:
    records = mixed_records(6)
    write_log(folder, records[:3])
    write_log(folder, records[3:])
    assert list(read_log(folder)) == records
    assert [path.name for path in folder.glob("*.log")] == ["segment-000001.log"]


def test_segments_stay_within_their_size(folder: Path) -> None:
    records = mixed_records(60)
    with DecisionLog(folder, segment_bytes=1000) as log:
        for done in [log.append(record) for record in records]:
            done.result(10)
    sizes = [path.stat().st_size for path in folder.glob("*.log")]
    assert max(sizes) <= 1000
    assert len(sizes) >= sum(sizes) / 1000
    assert list(read_log(folder)) == records
    write_log(folder / "tiny", records[:3], segment_bytes=1)  # a record larger than a segment gets its own
    assert len(list((folder / "tiny").glob("*.log"))) == 3


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


def test_a_kill_loses_nothing_acknowledged(folder: Path) -> None:
    acknowledged: set[str] = set()
    for attempt in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder), str(attempt)], stdout=subprocess.PIPE, text=True
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
        logged = [record.id for record in read_log(folder)]
        assert acknowledged <= set(logged)
        assert len(logged) == len(set(logged))
    assert len(list(folder.glob("*.log"))) > 1
    compact_log(folder)
    assert acknowledged <= {record.id for record in read_log(folder)}


class GatedSync:
    """An fdatasync that waits until `gate` is set, and counts its calls; `entered` is set by the first."""

    def __init__(self) -> None:
        self.gate, self.entered, self.calls = threading.Event(), threading.Event(), 0
        self.fdatasync = os.fdatasync

    def __call__(self, file: int) -> None:
        self.calls += 1
        self.entered.set()
        assert self.gate.wait(30)
        self.fdatasync(file)


def test_records_that_arrive_during_a_sync_share_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DecisionLog(folder) as log:
        sync = GatedSync()
        monkeypatch.setattr(os, "fdatasync", sync)
        futures = [log.append(decision(number)) for number in range(1000)]
        assert log.waiting == 1000
        assert not any(future.done() for future in futures)
        sync.gate.set()
        for future in futures:
            future.result(30)
        assert 1 <= sync.calls <= 2  # the first may have begun before the others were queued
    assert list(read_log(folder)) == [decision(number) for number in range(1000)]


def test_coroutines_share_a_sync(folder: Path, slow_sync: list[int]) -> None:
    records = [decision(number) for number in range(1000)]

    async def append_all() -> None:
        await asyncio.gather(*(log.append_async(record) for record in records))

    with DecisionLog(folder) as log:
        slow_sync.clear()
        asyncio.run(append_all())
        assert len(slow_sync) == 1
    assert list(read_log(folder)) == records


def test_linger_gathers_records_of_later_turns_of_the_loop(folder: Path, slow_sync: list[int]) -> None:
    async def append_in_turns() -> None:
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(log.append_async(decision(number))))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    with DecisionLog(folder, linger=1.0) as log:
        slow_sync.clear()
        asyncio.run(append_in_turns())
        assert len(slow_sync) == 1
    assert len(list(read_log(folder))) == 20
    with pytest.raises(OptionError, match="linger"):
        DecisionLog(folder, linger=-1)


def test_lingering_records_are_written_after_their_loop_has_closed(folder: Path) -> None:
    with DecisionLog(folder, linger=1.0) as log:

        async def leave(number: int) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(log.append_async(decision(number)), 0.01)

        asyncio.run(leave(0))
        asyncio.run(leave(1))
        assert log.waiting == 2
    assert [record.id for record in read_log(folder)] == [decision(0).id, decision(1).id]


def test_nothing_is_acknowledged_before_its_sync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DecisionLog(folder) as log:
        sync = GatedSync()
        monkeypatch.setattr(os, "fdatasync", sync)
        future = log.append(decision(1))
        assert sync.entered.wait(30)
        assert not future.done()
        assert not future.cancel()
        sync.gate.set()
        assert future.result(30) is None


def test_too_many_waiting_are_refused(folder: Path, slow_sync: list[int]) -> None:
    with DecisionLog(folder, max_waiting=10) as log:
        accepted = [log.append(decision(number)) for number in range(10)]
        with pytest.raises(LogFullError, match=r"10 records wait to be written; try again in a moment"):
            log.append(decision(10))
        for done in accepted:
            done.result(10)
        log.append(decision(11)).result(10)  # room again
        assert log.waiting == 0
    assert [record.id for record in read_log(folder)] == [*(f"d{number}" for number in range(10)), "d11"]


def test_a_cancelled_append_does_not_affect_others(folder: Path, slow_sync: list[int]) -> None:
    async def leave() -> None:
        left, stayed = (asyncio.ensure_future(log.append_async(decision(number))) for number in (1, 2))
        await asyncio.sleep(0)
        left.cancel()
        await stayed

    with DecisionLog(folder) as log:
        asyncio.run(leave())
    assert [record.id for record in read_log(folder)] == ["d1", "d2"]


def test_close_writes_waiting_records(folder: Path, slow_sync: list[int]) -> None:
    log = DecisionLog(folder)
    waiting = [log.append(decision(number)) for number in range(50)]
    log.close()
    log.close()
    assert all(done.done() and done.exception() is None for done in waiting)
    assert len(list(read_log(folder))) == 50
    with pytest.raises(LogError, match=r"the decision log is closed; open it again to append"):
        log.append(decision(51))


def test_one_writer_per_folder(folder: Path) -> None:
    with DecisionLog(folder):
        with pytest.raises(LogError, match=r"another process writes this decision log; stop it or choose another folder"):
            DecisionLog(folder)
        script = f"from mbcal.decision_log import DecisionLog; DecisionLog({str(folder)!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "another process writes this decision log" in done.stderr
    DecisionLog(folder).close()


def test_reading_while_writing_sees_a_prefix(folder: Path) -> None:
    records = mixed_records(400)
    with DecisionLog(folder, segment_bytes=4000) as log:
        thread = threading.Thread(target=lambda: [log.append(record).result(10) for record in records])
        thread.start()
        sizes = []
        while thread.is_alive():
            if list(folder.glob("*.log")):
                prefix = list(read_log(folder))
                assert prefix == records[: len(prefix)]
                sizes.append(len(prefix))
            if len(sizes) % 3 == 0:
                compact_log(folder)
        thread.join()
    assert sizes == sorted(sizes)
    assert list(read_log(folder)) == records


def test_invalid_records_options_and_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with DecisionLog(folder) as log:
        with pytest.raises(InputError, match=f"at most {MAX_RECORD_BYTES:,} are allowed; give fewer candidates"):
            log.append(decision(1, user="x" * (MAX_RECORD_BYTES + 1)))
        with pytest.raises(InputError, match=r"record 'd1': cannot be written .*; give plain text and 64-bit numbers"):
            log.append(decision(1, user="\ud800"))
        with pytest.raises(ValueError, match="time must be microseconds since 1970 in 64 bits with a sign"):
            log.append(decision(1, time=2**70))
        log.append(decision(2)).result(10)
    assert [record.id for record in read_log(folder)] == ["d2"]
    with pytest.raises(
        OptionError, match=r"segment_bytes and max_waiting must be at least 1 and linger in .0, 1., got 0, 5 and 0.0"
    ):
        DecisionLog(folder, segment_bytes=0, max_waiting=5)
    with pytest.raises(LogError, match=r"nothing: cannot be read .No such file or directory.; give the folder"):
        list(read_log(tmp_path / "nothing"))
    with pytest.raises(LogError, match=r"no decision log .no segments."):
        list(read_log(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file: cannot be written"):
        DecisionLog(tmp_path / "file")


def test_serving_needs_no_torch() -> None:
    script = "import sys, mbcal.serving; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_msgspec_the_error_says_what_to_install() -> None:
    script = "import sys; sys.modules['msgspec'] = None; import mbcal.decision_log"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert re.search(r"OptionError: msgspec is not installed, .*; pip install 'mbcal\[serve\]'$", done.stderr.strip())
