"""The experiments behind docs/results.md, as experiments.toml defines them, and the paper's numbers to compare with."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from typing import Any

DEFINITIONS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("experiments.toml").read_text("utf-8"))


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

RIVALS = ("gru4rec", "mbcal-no-vr", "dqn", "ddqn", "ddpg", "mcpe", "dyna-q")
_BOTH = (*(("mbcal", rival) for rival in RIVALS), ("gru4rec", "dqn"), ("gru4rec", "mcpe"), ("dqn", "ddpg"))
CLAIMS = {"batch": _BOTH, "growing": (*_BOTH, ("gru4rec-eps", "gru4rec"))}
"""By protocol: who should earn more, and less. Reversed for data whose column in the paper's Table 2 is the other way."""

PAPER = Path(__file__).resolve().parent.parent / "docs" / "results" / "paper.csv"


def paper_numbers(table: str, data: str) -> dict[str, dict[str, float]]:
    """The paper's numbers for the dataset that this data stands for: by row, then by column."""
    numbers: dict[str, dict[str, float]] = {}
    with PAPER.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["table"], row["dataset"]) == (table, DEFINITIONS["paper"].get(data)):
                numbers.setdefault(row["name"], {})[row["column"]] = float(row["value"])
    return numbers
