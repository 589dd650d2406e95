"""SQLite in place of the decision log's segments, for log_rivals.py, and how its tables are printed."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mbcal.decision_log import DecisionLog
from mbcal.decision_log.records import Record, decode


class SqliteLog(DecisionLog):
    """`DecisionLog` with SQLite in place of the segments; the queue, the thread and the futures are the same."""

    pragmas: tuple[str, ...] = ()

    def _open(self) -> tuple[int, int, int]:
        self.database = sqlite3.connect(self.database_path(), check_same_thread=False, isolation_level=None, timeout=60)
        for pragma in (*self.pragmas, "journal_mode=WAL", "synchronous=FULL"):
            self.database.execute(f"PRAGMA {pragma}")
        self.database.execute("CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
        return 1, 0, os.open(self.folder / "lock", os.O_RDWR)

    def database_path(self) -> Path:
        return self.folder / "log.db"

    def _write(self, batch: deque[Any], group: list[Any]) -> None:
        group.extend(batch)
        batch.clear()
        self.database.execute("BEGIN IMMEDIATE")
        self.database.executemany("INSERT INTO records (payload) VALUES (?)", [(entry.payload,) for entry in group])
        self.database.execute("COMMIT")

    def close(self) -> None:
        super().close()
        self.database.close()  # the last connection checkpoints the write-ahead log and removes it


class TunedSqliteLog(SqliteLog):
    """Larger pages and rarer checkpoints (every 64 MiB), for long records and a high rate."""

    pragmas = ("page_size=16384", "wal_autocheckpoint=4096")


class SharedSqliteLog(TunedSqliteLog):
    """Several processes, one database."""

    def database_path(self) -> Path:
        return self.folder.parent / "log.db"


ENGINES: dict[str, type[DecisionLog]] = {"decision log": DecisionLog, "SQLite": SqliteLog, "SQLite, tuned": TunedSqliteLog}


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    columns = [title, *columns]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def with_quartiles(values: list[float]) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def in_random_order(names: Iterable[str], rounds: int) -> Iterator[tuple[int, str]]:
    rng = np.random.default_rng(0)
    names = list(names)
    for number in range(rounds):
        for index in rng.permutation(len(names)):
            yield number, names[index]


def read_sqlite(folder: Path) -> Iterator[Record]:
    database = sqlite3.connect(folder / "log.db")
    try:
        for (payload,) in database.execute("SELECT payload FROM records ORDER BY number"):
            yield decode(payload)
    finally:
        database.close()
