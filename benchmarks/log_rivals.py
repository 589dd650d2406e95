"""The decision log against SQLite: throughput, latency, CPU, size on disk and time to read, measured in turns in one run.

    python benchmarks/log_rivals.py                 in the temporary folder
    python benchmarks/log_rivals.py --folder DIR    on another disk

Both acknowledge a record when it is on the disk, and both have the same structure: callers queue encoded records, one
thread takes all that wait and makes them durable at once. Our log appends them to a segment and calls fdatasync. SQLite
(WAL mode, synchronous=FULL) inserts them in one transaction, into one table with the record as a blob. Records are
decisions with 200 candidates, as in log.py; those that are read are decisions and feedback, half each. Engines take turns
in random order; what is printed is the median over `--rounds` turns, of p99 too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from log import decision

from mbcal.decision_log import DecisionLog, Feedback
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Record, decode

RECORDS = [decision(number) for number in range(2000)]


class SqliteLog(DecisionLog):
    """`DecisionLog` with its segments replaced by a SQLite database; the queue, the thread and the futures are the same."""

    page_bytes = 4096

    def _open(self) -> tuple[int, int, int]:
        self.database = sqlite3.connect(self.folder / "log.db", check_same_thread=False, isolation_level=None)
        self.database.execute(f"PRAGMA page_size={self.page_bytes}")
        for setting in ("journal_mode=WAL", "synchronous=FULL"):
            self.database.execute(f"PRAGMA {setting}")
        self.database.execute("CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
        return 1, 0, os.open(self.folder / "lock", os.O_RDWR)

    def _write(self, batch: deque[Any], group: list[Any]) -> None:
        group.extend(batch)
        batch.clear()
        self.database.execute("BEGIN")
        self.database.executemany("INSERT INTO records (payload) VALUES (?)", [(entry.payload,) for entry in group])
        self.database.execute("COMMIT")

    def close(self) -> None:
        super().close()
        self.database.close()  # checkpoints the write-ahead log and removes it


class SqliteLargePages(SqliteLog):
    """The same with pages of 16 KiB: less waste in a page, more to write for one record."""

    page_bytes = 16384


def read_sqlite(folder: Path) -> Iterator[Record]:
    database = sqlite3.connect(folder / "log.db")
    for (payload,) in database.execute("SELECT payload FROM records ORDER BY number"):
        yield decode(payload)
    database.close()


ENGINES: dict[str, tuple[type[DecisionLog], Any]] = {
    "decision log": (DecisionLog, read_log),
    "SQLite, 4 KiB pages": (SqliteLog, read_sqlite),
    "SQLite, 16 KiB pages": (SqliteLargePages, read_sqlite),
}


async def one_by_one(log: DecisionLog, seconds: float) -> list[float]:
    return await appenders(log, seconds, 1)


async def grouped(log: DecisionLog, seconds: float) -> list[float]:
    """Groups of 32, each acknowledged before the next is given."""
    until, latencies, number = time.perf_counter() + seconds, [], 0
    while time.perf_counter() < until:
        began = time.perf_counter()
        await asyncio.gather(*(log.append_async(RECORDS[(number + k) % len(RECORDS)]) for k in range(32)))
        latencies += [time.perf_counter() - began] * 32
        number += 32
    return latencies


async def appenders(log: DecisionLog, seconds: float, count: int = 64) -> list[float]:
    """Concurrent appenders, each of which waits for its record before the next; seconds of every append."""
    until, latencies = time.perf_counter() + seconds, []

    async def append(number: int) -> None:
        while (began := time.perf_counter()) < until:
            await log.append_async(RECORDS[number % len(RECORDS)])
            latencies.append(time.perf_counter() - began)
            number += 37

    await asyncio.gather(*map(append, range(count)))
    return latencies


PHASES = {"1 appender": one_by_one, "groups of 32": grouped, "64 appenders": appenders}


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def measure_appends(folder: Path, options: argparse.Namespace) -> None:
    rows: dict[tuple[str, str], list[list[float]]] = {}
    sizes: dict[str, list[float]] = {}
    order = np.random.default_rng(0)
    for turn in range(options.rounds):
        for engine in order.permutation(list(ENGINES)).tolist():
            place, total = folder / f"{turn}-{engine}", 0
            with ENGINES[engine][0](place) as log:
                for phase, work in PHASES.items():
                    began, spent = time.perf_counter(), time.process_time()
                    latencies = asyncio.run(work(log, options.seconds))
                    seconds, cpu = time.perf_counter() - began, time.process_time() - spent
                    low, high = np.percentile(latencies, [50, 99]) * 1e3
                    values = [len(latencies) / seconds, low, high, 1e6 * cpu / len(latencies)]
                    rows.setdefault((phase, engine), []).append(values)
                    total += len(latencies)
            sizes.setdefault(engine, []).append(size_on_disk(place) / total)
    for phase in PHASES:
        print(f"\n| {phase} | records/s | p50 ms | p99 ms | CPU µs/record |\n|---|---|---|---|---|")
        for engine in ENGINES:
            rate, low, high, cpu = np.median(rows[phase, engine], axis=0)
            print(f"| {engine} | {rate:,.0f} | {low:.2f} | {high:.2f} | {cpu:.0f} |")
    for engine, each in sizes.items():
        print(f"{engine}: {np.median(each):,.0f} bytes per decision on disk")


def measure_reading(folder: Path, options: argparse.Namespace) -> None:
    seconds: dict[str, list[float]] = {}
    for engine, (kind, _) in ENGINES.items():
        with kind(folder / engine, max_waiting=10 * options.records) as log:
            for number in range(options.records // 2):
                record = decision(number)
                log.append(record)
                log.append(Feedback(record.id, record.items[0], "click", number, f"f{number}"))
                while log.waiting > 5000:
                    time.sleep(0.001)
    for _ in range(options.rounds):
        for engine, (_, read) in ENGINES.items():
            began = time.perf_counter()
            assert sum(1 for _ in read(folder / engine)) == options.records
            seconds.setdefault(engine, []).append(time.perf_counter() - began)
    for engine, each in seconds.items():
        size = size_on_disk(folder / engine) / 2**20
        print(f"{engine}: {options.records:,} records ({size:,.0f} MiB) read and decoded in {np.median(each):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write; the temporary folder unless given")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn in a phase")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=200_000, help="records to read")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        print(f"SQLite {sqlite3.sqlite_version}, load of the machine {os.getloadavg()[0]:.1f}")
        measure_appends(Path(scratch), options)
        measure_reading(Path(scratch), options)


if __name__ == "__main__":
    main()
