"""Report on a run, and compare two runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mbcal.errors import InputError
from mbcal.evaluation.experiment.run import Run
from mbcal.evaluation.significance import paired_difference
from mbcal.metrics import Mean
from mbcal.report.page_writer import write_report
from mbcal.report.summary import PROTOCOLS, RunSummary


@dataclass(frozen=True)
class Report:
    """A report that has been written, and the results behind it."""

    summary: RunSummary
    """Rewards, rankings, curves and the result in a sentence; `report.tables.run_tables` makes tables of it."""
    page: Path
    """RUN/report.html; RUN/tables and RUN/figures are beside it."""
    done: int
    """Cells that are done."""
    total: int
    """All cells."""


def report(run: Run | str | Path) -> Report:
    """Write the report of a run, finished or not: RUN/report.html, RUN/tables and RUN/figures.

    Args:
        run: The run, or its folder.

    Returns:
        The results, and where they were written.

    Raises:
        StoreError: If the folder is not a run.
        InputError: If no cell is done yet.
    """
    run = _open(run)
    total, missing = len(run.cells), len(run.missing)
    if missing == total:
        raise InputError(f"{run.folder}: nothing is done yet; go on with 'mbcal experiment --resume {run.folder}'")
    summary = RunSummary(run)
    return Report(summary, write_report(run, summary), total - missing, total)


@dataclass(frozen=True)
class RunDifference:
    """One agent in two runs, under one protocol and judge."""

    protocol: str
    judge: str
    agent: str
    first: float
    """Mean reward per session in the first run."""
    second: float
    """Mean reward per session in the second run."""
    difference: Mean | None
    """second - first, paired session by session; None if the test sessions differ."""


@dataclass(frozen=True)
class RunComparison:
    """Two runs, side by side."""

    rows: list[RunDifference]
    """All agents that are done in both runs under the same protocol and judge."""
    paired: bool
    """Whether both runs have the same test sessions, so that differences are paired."""


def compare_runs(first: Run | str | Path, second: Run | str | Path) -> RunComparison:
    """Compare the rewards of two runs.

    Args:
        first: A run, or its folder.
        second: Another.

    Returns:
        One row for each agent that is done in both runs under the same protocol and judge.

    Raises:
        StoreError: If a folder is not a run.
        InputError: If there is no such agent.
    """
    a, b = (RunSummary(_open(run)) for run in (first, second))
    contents = [summary.run.store().manifest["content_hash"] for summary in (a, b)]
    paired = contents[0] == contents[1] and np.array_equal(a.users, b.users)
    rows = []
    for protocol in PROTOCOLS:
        for judge in (name for name in a.judges if name in b.judges):
            first_rewards, second_rewards = a.rewards(protocol, judge), b.rewards(protocol, judge)
            for agent in (name for name in first_rewards if name in second_rewards):
                one, other = first_rewards[agent], second_rewards[agent]
                gap = paired_difference(other.mean(0), one.mean(0), a.users)[0] if paired else None
                rows.append(RunDifference(protocol, judge, agent, float(one.mean()), float(other.mean()), gap))
    if not rows:
        folders = f"{a.run.folder} and {b.run.folder}"
        raise InputError(f"{folders}: no method is done in both under the same protocol and judge")
    return RunComparison(rows, paired)


def _open(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else Run.open(run, "cpu")
