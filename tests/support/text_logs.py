"""Logs in several files, some of them damaged."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mbcal import Labels, TableLog
from tests.support.logs import REWARDS, write_csv

HEADER = ("user", "item", "time", "behaviour", "session", "shown")


START = 1_600_000_000


def rows(count: int, seed: int = 0) -> list[tuple[object, ...]]:
    """Few users and times, so that times tie; some rows twice."""
    draw = random.Random(seed)
    made: list[tuple[object, ...]] = [
        (
            f"u{draw.randrange(30)}",
            f"i{draw.randrange(50)}",
            START + 60 * draw.randrange(200),
            draw.choice(list(REWARDS)),
            f"s{draw.randrange(4)}",
            draw.choice((0.25, 0.5, 1.0)),
        )
        for _ in range(count)
    ]
    return made + made[: count // 20]


BAD: list[tuple[object, ...]] = [
    ("", "i1", START, "skip", "s", 1),
    ("u1", "", START, "skip", "s", 1),
    ("u1", "i1", "last Tuesday", "skip", "s", 1),
    ("u1", "i1", START, "shrug", "s", 1),
    ("u1", "i1", START, "skip", "s", 7),
]


def text_log(folder: Path) -> list[Path]:
    """Four CSV files: plain, gzipped, with other line ends, and with bad rows and broken lines."""
    plain = write_csv(folder / "a.csv", rows(300, 1), HEADER)
    returns = write_csv(folder / "b.csv", rows(200, 2), HEADER)
    returns.write_bytes(returns.read_bytes().replace(b"\r\n", b"\r"))
    packed = write_csv(folder / "c.csv", rows(300, 3), HEADER)
    (folder / "c.csv.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    bad = write_csv(folder / "d.csv", [*rows(100, 4), *BAD], HEADER)
    with bad.open("a") as file:
        file.write("u1,i1\nu1,i1,1,skip,s,1,and more\n")
    return [plain, returns, folder / "c.csv.gz", bad]


def table(paths: Sequence[Path] | Path, **changes: Any) -> TableLog:
    known = {"user": "user", "item": "item", "time": "time", "behaviour": "behaviour", "rule": Labels(REWARDS)}
    return TableLog(paths, **{**known, **changes})


def damaged(folder: Path) -> TableLog:
    """A log of two files, of which one is broken in the middle."""
    columns = dict(zip(HEADER, zip(*rows(5_000), strict=True), strict=True))
    for name in ("a", "b"):
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=1_000)
    broken = bytearray((folder / "b.parquet").read_bytes())
    broken[1_000:3_000] = bytes(2_000)
    (folder / "b.parquet").write_bytes(broken)
    return table([folder / "a.parquet", folder / "b.parquet"])
