"""From measured rates of one machine to a day's decisions: the tables of docs/scale.md.

python benchmarks/capacity.py

Rates are those of docs/performance.md; what was not measured is assumed, and says so. A decision is one item shown and
answered; a session is 20 of them. Nothing here knows prices: what a day costs goes by its core hours, GPU hours and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

DAYS = (1e9, 1e10)
"""Decisions a day."""
STEPS, UPDATE, ITEMS = 20, 4096, 1_000_000
"""Of a session; sessions an update of a fit on several workers (assumed); items of the catalogue (assumed)."""
PEAK, BUSY = 3.0, 0.5
"""Of the busiest hour to the mean, and how busy a server may be (assumed)."""

# measured, docs/performance.md
INGEST = 100e6 / 25.90 / 2  # rows a core second: 100M rows of Parquet in 25.90 s on two cores
FIT_CPU = 36_859.0  # decisions a core second, MBCAL
FIT_GPU = 256_000 * STEPS / (0.528 + 0.041 + 0.496)  # decisions a second of one H200: both networks and the labels
SERVE_CPU, SERVE_GPU = 3_599.0 * STEPS, 256_000 * STEPS / 0.115  # decisions a second of a roll-out
REQUEST = 209e-6  # core seconds a ranking, 200 candidates, logged
# measured, docs/decision-log.md: a decision is a record and its feedback another
LOGGED, PACKED, COMPACT, JOIN = 2_800.0, 9.5, 12_700 / 2, 16_212 / 2  # bytes; times smaller; decisions a core second
# counted in the files and arrays made by: mbcal prepare newsfeed --sessions 24000 --out feed
STORED, IN_MEMORY = 6.49e6 / 480_000, 612 / STEPS  # bytes a decision; propensities, times, 40 candidates a session

# of networks as they are by default
EMBEDDING, HIDDEN, NETWORKS = 32, 32, 2
FLOATS = 4 * EMBEDDING + 3 * HIDDEN  # an item's: weight, gradient, Adam's two moments; its row of the scoring tables
PER_ITEM = NETWORKS * 4 * FLOATS


def rows() -> Iterator[tuple[str, list[float], str]]:
    """What, by day, and its unit."""
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
    gradient = 2 * 4 * EMBEDDING * ITEMS  # a ring sends every number about twice
    yield f"sums of gradients, {ITEMS:,} items, each worker", [number * gradient / 1e12 for number in updates], "TB sent"


def table() -> str:
    """As in docs/scale.md."""
    lines = ["| | 10^9 a day | 10^10 a day |", "|---|---|---|"]
    lines += [
        f"| {name} | {' | '.join(f'{shown(number)} {unit}'.strip() for number in found)} |" for name, found, unit in rows()
    ]
    return "\n".join(lines)


def shown(number: float) -> str:
    """Three digits that count."""
    digits = 2 - math.floor(math.log10(number))
    return f"{round(number, digits):,.{max(digits, 0)}f}"


def limits() -> str:
    """Items whose embeddings fit one worker, as in docs/scale.md."""
    lines = ["| memory of a worker, a tenth left free | items |", "|---|---|"]
    lines += [f"| {memory} GB | {0.9 * memory * 1e9 / PER_ITEM / 1e6:,.0f} million |" for memory in (16, 24, 80, 141)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(), limits(), sep="\n\n")
    print(f"\n{PER_ITEM:,} bytes an item; 10^8 items are {1e8 * PER_ITEM / 1e9:,.0f} GB")
