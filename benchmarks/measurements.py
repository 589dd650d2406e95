"""Results of scripts that are no experiments, as files like those of `results.py collect`: a table and how it was made.

::

    docs/results/NAME.csv     one row per key; a row that is measured again replaces the old one
    docs/results/NAME.json    by group of rows (the data): command, versions, device, content hash of the data, settings

Both are written after every row, so that a script that is killed loses nothing and can skip what is there. Several
processes may write to one file.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mbcal.evaluation.experiment.run import version_record
from mbcal.report.tables import Table
from mbcal.storage.atomic import write_atomic


class Measurements:
    """The rows of one table: printed and, given a path, written.

    Args:
        path: The CSV file; None prints rows alone.
        keys: Columns that name a row.
        columns: The other columns.
    """

    def __init__(self, path: Path | None, keys: Sequence[str], columns: Sequence[str]) -> None:
        self.path, self.keys, self.columns = path, tuple(keys), (*keys, *columns)
        print(self._csv([]), end="", flush=True)

    def has(self, **key: Any) -> bool:
        """Whether the file has a row with these keys."""
        return self._key(key) in self._read()

    def add(self, **row: Any) -> None:
        """Print a row, and write it in the place of one with the same key. Floats keep six digits."""
        row = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in row.items()}
        print(self._csv([row]).splitlines()[1], flush=True)
        self._update(lambda path: write_atomic(path, self._csv({**self._read(), self._key(row): row}.values()).encode()))

    def record(self, group: str, device: str, data: str, settings: Mapping[str, Any]) -> None:
        """Write how the rows of a group are made.

        Args:
            group: Name of the data.
            device: Where it is computed.
            data: Content hash of the data.
            settings: What was asked for.
        """
        record = {
            "command": f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}",
            "run": {**version_record(device), "data": data},
            "settings": {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()},
        }

        def write(path: Path) -> None:
            path = path.with_suffix(".json")
            records = json.loads(path.read_bytes()) if path.is_file() else {}
            write_atomic(path, (json.dumps({**records, group: record}, indent=1, sort_keys=True) + "\n").encode())

        self._update(write)

    def _key(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self.keys)

    def _read(self) -> dict[tuple[str, ...], Mapping[str, Any]]:
        """The rows of the file by key."""
        if self.path is None or not self.path.is_file():
            return {}
        rows = csv.DictReader(self.path.read_text("utf-8").splitlines())
        return {self._key(row): row for row in rows}

    def _csv(self, rows: Any) -> str:
        return Table("", "", self.columns, [[row.get(name) for name in self.columns] for row in rows]).csv()

    def _update(self, write: Callable[[Path], None]) -> None:
        """Change the files while no other process does."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            write(self.path)
        finally:
            os.close(folder)
