"""The experiments behind docs/results.md, as experiments.toml defines them, and the files that hold their results."""

from __future__ import annotations

import contextlib
import csv
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

DEFINITIONS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text("utf-8"))
PAGES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("pages.toml").read_text("utf-8"))
"""What the pages of the data sets show."""


def _settings(name: str) -> dict[str, Any]:
    """Later tables replace settings of earlier ones; an experiment is called DATA-KIND."""
    data, _, kind = name.partition("-")
    tables = (DEFINITIONS["all"], DEFINITIONS["data"][data], DEFINITIONS["kinds"][kind], DEFINITIONS["experiments"][name])
    return {key: value for table in tables for key, value in table.items()}


EXPERIMENTS: dict[str, dict[str, Any]] = {name: _settings(name) for name in DEFINITIONS["experiments"]}
"""By name: what differs from the defaults."""
SHARES = (16, 8, 4, 2, 1)
"""Sample efficiency is measured by one run for each n: on one n-th of the log."""
SIZES = {name for name in EXPERIMENTS if name.endswith("-size")}
"""Experiments on sample efficiency."""


def rewards_table(name: str) -> str:
    """Which table of an experiment has the rewards; the others of its tables are named likewise."""
    kind = name.partition("-")[2]
    return kind if kind in ("growing", "size") else "batch"


Row = dict[str, Any]


class ResultFiles:
    """The files of docs/results, read.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = cache(self._rows)
        self.record = cache(self._record)

    def _rows(self, name: str) -> list[Row]:
        """Rows of NAME.csv, numbers parsed and None where a cell is empty; empty if there is no such file."""
        path = self.folder / f"{name}.csv"
        if not path.is_file():
            return []
        lines = csv.DictReader(path.read_text("utf-8").splitlines())
        return [{column: parse_value(text) for column, text in line.items()} for line in lines]

    def _record(self, experiment: str) -> dict[str, Any]:
        """NAME.json; empty if there is no such file."""
        path = self.folder / f"{experiment}.json"
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}

    def settings(self, experiment: str) -> dict[str, Any]:
        """Settings that an experiment was run with; empty if it was not."""
        return next((record["settings"] for record in self.record(experiment).values()), {})

    def paper(self, table: str, data: str) -> dict[str, dict[str, float]]:
        """The paper's numbers for the dataset that this data stands for: by row, then by column."""
        numbers: dict[str, dict[str, float]] = {}
        for row in self.rows("paper"):
            if (row["table"], row["dataset"]) == (table, DEFINITIONS["paper"].get(data)):
                numbers.setdefault(row["name"], {})[row["column"]] = float(row["value"])
        return numbers


def parse_value(text: str) -> Any:
    """The value of a CSV cell: None, a number or text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text or None
