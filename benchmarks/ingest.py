"""Time and memory of turning a log into a store, against bare DuckDB on the same file in the same run.

Two references, with the same threads and memory limit: DuckDB scans the file and sorts it by user and time, and its rows are
only read ("sort") or are written as Parquet ("sort+write", which a store does, too). Every variant runs in a process of its
own, alternating; the best of the repeats counts.

    python benchmarks/ingest.py                     2M and 20M generated rows, as Parquet and CSV; netflix-40k when present,
                                                    as it is (sorted by user and date) and shuffled
    python benchmarks/ingest.py --rows 100000000 --repeats 1 --memory-limit 2GB
    python benchmarks/ingest.py --options           options that change what is stored, against none on the same rows; three
                                                    negatives are added to a quarter of the rows, so that as many are stored
    python benchmarks/ingest.py --engine ray --workers 1 2
                                                    the same logs on Ray, against one process: "start" is the cluster,
                                                    "first" includes the start of workers, "again" does not; CPU seconds
                                                    are those of the driver, which more workers do not shorten, and those
                                                    of all processes
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
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from mbcal.distributed.engines import Engine

NETFLIX = Path(__file__).resolve().parents[2] / "shared" / "data" / "netflix-40k" / "ratings.parquet"
GENERATED = {"user": "user_id", "item": "item_id", "time": "ts", "behaviour": "rating"}
VARIANTS = ("sort", "sort+write", "mbcal")
NEGATIVES = 3
OPTIONS: dict[str, dict[str, Any]] = {
    "mbcal": {},
    "max-per-user": {"max_per_user": 100},
    "time": {"split_by_time": True, "alive": 30.0},
    "negatives": {"negatives": NEGATIVES},
    "ends": {"ends": ("5",)},
    "features": {},
}
"""Variant -> options of `SessionConfig`; `features` has an item table with a category, a number and a vector."""
ITEM_FEATURES = ("kind", "words:number", "text:vector")
MEMORY = ("mib", "worker")


def generate(rows: int, path: Path) -> None:
    """Write about 150 rows per user, 20,000 items of uneven popularity, three years, six labels, in random order."""
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


def sort_by_duckdb(path: Path, write: bool, memory_limit: str, folder: Path) -> None:
    from mbcal.data.workspace import Workspace

    names = GENERATED if not is_netflix(path) else {"user": "customer_id", "time": "date"}
    query = f"SELECT * FROM '{path}' ORDER BY {names['user']}, {names['time']}"
    with Workspace(folder / "duckdb", memory_limit) as work:
        if write:
            target = work.build / "sorted.parquet"
            work.connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
        else:
            for _ in work.connection.sql(query).to_arrow_reader(1 << 18):
                pass


def item_table(path: Path) -> Path:
    """Return a table of the 20,000 items of generated logs, written beside the log if it is not there."""
    import duckdb

    table = path.with_name("items.parquet")
    if not table.exists():
        vector = ", ".join(f"(hash(i + {k}) % 1000 / 1000)::FLOAT" for k in range(16))
        with duckdb.connect() as connection:
            connection.execute(f"""
                COPY (SELECT i AS item_id, 'kind ' || hash(i) % 20 AS kind, (hash(i + 1) % 900)::DOUBLE AS words,
                             [{vector}] AS text FROM range(20000) t(i)) TO '{table}' (FORMAT parquet)""")
    return table


def prepare_store(
    path: Path,
    memory_limit: str,
    folder: Path,
    engine: Engine | None = None,
    options: Mapping[str, Any] | None = None,
    items: Path | None = None,
) -> None:
    from mbcal import ItemTable, Labels, Netflix, SessionConfig, TableLog, prepare

    labels = Labels({str(label): float(label) for label in range(6)})
    features = None if items is None else ItemTable([items], list(ITEM_FEATURES))
    source = Netflix(path) if is_netflix(path) else TableLog(path, **GENERATED, rule=labels, items=features)
    config = SessionConfig(**(options or {}))
    prepare(source, folder / "store", config, memory_limit=memory_limit, overwrite=True, engine=engine)


def on_ray(path: Path, memory_limit: str, folder: Path, workers: int) -> dict[str, float]:
    from mbcal.distributed.engines import create_engine

    moments, driver, total = [time.perf_counter()], [], []
    with create_engine("ray", workers) as engine:
        for _ in range(2):
            moments.append(time.perf_counter())
            driver.append(cpu_seconds())
            total.append(cpu_seconds(*ray_workers()))
            prepare_store(path, memory_limit, folder, engine)
        moments.append(time.perf_counter())
        processes = ray_workers()
        driver.append(cpu_seconds())
        total.append(cpu_seconds(*processes))
        largest = max(map(peak_memory, processes))
    start, first, again = (later - earlier for earlier, later in pairwise(moments))
    spent = {"driver": driver[-1] - driver[-2], "cpu": total[-1] - total[-2]}
    return {"start": start, "first": first, "seconds": again, **spent, "worker": largest}


def ray_workers() -> list[psutil.Process]:
    """Return the worker processes, without the cluster's own processes."""
    return [process for process in psutil.Process().children(recursive=True) if process.name().startswith("ray::")]


def cpu_seconds(*others: psutil.Process) -> float:
    """Return the CPU seconds that this process and others have used."""
    times = [process.cpu_times() for process in (psutil.Process(), *others)]
    return sum(spent.user + spent.system for spent in times)


def peak_memory(process: psutil.Process) -> float:
    """Return the peak memory of a process in MiB."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    return int(match[1]) / 2**10 if match else 0.0


def run_variant(variant: str, path: Path, memory_limit: str) -> None:
    import duckdb  # noqa: F401 - imported before the clock starts

    import mbcal  # noqa: F401 - likewise

    with tempfile.TemporaryDirectory(dir=path.parent if path != NETFLIX else None) as folder:
        start, cpu_before, measured = time.perf_counter(), cpu_seconds(), {}
        if variant in OPTIONS:
            log = path.with_name(f"quarter-{path.name}") if variant == "negatives" else path
            items = item_table(path) if variant == "features" else None
            prepare_store(log, memory_limit, Path(folder), options=OPTIONS[variant], items=items)
        elif variant.startswith("ray"):
            measured = on_ray(path, memory_limit, Path(folder), int(variant.split()[1]))
        else:
            sort_by_duckdb(path, variant == "sort+write", memory_limit, Path(folder))
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({"seconds": seconds, "cpu": cpu_seconds() - cpu_before, "mib": peak, **measured}))


def measure(path: Path, variants: Sequence[str], repeats: int, memory_limit: str) -> dict[str, dict[str, float]]:
    """Return the best times and the highest memory of every variant."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for variant in variants:
            command = [sys.executable, __file__, "--child", variant, str(path), "--memory-limit", memory_limit]
            measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            earlier = best.setdefault(variant, measured)
            best[variant] = {name: (max if name in MEMORY else min)(earlier[name], measured[name]) for name in measured}
    return best


def compare_with_duckdb(name: str, rows: int, best: dict[str, dict[str, float]]) -> None:
    sort, write, store = (best[variant] for variant in VARIANTS)
    seconds = store["seconds"]
    print(
        f"| {name} | {rows:,} | {sort['seconds']:.2f} | {write['seconds']:.2f} | {seconds:.2f} "
        f"| {seconds / sort['seconds']:.2f} | {seconds / write['seconds']:.2f} | {seconds / rows * 1e6:.3f} "
        f"| {store['mib']:.0f} | {sort['mib']:.0f} |",
        flush=True,
    )


def compare_options(name: str, rows: int, best: dict[str, dict[str, float]]) -> None:
    plain = best["mbcal"]
    for variant, measured in best.items():
        figures = [f"{measured[key]:.2f} | {measured[key] / plain[key]:.2f}" for key in ("seconds", "cpu")]
        memory = f"{measured['mib']:.0f} | {measured['mib'] / plain['mib']:.2f}"
        print(f"| {name} | {rows:,} | {variant} | {' | '.join(figures)} | {memory} |", flush=True)


def compare_with_ray(name: str, rows: int, best: dict[str, dict[str, float]]) -> None:
    local = best.pop("mbcal")
    for variant, ray in best.items():
        seconds = " | ".join(f"{ray[column]:.2f}" for column in ("start", "first", "seconds"))
        cpu = f"{local['cpu']:.2f} | {ray['driver']:.2f} | {ray['cpu']:.2f} | {ray['cpu'] / local['cpu']:.2f}"
        memory = f"{local['mib']:.0f} | {ray['mib']:.0f} | {ray['worker']:.0f}"
        workers = variant.split()[1]
        print(f"| {name} | {rows:,} | {local['seconds']:.2f} | {workers} | {seconds} | {cpu} | {memory} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 20_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-limit", default="1.5GB")
    parser.add_argument("--formats", nargs="+", default=["parquet", "csv"])
    parser.add_argument("--no-netflix", dest="netflix", action="store_false")
    parser.add_argument("--options", action="store_true", help="Compare options on the generated logs.")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="Workers of --engine ray.")
    parser.add_argument("--child", nargs=2, metavar=("VARIANT", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_variant(options.child[0], Path(options.child[1]), options.memory_limit)
        return
    if options.options:
        variants, compare = tuple(OPTIONS), compare_options
        columns = "log | rows | options | s | / none | CPU s | / none | MiB | / none"
    elif options.engine == "local":
        variants, compare = VARIANTS, compare_with_duckdb
        columns = "log | rows | sort s | sort+write s | mbcal s | / sort | / sort+write | µs per row | mbcal MiB | sort MiB"
    else:
        variants, compare = ("mbcal", *(f"ray {workers}" for workers in options.workers)), compare_with_ray
        columns = "log | rows | local s | workers | start s | first s | again s | local CPU s | driver CPU s | all CPU s"
        columns += " | / local | local MiB | driver MiB | worker MiB"
    print(f"| {columns} |\n|{'---|' * len(columns.split(' | '))}", flush=True)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".context-") as folder:
        shuffled = Path(folder) / "ratings-shuffled.parquet"
        logs = [(rows, Path(folder) / f"{rows}.{form}") for form in options.formats for rows in options.rows]
        if NETFLIX.exists() and options.netflix and not options.options:
            logs += [(9_314_805, NETFLIX), (9_314_805, shuffled)]
        for rows, path in logs:
            if path == shuffled:
                shuffle(NETFLIX, path)
            elif path != NETFLIX:
                generate(rows, path)
            if options.options:
                generate(rows // (1 + NEGATIVES), path.with_name(f"quarter-{path.name}"))
            name = {NETFLIX: "netflix-40k", shuffled: "netflix-40k, shuffled"}.get(path, f"generated, {path.suffix[1:]}")
            compare(name, rows, measure(path, variants, options.repeats, options.memory_limit))
            if path != NETFLIX:
                path.unlink()


if __name__ == "__main__":
    main()
