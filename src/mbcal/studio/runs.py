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
from mbcal.storage.artifacts import SIMULATOR_KIND, Artifact


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
        "headline": summary.sentences() if summary.results and is_inside else None,  # these may read the data
        "warnings": summary.warnings() if summary.results and is_inside else {},  # by judge
        "cells": len(run.cells),
        "missing": [str(cell) for cell in run.missing],
        "judges": list(summary.judges),
        "results": _results(summary, is_inside),
        "curves": summary.curves(),
        "settings": to_dict(run.settings),
        "report": (folder / "report.html").is_file(),
        "clustered": is_inside,
    }


def compare_view(root: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Return the results of several runs side by side, and paired differences to the first.

    Of each run, `comparable` are the judges under which its rewards can be compared with the first run's: the same test
    sessions, and the truth or the same simulator. `problem` of a difference says why others cannot.

    Args:
        root: The folder that is searched; data outside of it is not read.
        folders: The runs.

    Raises:
        MbcalError: If a run or one of its results is damaged.
    """
    runs: list[dict[str, Any]] = []
    differences = []
    readable, first = True, None
    for folder in folders:
        summary, is_inside = _summary(root, folder)
        readable, first = readable and is_inside, first or summary
        path = folder.relative_to(root).as_posix()
        report, comparable = (folder / "report.html").is_file(), list(summary.judges)
        if runs:
            difference = _difference(first, summary, readable)
            comparable = difference.pop("comparable")
            differences.append({"path": path, **difference})
        results = _results(summary, is_inside)
        run = {"path": path, "results": results, "report": report, "data": summary.run.settings.data}
        runs.append({**run, "comparable": comparable})
    return {"runs": runs, "differences": differences, "clustered": readable}


def _difference(first: RunSummary, second: RunSummary, readable: bool) -> dict[str, Any]:
    """The paired differences of two runs under the judges that both have, and why there are no others."""
    if not readable:
        problem = "cannot be compared with the first: the data of one of them is outside of this folder"
        return {"rows": [], "problem": problem, "comparable": []}
    try:
        comparison = compare_runs(first.run, second.run)
    except MbcalError as error:
        return {"rows": [], "problem": str(error), "comparable": []}
    if not comparison.paired:
        problem = "has other test sessions than the first: neither rewards nor differences can be compared"
        return {"rows": [], "problem": problem, "comparable": []}
    contents = [_simulators(summary) for summary in (first, second)]
    comparable = [name for name in second.judges if name in first.judges and len({one.get(name) for one in contents}) == 1]
    others = [name for name in second.judges if name not in comparable]
    rows = [
        {
            "protocol": PROTOCOLS[row.protocol],
            "judge": row.judge,
            "agent": row.agent,
            "first": row.first,
            "second": row.second,
            "difference": _mean(row.difference),
        }
        for row in comparison.rows
        if row.judge in comparable and row.difference is not None
    ]
    unlike = f"has other judges than the first ({', '.join(others)}), whose rewards cannot be compared"
    return {"rows": rows, "problem": unlike if others else None, "comparable": comparable}


def _simulators(summary: RunSummary) -> dict[str, str]:
    """Content hashes of the simulators among the judges of a run."""
    folder = summary.run.folder / "simulators"
    return {name: Artifact.open(folder / name, SIMULATOR_KIND).manifest["content_hash"] for name in summary.report_cards}


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


def _results(summary: RunSummary, is_inside: bool) -> list[dict[str, Any]]:
    """Reward of every agent, and of the log if it may be read, with its interval, by protocol and judge, best first."""
    return [
        {"protocol": title, "judge": judge, "agent": agent, "over_seeds": deviation, **_mean(mean)}
        for protocol, title in PROTOCOLS.items()
        for judge in summary.judges
        for agent, mean, deviation in (summary.ranked_with_log if is_inside else summary.ranked)(protocol, judge)
    ]


def _mean(mean: Mean) -> dict[str, Any]:
    """A mean as JSON can hold it; bounds that are not finite are None."""
    low, high = (float(value) if np.isfinite(value) else None for value in (mean.low, mean.high))
    return {"mean": float(mean.mean), "low": low, "high": high, "count": mean.count}
