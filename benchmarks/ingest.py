"""How fast and in how much memory a log becomes a store, against bare DuckDB on the same file in the same run.

Two yardsticks, with the same threads and memory limit: DuckDB scans and sorts by user and time and its rows are only looked
at ("sort"), or it leaves them on disk as Parquet ("sort+write", what a store does too). Each way runs in a process of its
own, in turns; the best of the repeats counts.

    python benchmarks/ingest.py                     2M and 20M generated rows, as Parquet and CSV; netflix-40k when present,
                                                    as it is (sorted by user and date) and shuffled
    python benchmarks/ingest.py --rows 100000000 --repeats 1 --memory-limit 2GB
    python benchmarks/ingest.py --engine ray --workers 1 2
                                                    the same logs on Ray instead, against this machine without it: "start" is
                                                    the cluster, "first" has workers start too, "again" finds them there;
                                                    seconds of CPU tell more on a busy machine: those of the driver, which
                                                    more workers do not shorten, and those of all together
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from mbcal.distributed.engines import Engine

NETFLIX = Path(__file__).resolve().parents[2] / "shared" / "data" / "netflix-40k" / "ratings.parquet"
GENERATED = {"user": "user_id", "item": "item_id", "time": "ts", "behaviour": "rating"}
WAYS = ("sort", "sort+write", "mbcal")
MEMORY = ("mib", "worker")


def generate(rows: int, path: Path) -> None:
    """About 150 rows a user, 20,000 items of uneven popularity, three years of seconds, six labels; no order at all."""
    import duckdb

    form = "FORMAT parquet" if path.suffix == ".parquet" else "FORMAT csv, HEADER"
    with duckdb.connect(config={"memory_limit": "4GB", "preserve_insertion_order": False}) as connection:
        connection.execute(f"""
            COPY (SELECT (hash(i) % ({rows} // 150))::BIGINT AS user_id,
                         (hash(i + 7) % 20000 * (hash(i + 9) % 100) / 100)::BIGINT AS item_id,
                         1600000000 + (hash(i + 3) % 100000000)::BIGINT AS ts,
                         (hash(i + 5) % 6)::TINYINT AS rating
                  FROM range({rows}) t(i)) TO '{path}' ({form})""")


def shuffle(source: Path, path: Path) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT * FROM '{source}' ORDER BY hash(customer_id, movie_id)) TO '{path}' (FORMAT parquet)"
        )


def is_netflix(path: Path) -> bool:
    return path.name.startswith("ratings")


def bare(path: Path, write: bool, memory_limit: str, folder: Path) -> None:
    from mbcal.data.workspace import Workspace

    names = GENERATED if not is_netflix(path) else {"user": "customer_id", "time": "date"}
    query = f"SELECT * FROM '{path}' ORDER BY {names['user']}, {names['time']}"
    with Workspace(folder / "bare", memory_limit) as work:
        if write:
            target = work.build / "sorted.parquet"
            work.connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
        else:
            for _ in work.connection.sql(query).to_arrow_reader(1 << 18):
                pass


def ours(path: Path, memory_limit: str, folder: Path, engine: Engine | None = None) -> None:
    from mbcal import Labels, Netflix, TableLog, prepare

    labels = Labels({str(label): float(label) for label in range(6)})
    source = Netflix(path) if is_netflix(path) else TableLog(path, **GENERATED, rule=labels)
    prepare(source, folder / "store", memory_limit=memory_limit, overwrite=True, engine=engine)


def on_ray(path: Path, memory_limit: str, folder: Path, workers: int) -> dict[str, float]:
    from mbcal.distributed.engines import create_engine

    moments, driver, everybody = [time.perf_counter()], [], []
    with create_engine("ray", workers) as engine:
        for _ in range(2):
            moments.append(time.perf_counter())
            driver.append(cpu())
            everybody.append(cpu(*ray_workers()))
            ours(path, memory_limit, folder, engine)
        moments.append(time.perf_counter())
        found = ray_workers()
        driver.append(cpu())
        everybody.append(cpu(*found))
        largest = max(map(peak, found))
    start, first, again = (later - earlier for earlier, later in pairwise(moments))
    spent = {"driver": driver[-1] - driver[-2], "cpu": everybody[-1] - everybody[-2]}
    return {"start": start, "first": first, "seconds": again, **spent, "worker": largest}


def ray_workers() -> list[psutil.Process]:
    """The cluster's own processes are no workers."""
    return [process for process in psutil.Process().children(recursive=True) if process.name().startswith("ray::")]


def cpu(*others: psutil.Process) -> float:
    """Seconds of CPU this process and others have used."""
    times = [process.cpu_times() for process in (psutil.Process(), *others)]
    return sum(spent.user + spent.system for spent in times)


def peak(process: psutil.Process) -> float:
    """MiB a process has held at most."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(found[1]) / 2**10 if found else 0.0


def child(way: str, path: Path, memory_limit: str) -> None:
    import duckdb  # noqa: F401  # imports are not what is measured

    import mbcal  # noqa: F401  # likewise

    with tempfile.TemporaryDirectory(dir=path.parent if path != NETFLIX else None) as folder:
        start, before, found = time.perf_counter(), cpu(), {}
        if way == "mbcal":
            ours(path, memory_limit, Path(folder))
        elif way.startswith("ray"):
            found = on_ray(path, memory_limit, Path(folder), int(way.split()[1]))
        else:
            bare(path, way == "sort+write", memory_limit, Path(folder))
        seconds = time.perf_counter() - start
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({"seconds": seconds, "cpu": cpu() - before, "mib": most, **found}))


def measure(path: Path, ways: Sequence[str], repeats: int, memory_limit: str) -> dict[str, dict[str, float]]:
    """The best time and the most memory of each way."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for way in ways:
            command = [sys.executable, __file__, "--child", way, str(path), "--memory-limit", memory_limit]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            known = best.setdefault(way, found)
            best[way] = {name: (max if name in MEMORY else min)(known[name], found[name]) for name in found}
    return best


def compare_with_duckdb(name: str, rows: int, best: dict[str, dict[str, float]]) -> None:
    sort, write, mine = (best[way] for way in WAYS)
    seconds = mine["seconds"]
    print(
        f"| {name} | {rows:,} | {sort['seconds']:.2f} | {write['seconds']:.2f} | {seconds:.2f} "
        f"| {seconds / sort['seconds']:.2f} | {seconds / write['seconds']:.2f} | {seconds / rows * 1e6:.3f} "
        f"| {mine['mib']:.0f} | {sort['mib']:.0f} |",
        flush=True,
    )


def compare_with_ray(name: str, rows: int, best: dict[str, dict[str, float]]) -> None:
    here = best.pop("mbcal")
    for way, found in best.items():
        seconds = " | ".join(f"{found[column]:.2f}" for column in ("start", "first", "seconds"))
        cpu = f"{here['cpu']:.2f} | {found['driver']:.2f} | {found['cpu']:.2f} | {found['cpu'] / here['cpu']:.2f}"
        memory = f"{here['mib']:.0f} | {found['mib']:.0f} | {found['worker']:.0f}"
        workers = way.split()[1]
        print(f"| {name} | {rows:,} | {here['seconds']:.2f} | {workers} | {seconds} | {cpu} | {memory} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 20_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-limit", default="1.5GB")
    parser.add_argument("--formats", nargs="+", default=["parquet", "csv"])
    parser.add_argument("--no-netflix", dest="netflix", action="store_false")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="of --engine ray")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]), options.memory_limit)
        return
    if options.engine == "local":
        ways, compare = WAYS, compare_with_duckdb
        columns = "log | rows | sort s | sort+write s | mbcal s | / sort | / sort+write | µs a row | mbcal MiB | sort MiB"
    else:
        ways, compare = ("mbcal", *(f"ray {workers}" for workers in options.workers)), compare_with_ray
        columns = "log | rows | local s | workers | start s | first s | again s | local CPU s | driver CPU s | all CPU s"
        columns += " | / local | local MiB | driver MiB | worker MiB"
    print(f"| {columns} |\n|{'---|' * len(columns.split(' | '))}", flush=True)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".context-") as folder:
        shuffled = Path(folder) / "ratings-shuffled.parquet"
        logs = [(rows, Path(folder) / f"{rows}.{form}") for form in options.formats for rows in options.rows]
        if NETFLIX.exists() and options.netflix:
            logs += [(9_314_805, NETFLIX), (9_314_805, shuffled)]
        for rows, path in logs:
            if path == shuffled:
                shuffle(NETFLIX, path)
            elif path != NETFLIX:
                generate(rows, path)
            name = {NETFLIX: "netflix-40k", shuffled: "netflix-40k, shuffled"}.get(path, f"generated, {path.suffix[1:]}")
            compare(name, rows, measure(path, ways, options.repeats, options.memory_limit))
            if path != NETFLIX:
                path.unlink()


if __name__ == "__main__":
    main()
