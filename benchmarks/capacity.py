"""Computes the tables of docs/scale.md: what a day's decisions take, from the rates measured on one machine.

    python benchmarks/capacity.py

Rates are those of docs/performance.md; what was not measured is assumed, and marked so. A decision is one item shown and the
response to it; a session has 20. Prices are left out: a day costs its core hours, GPU hours and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

DAYS = (1e9, 1e10)
"""Decisions per day."""
STEPS = 20
"""Steps per session."""
UPDATE = 4096
"""Sessions per update of a fit on several workers (assumed)."""
ITEMS = 1_000_000
"""Items of the catalogue (assumed)."""
PEAK = 3.0
"""Traffic of the busiest hour, relative to the mean (assumed)."""
BUSY = 0.5
"""Share of time that a server may be busy (assumed)."""

# measured, docs/performance.md
INGEST = 100e6 / 25.90 / 2  # rows per core second: 100M rows of Parquet in 25.90 s on two cores
FIT_CPU = 36_859.0  # decisions per core second, MBCAL
FIT_GPU = 256_000 * STEPS / (0.528 + 0.041 + 0.496)  # decisions per second of one H200: both networks and the labels
SERVE_CPU, SERVE_GPU = 3_599.0 * STEPS, 256_000 * STEPS / 0.115  # decisions per second of a roll-out
REQUEST = 209e-6  # core seconds per ranking of 200 candidates, logged
# measured, docs/decision-log.md: a decision and its feedback are one record each
LOGGED, PACKED, COMPACT, JOIN = 2_800.0, 8.2, 11_320 / 2, 8_883 / 2  # bytes; times smaller; decisions per core second
# counted in the files and arrays of: mbcal prepare newsfeed --sessions 24000 --out feed
STORED, IN_MEMORY = 6.49e6 / 480_000, 612 / STEPS  # bytes per decision; with propensities, times and 40 candidates

# of the networks with their default sizes for a log of two million steps or more
EMBEDDING, HIDDEN, NETWORKS = 32, 128, 2
FLOATS = 4 * EMBEDDING + 3 * HIDDEN  # per item: weight, gradient, Adam's two moments; its row of the scoring tables
PER_ITEM = NETWORKS * 4 * FLOATS


def rows() -> Iterator[tuple[str, list[float], str]]:
    """The rows of the table: name, one number per entry of DAYS, unit."""
    hour = 3600
    yield "decisions a second, mean", [day / 86_400 for day in DAYS], ""
    yield f"rankings a second in the busiest hour ({PEAK:g} x)", [PEAK * day / 86_400 for day in DAYS], ""
    yield f"cores to rank them, {BUSY:.0%} busy", [PEAK * day / 86_400 * REQUEST / BUSY for day in DAYS], ""
    yield "decision log as written, 200 candidates", [day * LOGGED / 1e12 for day in DAYS], "TB"
    yield "the same compacted", [day * LOGGED / PACKED / 1e12 for day in DAYS], "TB"
    yield "compact it", [day / COMPACT / hour for day in DAYS], "core h"
    yield "read and join it to sessions", [day / JOIN / hour for day in DAYS], "core h"
    yield "prepare: log to store", [day / INGEST / hour for day in DAYS], "core h"
    yield "store", [day * STORED / 1e9 for day in DAYS], "GB"
    yield "the same in memory, as arrays", [day * IN_MEMORY / 1e9 for day in DAYS], "GB"
    yield "fit MBCAL, one pass", [day / FIT_CPU / hour for day in DAYS], "core h"
    yield "the same on one H200", [day / FIT_GPU / hour for day in DAYS], "GPU h"
    yield "roll out or judge as many", [day / SERVE_CPU / hour for day in DAYS], "core h"
    yield "the same on one H200", [day / SERVE_GPU / hour for day in DAYS], "GPU h"
    updates = [NETWORKS * day / STEPS / UPDATE for day in DAYS]
    yield f"updates of a pass, {UPDATE:,} sessions each", updates, ""
    gradient = 2 * 4 * EMBEDDING * ITEMS  # bytes; a ring all-reduce sends every number about twice
    yield f"sums of gradients, {ITEMS:,} items, each worker", [number * gradient / 1e12 for number in updates], "TB sent"


def table() -> str:
    """The table of docs/scale.md."""
    lines = ["| | 10^9 a day | 10^10 a day |", "|---|---|---|"]
    for name, numbers, unit in rows():
        lines.append(f"| {name} | {' | '.join(f'{shown(number)} {unit}'.strip() for number in numbers)} |")
    return "\n".join(lines)


def shown(number: float) -> str:
    """A number with three significant digits."""
    digits = 2 - math.floor(math.log10(number))
    return f"{round(number, digits):,.{max(digits, 0)}f}"


def limits() -> str:
    """The table of docs/scale.md: items whose embeddings fit into one worker's memory."""
    lines = ["| memory of a worker, a tenth left free | items |", "|---|---|"]
    lines += [f"| {memory} GB | {0.9 * memory * 1e9 / PER_ITEM / 1e6:,.0f} million |" for memory in (16, 24, 80, 141)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(), limits(), sep="\n\n")
    print(f"\n{PER_ITEM:,} bytes per item; 10^8 items are {1e8 * PER_ITEM / 1e9:,.0f} GB")
