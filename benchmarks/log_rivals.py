"""The decision log and SQLite in one run: appending, several writers, reading into columns, and damaged files.

    python benchmarks/log_rivals.py                 in the temporary folder, about eight minutes
    python benchmarks/log_rivals.py --folder DIR    on another disk

Both acknowledge a record when it is on disk, and both use the same queue: callers hand in encoded records, one thread takes
all that wait and makes them durable together. The decision log appends them to a segment and calls fdatasync. SQLite (WAL
mode, synchronous=FULL) inserts them in one transaction, into one table with the encoded record as a blob. Decisions have 200
candidates, as in log.py. Engines take turns in random order; the numbers are medians over the rounds, percentiles included,
and for records/s the quartiles too.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import multiprocessing
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from log import decision
from log_sqlite import ENGINES, SharedSqliteLog, TunedSqliteLog, in_random_order, print_table, read_sqlite, with_quartiles

from mbcal.decision_log import DecisionLog, Feedback, compact_log, read_log
from mbcal.decision_log.records import Decision, Record, decode
from mbcal.errors import LogError

DECISIONS = [decision(number) for number in range(2000)]
CLIENTS = (1, 64, 1000)
WRITERS, CLIENTS_PER_WRITER = 4, 64
PAGE = 4096
COLUMNS = ["id", "time", "session", "user", "step", "version", "epsilon", "candidates", "items", "propensities"]


# ---- appending


async def append_for(log: DecisionLog, seconds: float, clients: int) -> list[float]:
    """Clients that wait for each record before the next; the latency of every append, in seconds."""
    end, latencies = time.perf_counter() + seconds, []

    async def client(number: int) -> None:
        while (start := time.perf_counter()) < end:
            await log.append_async(DECISIONS[number % len(DECISIONS)])
            latencies.append(time.perf_counter() - start)
            number += 37

    await asyncio.gather(*map(client, range(clients)))
    return latencies


def measure_appends(folder: Path, options: argparse.Namespace) -> None:
    results: dict[tuple[str, int], list[list[float]]] = {}
    sizes: dict[str, list[float]] = {}
    for _, engine in in_random_order(ENGINES, options.rounds):
        total = 0
        with ENGINES[engine](folder / "appends") as log:
            for clients in CLIENTS:
                start, cpu_start = time.perf_counter(), time.process_time()
                latencies = asyncio.run(append_for(log, options.seconds, clients))
                seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
                percentiles = (np.percentile(latencies, [50, 99, 99.9]) * 1e3).tolist()
                values = [len(latencies) / seconds, *percentiles, cpu / seconds, 1e6 * cpu / len(latencies)]
                results.setdefault((engine, clients), []).append(values)
                total += len(latencies)
        data_bytes = sum(path.stat().st_size for path in (folder / "appends").iterdir())
        sizes.setdefault(engine, []).append(data_bytes / total)
        shutil.rmtree(folder / "appends")
    for clients in CLIENTS:
        rows = []
        for engine in ENGINES:
            _, p50, p99, p999, share, cpu = np.median(results[engine, clients], axis=0)
            rates = [values[0] for values in results[engine, clients]]
            rows.append(
                [engine, with_quartiles(rates), f"{p50:.2f}", f"{p99:.1f}", f"{p999:.1f}", f"{share:.0%}", f"{cpu:.0f}"]
            )
        title = "1 client" if clients == 1 else f"{clients:,} clients"
        print_table(title, ["records/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU share", "CPU µs/record"], rows)
    print_table("size", ["bytes per decision"], [[engine, f"{np.median(sizes[engine]):,.0f}"] for engine in ENGINES])


# ---- several writers


def write_in_process(kind: type[DecisionLog], folder: Path, seconds: float, barrier: Any, results: Any) -> None:
    with kind(folder) as log:
        barrier.wait()
        start = time.perf_counter()
        latencies = asyncio.run(append_for(log, seconds, CLIENTS_PER_WRITER))
        results.put((len(latencies) / (time.perf_counter() - start), latencies))


def measure_writers(folder: Path, options: argparse.Namespace) -> None:
    layouts: dict[str, type[DecisionLog]] = {
        "decision log, a folder each": DecisionLog,
        "SQLite, tuned, a database each": TunedSqliteLog,
        "SQLite, tuned, one database": SharedSqliteLog,
    }
    measured: dict[str, list[list[float]]] = {}
    context = multiprocessing.get_context("spawn")
    for _, layout in in_random_order(layouts, options.rounds):
        (folder / "writers").mkdir()
        if layouts[layout] is SharedSqliteLog:  # create the table before the writers compete
            SharedSqliteLog(folder / "writers" / "0").close()
        barrier, results = context.Barrier(WRITERS), context.Queue()
        processes = [
            context.Process(
                target=write_in_process,
                args=(layouts[layout], folder / "writers" / str(number), options.seconds, barrier, results),
            )
            for number in range(WRITERS)
        ]
        for process in processes:
            process.start()
        answers = [results.get(timeout=300) for _ in processes]
        for process in processes:
            process.join()
        latencies = np.concatenate([latencies for _, latencies in answers]) * 1e3
        rates = [rate for rate, _ in answers]
        measured.setdefault(layout, []).append([sum(rates), min(rates), *np.percentile(latencies, [50, 99, 99.9])])
        shutil.rmtree(folder / "writers")
    rows = []
    for layout in layouts:
        _, slowest, p50, p99, p999 = np.median(measured[layout], axis=0)
        rates = [values[0] for values in measured[layout]]
        rows.append([layout, with_quartiles(rates), f"{slowest:,.0f}", f"{p50:.2f}", f"{p99:.1f}", f"{p999:.1f}"])
    title = f"{WRITERS} processes, {CLIENTS_PER_WRITER} clients each"
    print_table(title, ["records/s", "slowest process", "p50 ms", "p99 ms", "p99.9 ms"], rows)


# ---- reading


def columns_of(records: Iterable[Record]) -> int:
    """Build Arrow columns of all decisions; the number of decisions."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for record in records:
        if isinstance(record, Decision):
            for name in COLUMNS:
                columns[name].append(getattr(record, name))
    return int(pa.table(columns).num_rows)


def columns_of_parquet(folder: Path) -> int:
    """The same from a compacted log, without going through records; the last segment is read as records."""
    compacted = [pq.read_table(path, columns=COLUMNS) for path in sorted(folder.glob("decisions-*.parquet"))]
    return sum(table.num_rows for table in compacted) + columns_of(read_log(folder / "last"))


def measure_reading(folder: Path, options: argparse.Namespace) -> None:
    for engine, kind in ENGINES.items():
        with kind(folder / engine, segment_bytes=16 << 20, max_waiting=10 * options.records) as log:
            for number in range(options.records // 2):
                record = decision(number)
                log.append(record)
                log.append(Feedback(record.id, record.items[0], "click", number, f"f{number}"))
                while log.waiting > 5000:
                    time.sleep(0.001)
    compacted = folder / "compacted"
    shutil.copytree(folder / "decision log", compacted)
    compact_log(compacted)
    (compacted / "last").mkdir()
    for path in compacted.glob("segment-*.log"):
        path.rename(compacted / "last" / path.name)
    readers: dict[str, Callable[[], int]] = {
        "decision log, segments": lambda: columns_of(read_log(folder / "decision log")),
        "decision log, compacted": lambda: columns_of_parquet(compacted),
        "SQLite": lambda: columns_of(read_sqlite(folder / "SQLite")),
        "SQLite, tuned": lambda: columns_of(read_sqlite(folder / "SQLite, tuned")),
    }
    seconds: dict[str, list[float]] = {}
    for _, reader in in_random_order(readers, options.rounds):
        start = time.perf_counter()
        assert readers[reader]() == options.records // 2
        seconds.setdefault(reader, []).append(time.perf_counter() - start)
    folders = dict(zip(readers, ("decision log", "compacted", "SQLite", "SQLite, tuned"), strict=True))
    rows = []
    for reader in readers:
        size = sum(path.stat().st_size for path in (folder / folders[reader]).rglob("*") if path.is_file())
        rows.append([reader, f"{np.median(seconds[reader]):.2f}", f"{size / 2**20:,.0f}"])
    print_table(f"{options.records:,} records into columns", ["seconds", "MiB on disk"], rows)


# ---- damage


def flip_byte(data: bytearray, rng: np.random.Generator) -> None:
    data[rng.integers(len(data))] ^= int(rng.integers(1, 256))


def zero_page(data: bytearray, rng: np.random.Generator) -> None:
    start = int(rng.integers((len(data) - 1) // PAGE + 1)) * PAGE
    length = len(data[start : start + PAGE])
    data[start : start + length] = bytes(length)


def cut_tail(data: bytearray, rng: np.random.Generator) -> None:
    del data[len(data) - int(rng.integers(1, 64 << 10)) :]


def read_damaged_log(folder: Path) -> tuple[list[Record], bool]:
    """The records that can be read, and whether the reader noticed damage."""
    skipped: list[Any] = []
    records: list[Record] = []
    try:
        records.extend(read_log(folder, skipped))
    except LogError:
        return records, True
    return records, bool(skipped)


def read_damaged_sqlite(folder: Path, row_by_row: bool) -> tuple[list[Record], bool]:
    """The same by one SELECT, or row by row so that an error costs one row; a failed integrity check counts as noticed."""
    database, records, noticed = sqlite3.connect(folder / "log.db"), [], False
    try:
        try:
            noticed = database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
        except sqlite3.DatabaseError:
            noticed = True
        if row_by_row:
            queries = [
                ("SELECT payload FROM records WHERE number = ?", (number,)) for number in range(1, len(DECISIONS) + 1)
            ]
        else:
            queries = [("SELECT payload FROM records ORDER BY number", ())]
        for query, values in queries:
            try:
                for (payload,) in database.execute(query, values):
                    try:
                        records.append(decode(payload))
                    except (ValueError, TypeError):
                        noticed = True
            except sqlite3.DatabaseError:
                noticed = True
    finally:
        database.close()
    return records, noticed


def measure_damage(folder: Path, options: argparse.Namespace) -> None:
    readers: dict[str, tuple[str, Callable[[Path], tuple[list[Record], bool]]]] = {
        "decision log": ("decision log", read_damaged_log),
        "SQLite, one SELECT": ("SQLite", functools.partial(read_damaged_sqlite, row_by_row=False)),
        "SQLite, row by row": ("SQLite", functools.partial(read_damaged_sqlite, row_by_row=True)),
    }
    for engine in ("decision log", "SQLite"):
        with ENGINES[engine](folder / engine, segment_bytes=1 << 20) as log:
            for done in [log.append(record) for record in DECISIONS]:
                done.result()
    written = {record.id: record for record in DECISIONS}
    for title, damage in (("one byte changed", flip_byte), ("one page of zeros", zero_page), ("end cut off", cut_tail)):
        rows = []
        for reader, (engine, read) in readers.items():
            rng = np.random.default_rng(1)  # the same for every reader
            paths = sorted(path for path in (folder / engine).iterdir() if path.suffix in (".log", ".db"))
            sizes = np.asarray([path.stat().st_size for path in paths], float)
            lost, wrong, silent = [], 0, 0
            for _ in range(options.trials):
                path = paths[-1] if damage is cut_tail else paths[rng.choice(len(paths), p=sizes / sizes.sum())]
                original = path.read_bytes()
                data = bytearray(original)
                damage(data, rng)
                path.write_bytes(data)
                records, noticed = read(folder / engine)
                path.write_bytes(original)
                correct = {record.id for record in records if written.get(record.id) == record}
                is_wrong = len(records) > len(correct)
                lost.append(len(DECISIONS) - len(correct))
                wrong += is_wrong
                silent += (is_wrong or lost[-1] > 0) and not noticed
            rows.append(
                [reader, f"{np.mean(lost):,.1f}", f"{max(lost):,}", f"{wrong / len(lost):.0%}", f"{silent / len(lost):.0%}"]
            )
        columns = ["lost or wrong, mean", "lost or wrong, most", "returned a wrong record", "harm not noticed"]
        print_table(f"{title}, {len(DECISIONS):,} decisions", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write; by default the temporary folder")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of one measurement of appends")
    parser.add_argument("--rounds", type=int, default=9, help="turns of every engine")
    parser.add_argument("--records", type=int, default=60_000, help="records to read, half decisions and half feedback")
    parser.add_argument("--trials", type=int, default=100, help="damaged files of every kind")
    options = parser.parse_args()
    print(f"SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for measure in (measure_appends, measure_writers, measure_reading, measure_damage):
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            measure(Path(scratch), options)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
