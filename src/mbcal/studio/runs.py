"""What the pages of runs show: one run, or several side by side with intervals. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mbcal.config import to_dict
from mbcal.errors import MbcalError
from mbcal.evaluation.experiment.run import Run
from mbcal.metrics import Mean
from mbcal.report.runs import compare_runs
from mbcal.report.summary import PROTOCOLS, RunSummary


def run_view(root: Path, folder: Path) -> dict[str, Any]:
    """Return the state and the results of a run, finished or not.

    Args:
        root: The folder that is searched; data outside of it is not read.
        folder: The run.

    Raises:
        MbcalError: If the run or one of its results is damaged.
    """
    summary, is_inside = _summary(root, folder)
    run = summary.run
    return {
        "headline": summary.headline() if summary.results and is_inside else None,  # these may read the data
        "warnings": summary.warnings() if summary.results and is_inside else [],
        "cells": len(run.cells),
        "missing": [str(cell) for cell in run.missing],
        "judges": list(summary.judges),
        "results": _results(summary),
        "curves": summary.curves(),
        "settings": to_dict(run.settings),
        "report": (folder / "report.html").is_file(),
        "clustered": is_inside,
    }


def compare_view(root: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Return the results of several runs side by side, and paired differences to the first.

    Args:
        root: The folder that is searched; data outside of it is not read.
        folders: The runs.

    Raises:
        MbcalError: If a run or one of its results is damaged.
    """
    runs, differences = [], []
    readable = True
    for folder in folders:
        summary, is_inside = _summary(root, folder)
        readable &= is_inside
        path = folder.relative_to(root).as_posix()
        report = (folder / "report.html").is_file()
        runs.append({"path": path, "results": _results(summary), "report": report, "data": summary.run.settings.data})
        if len(runs) > 1:
            differences.append({"path": path, **_difference(folders[0], folder, readable)})
    return {"runs": runs, "differences": differences, "clustered": readable}


def _difference(first: Path, second: Path, readable: bool) -> dict[str, Any]:
    if not readable:
        return {"rows": [], "problem": "not compared session by session: the data of a run is outside of this folder"}
    try:
        comparison = compare_runs(first, second)
    except MbcalError as error:
        return {"rows": [], "problem": str(error)}
    rows = [
        {
            "protocol": PROTOCOLS[row.protocol],
            "judge": row.judge,
            "agent": row.agent,
            "first": row.first,
            "second": row.second,
            "difference": None if row.difference is None else _mean(row.difference),
        }
        for row in comparison.rows
    ]
    return {"rows": rows, "problem": None if comparison.paired else "not paired: the test sessions differ"}


def _summary(root: Path, folder: Path) -> tuple[RunSummary, bool]:
    """The summary of a run, and whether its data may be read: otherwise sessions are taken as independent."""
    run = Run.open(folder, "cpu")
    data = folder / "data" if run.settings.is_generated else Path(run.settings.data).resolve()
    is_inside = run.settings.is_world or (data.is_relative_to(root) and (data / "manifest.json").is_file())
    summary = RunSummary(run)
    if not is_inside:
        lengths = {len(rewards) for result in summary.results for rewards in result.rewards.values()}
        summary.users = np.arange(max(lengths, default=0), dtype=np.int32)
    return summary, is_inside


def _results(summary: RunSummary) -> list[dict[str, Any]]:
    """Reward of every agent with its interval, by protocol and judge, best first."""
    return [
        {"protocol": title, "judge": judge, "agent": agent, "over_seeds": deviation, **_mean(mean)}
        for protocol, title in PROTOCOLS.items()
        for judge in summary.judges
        for agent, mean, deviation in summary.ranked(protocol, judge)
    ]


def _mean(mean: Mean) -> dict[str, Any]:
    """A mean as JSON can hold it; bounds that are not finite are None."""
    low, high = (float(value) if np.isfinite(value) else None for value in (mean.low, mean.high))
    return {"mean": float(mean.mean), "low": low, "high": high, "count": mean.count}
