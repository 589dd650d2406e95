"""How many decisions a second the decision log acknowledges, one sync each and grouped, and what reading, compacting and
joining them costs.

A decision has 200 candidates, 20 steps of history and 10 ranked items; "clients" wait for their record before the next, on
one event loop, as the requests of a server do.

    python benchmarks/log.py                 in the temporary folder
    python benchmarks/log.py --folder DIR    on another disk
    python benchmarks/log.py --kills 1000    a writer killed so often, at any moment: is anything acknowledged lost?
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
    """Records a second, records a sync, CPU microseconds a record."""
    made = [decision(number) for number in range(2000)]
    syncs, sync = [0], os.fdatasync

    def counted(file: int) -> None:
        syncs[0] += 1
        sync(file)

    async def client(log: DecisionLog, first: int, until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            await log.append_async(made[(first + count) % len(made)])
            count += 1
        return count

    async def run(log: DecisionLog) -> int:
        until = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(client(log, 7 * number, until) for number in range(clients))))

    os.fdatasync = counted
    try:
        with DecisionLog(folder) as log:
            syncs[0], began, spent = 0, time.perf_counter(), _cpu()
            count = asyncio.run(run(log))
            return count / (time.perf_counter() - began), count / max(syncs[0], 1), 1e6 * (_cpu() - spent) / count
    finally:
        os.fdatasync = sync


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def life_of_a_log(folder: Path, count: int) -> None:
    with DecisionLog(folder, segment_bytes=16 << 20, max_waiting=10 * count) as log:
        for number in range(count):
            made = decision(number)
            log.append(made)
            log.append(Feedback(made.id, made.items[0], "click", number, f"f{number}"))
    began = time.perf_counter()
    records = sum(1 for _ in read_log(folder))
    print(f"read segments   {records / (time.perf_counter() - began):>10,.0f} records/s")
    began = time.perf_counter()
    done = compact_log(folder)
    shrunk = f"{done.bytes_before / done.bytes_after:.1f} times smaller"
    print(f"compact         {done.records / (time.perf_counter() - began):>10,.0f} records/s, {shrunk}")
    began = time.perf_counter()
    records = sum(1 for _ in read_log(folder))
    print(f"read Parquet    {records / (time.perf_counter() - began):>10,.0f} records/s")
    began = time.perf_counter()
    found = join_sessions(read_log(folder), Catalog(tuple(ITEMS)), Behaviours(("skip", "click"), (0, 1)))
    print(f"read and join   {records / (time.perf_counter() - began):>10,.0f} records/s, {len(found.sessions):,} sessions")


def kills(folder: Path, count: int) -> None:
    """Writers killed one after another after up to 60 ms; what they were told is on the disk is looked for in the end."""
    acknowledged: set[str] = set()
    began, chance = time.perf_counter(), np.random.default_rng(0)
    for number in range(count):
        out, into = os.pipe()
        writer = os.fork()
        if not writer:
            os.close(out)
            asyncio.run(write_until_killed(folder, number, into))
        os.close(into)
        time.sleep(chance.random() * 0.06)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        with os.fdopen(out) as told:  # a line cut off was not told
            acknowledged.update(line.strip() for line in told if line.endswith("\n"))
    found = [record.id for record in read_log(folder) if isinstance(record, Decision)]
    lost, doubled = len(acknowledged - set(found)), len(found) - len(set(found))
    seconds = time.perf_counter() - began
    print(f"{count:,} kills in {seconds:.0f} s: {len(acknowledged):,} acknowledged, {lost} lost, {doubled} doubled")
    assert not lost
    assert not doubled


async def write_until_killed(folder: Path, number: int, into: int) -> None:
    """Eight clients with a linger; each tells the pipe what it was told."""
    log = DecisionLog(folder, segment_bytes=4 << 20, linger=0.001)

    async def client(name: int) -> None:
        for turn in range(1_000_000):
            made = decision((number * 8 + name) * 1_000_000 + turn)
            await log.append_async(made)
            os.write(into, f"{made.id}\n".encode())

    await asyncio.gather(*map(client, range(8)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write; the temporary folder unless given")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each number of clients")
    parser.add_argument("--kills", type=int, default=0, help="kill writers instead of measuring")
    parser.add_argument("--records", type=int, default=40_000, help="decisions to read, compact and join")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        if options.kills:
            kills(Path(scratch) / "log", options.kills)
            return
        print("clients   records/s   records/sync   CPU µs/record")
        for clients in CLIENTS:
            speed, group, cpu = measure(Path(scratch) / f"log-{clients}", clients, options.seconds)
            print(f"{clients:>7}   {speed:>9,.0f}   {group:>12.1f}   {cpu:>13.0f}")
        life_of_a_log(Path(scratch) / "life", options.records)


if __name__ == "__main__":
    main()
