"""The decision log: records acknowledged per second, and the cost of reading, compacting and joining them.

A decision has 200 candidates, 20 steps of history and 10 ranked items. Clients run on one event loop, as the requests of a
server do, and wait for each record before the next.

    python benchmarks/log.py                 in the temporary folder
    python benchmarks/log.py --folder DIR    on another disk
    python benchmarks/log.py --kills 1000    kill a writer this often at random moments and look for lost records
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

from mbcal import Behaviours, Catalog
from mbcal.decision_log import Decision, DecisionLog, Feedback
from mbcal.decision_log.compaction import compact_log
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.reader import read_log

ITEMS = [f"item-{number:05d}" for number in range(20_000)]
CLIENTS = (1, 32, 256, 1000)


def decision(number: int) -> Decision:
    start = number * 37 % (len(ITEMS) - 200)
    candidates = ITEMS[start : start + 200]
    past = [(item, "click") for item in candidates[:20]]
    session = f"session-{number // 20}"
    shares = [0.9] + [0.1] * 9
    return Decision(
        f"{number:032x}", number, session, f"user-{number // 40}", number % 20, "v1", 0.1, past, [], candidates,
        candidates[:10], shares,
    )  # fmt: skip


def measure(folder: Path, clients: int, seconds: float) -> tuple[float, float, float]:
    """Return records per second, records per fdatasync, CPU microseconds per record."""
    records = [decision(number) for number in range(2000)]
    syncs, sync = [0], os.fdatasync

    def counting_sync(file: int) -> None:
        syncs[0] += 1
        sync(file)

    async def client(log: DecisionLog, first: int, end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            await log.append_async(records[(first + count) % len(records)])
            count += 1
        return count

    async def run(log: DecisionLog) -> int:
        end = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(client(log, 7 * number, end) for number in range(clients))))

    os.fdatasync = counting_sync
    try:
        with DecisionLog(folder) as log:
            syncs[0], start, cpu_start = 0, time.perf_counter(), _cpu_seconds()
            count = asyncio.run(run(log))
            seconds, cpu = time.perf_counter() - start, _cpu_seconds() - cpu_start
            return count / seconds, count / max(syncs[0], 1), 1e6 * cpu / count
    finally:
        os.fdatasync = sync


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure_offline(folder: Path, count: int) -> None:
    """Write a log, then read, compact and join it."""
    with DecisionLog(folder, segment_bytes=4 << 20, max_waiting=10 * count) as log:
        for number in range(count):
            record = decision(number)
            log.append(record)
            log.append(Feedback(record.id, record.items[0], "click", number, f"f{number}"))
    start = time.perf_counter()
    records = sum(1 for _ in read_log(folder))
    print(f"read segments   {records / (time.perf_counter() - start):>10,.0f} records/s")
    start = time.perf_counter()
    result = compact_log(folder)
    ratio = f"{result.bytes_before / max(result.bytes_after, 1):.1f} times smaller"
    print(f"compact         {result.records / (time.perf_counter() - start):>10,.0f} records/s, {ratio}")
    start = time.perf_counter()
    records = sum(1 for _ in read_log(folder))
    print(f"read Parquet    {records / (time.perf_counter() - start):>10,.0f} records/s")
    start = time.perf_counter()
    joined = join_sessions(read_log(folder), Catalog(tuple(ITEMS)), Behaviours(("skip", "click"), (0, 1)))
    print(f"read and join   {records / (time.perf_counter() - start):>10,.0f} records/s, {len(joined.sessions):,} sessions")


def kill_writers(folder: Path, count: int) -> None:
    """Kill one writer after another, each within 60 ms of its start, then look for every acknowledged record."""
    acknowledged: set[str] = set()
    start, rng = time.perf_counter(), np.random.default_rng(0)
    for number in range(count):
        read_end, write_end = os.pipe()
        writer = os.fork()
        if not writer:
            os.close(read_end)
            asyncio.run(write_until_killed(folder, number, write_end))
        os.close(write_end)
        time.sleep(rng.random() * 0.06)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        with os.fdopen(read_end) as lines:  # an incomplete line may be an incomplete id
            acknowledged.update(line.strip() for line in lines if line.endswith("\n"))
    logged = [record.id for record in read_log(folder) if isinstance(record, Decision)]
    lost, repeated = len(acknowledged - set(logged)), len(logged) - len(set(logged))
    seconds = time.perf_counter() - start
    print(f"{count:,} kills in {seconds:.0f} s: {len(acknowledged):,} acknowledged, {lost} lost, {repeated} twice")
    assert not lost
    assert not repeated


async def write_until_killed(folder: Path, number: int, write_end: int) -> None:
    """Append with eight clients and a linger; ids of acknowledged records go to the pipe."""
    log = DecisionLog(folder, segment_bytes=4 << 20, linger=0.001)

    async def client(client_number: int) -> None:
        for turn in range(1_000_000):
            record = decision((number * 8 + client_number) * 1_000_000 + turn)
            await log.append_async(record)
            os.write(write_end, f"{record.id}\n".encode())

    await asyncio.gather(*map(client, range(8)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write; by default the temporary folder")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds for each number of clients")
    parser.add_argument("--kills", type=int, default=0, help="kill writers instead of measuring")
    parser.add_argument("--records", type=int, default=40_000, help="decisions to read, compact and join")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        if options.kills:
            kill_writers(Path(scratch) / "log", options.kills)
            return
        print("clients   records/s   records/sync   CPU µs/record")
        for clients in CLIENTS:
            speed, group, cpu = measure(Path(scratch) / f"log-{clients}", clients, options.seconds)
            print(f"{clients:>7}   {speed:>9,.0f}   {group:>12.1f}   {cpu:>13.0f}")
        measure_offline(Path(scratch) / "life", options.records)


if __name__ == "__main__":
    main()
