"""Tables and figures of docs/results.md that reports of single runs do not have."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from results_experiments import CLAIMS, paper_numbers

from mbcal.config import to_dict
from mbcal.environments.newsfeed import oracle
from mbcal.evaluation.experiment.context import agent_config, split_agent_name
from mbcal.evaluation.experiment.overrides import parse_override
from mbcal.evaluation.significance import holm, paired_difference
from mbcal.report.figures import image_files, line_figure
from mbcal.report.summary import RunSummary
from mbcal.report.tables import Table, run_tables

DECIDED = 0.05
"""Below this p-value a claim is decided."""


def experiment_tables(name: str, summary: RunSummary) -> list[Table]:
    """The report's tables and, by kind of experiment, the claims, the curves and the options."""
    tables, (data, _, kind) = run_tables(summary), name.partition("-")
    if kind in ("batch", "growing"):
        paper = {agent: numbers["reward per session"] for agent, numbers in paper_numbers("batch", data).items()}
        tables.append(claims_table(summary, kind, paper))
    if kind == "growing":
        tables.append(curves_table(summary))
    if kind == "ablation":
        tables.append(options_table(summary, next(table for table in tables if table.name == "batch")))
    return tables


def claims_table(summary: RunSummary, protocol: str, paper: dict[str, float]) -> Table:
    """Paired gaps of the claims, with Holm's correction over the claims under one judge."""
    rows: list[list[Any]] = []
    for judge in summary.judges:
        rewards = summary.rewards(protocol, judge)
        claims = [pair for pair in CLAIMS[protocol] if set(pair) <= set(rewards)]
        claims = [(less, more) if (_paper_gap(more, less, paper) or 0) < 0 else (more, less) for more, less in claims]
        tests = [paired_difference(rewards[more], rewards[less], summary.users) for more, less in claims]
        for (more, less), (gap, _), p in zip(claims, tests, holm([p for _, p in tests]), strict=True):
            holds = "undecided" if p >= DECIDED else "yes" if gap.mean > 0 else "no"
            paper_gap = _paper_gap(more, less, paper) if protocol == "batch" else None
            rows.append([f"{more} > {less}", judge, paper_gap, gap.mean, gap.low, gap.high, p, holds])
    return Table("claims", "", ("claim", "judge", "paper's gap", "gap", "low", "high", "p", "holds"), rows)


def _paper_gap(more: str, less: str, paper: dict[str, float]) -> float | None:
    """The gap in the paper; None if it does not have both methods."""
    return paper[more] - paper[less] if more in paper and less in paper else None


def curves_table(summary: RunSummary) -> Table:
    """Reward by round."""
    rows: list[list[Any]] = [
        [agent, index + 1, *points]
        for agent, curve in summary.curves().items()
        for index, points in enumerate(zip(curve["mean"], curve["low"], curve["high"], strict=True))
    ]
    return Table("curves", "", ("agent", "round", "reward per session", "lowest seed", "highest seed"), rows)


def options_table(summary: RunSummary, rewards: Table) -> Table:
    """Each setting of MBCAL by its values; MBCAL without overrides stands for the default value."""
    settings = summary.run.settings
    kind, config = agent_config("mbcal", settings, (), 0)
    variants: set[tuple[str, Any, str]] = set()
    for agent in summary.by_agent("batch"):
        for override in split_agent_name(agent)[1]:
            path, value = parse_override(override, kind.Config)
            default = functools.reduce(getattr, path, config)
            variants |= {(".".join(path), value, agent), (".".join(path), default, "mbcal")}
    columns = ("reward per session", "spread over seeds", "low", "high", "gap to mbcal", "p to mbcal")
    numbers = {(row[0], row[1]): [row[rewards.columns.index(column)] for column in columns] for row in rewards.rows}
    rows: list[list[Any]] = [
        [judge, option, value, *numbers[judge, agent]]
        for judge in summary.judges
        for option, value, agent in sorted(variants, key=lambda entry: (entry[0], isinstance(entry[1], str), entry[1]))
        if (judge, agent) in numbers
    ]
    return Table("options", "", ("judge", "option", "value", *columns), rows)


def size_table(summaries: Sequence[RunSummary]) -> Table:
    """Reward by the size of the log."""
    rows: list[list[Any]] = [
        [summary.run.settings.log_sessions, judge, agent, mean.mean, spread, mean.low, mean.high]
        for summary in summaries
        for judge in summary.judges
        for agent, mean, spread in sorted(summary.ranked("batch", judge), key=lambda entry: entry[0])
        if agent != oracle.NAME
    ]
    columns = ("log sessions", "judge", "agent", "reward per session", "spread over seeds", "low", "high")
    return Table("size", "", columns, rows)


def size_variance_table(summaries: Sequence[RunSummary]) -> Table:
    """Variance of the labels, and how much of it is predicted, by the size of the log."""
    tables = {
        summary.run.settings.log_sessions: table
        for summary in summaries
        for table in run_tables(summary)
        if table.name == "variance"
    }
    columns = next((table.columns for table in tables.values()), ())
    rows = [[sessions, *row] for sessions, table in tables.items() for row in sorted(table.rows, key=lambda row: row[0])]
    return Table("variance", "", ("log sessions", *columns), rows)


def size_figures(table: Table) -> dict[str, bytes]:
    """Reward against the size of the log, under the first judge."""
    first_judge = table.rows[0][1]
    lines: dict[str, dict[str, list[float]]] = {}
    for sessions, judge, agent, mean, _, low, high in table.rows:
        if judge == first_judge:
            line = lines.setdefault(agent, {"at": [], "mean": [], "low": [], "high": []})
            for part, value in zip(line, (sessions, mean, low, high), strict=True):
                line[part].append(value)
    figure, axes = line_figure(lines)
    sizes = sorted({row[0] for row in table.rows})
    axes.set(xscale="log", xlabel="sessions of the log learned from", ylabel="reward per session, 95% interval")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_title(f"Batch-RL, judged by {first_judge}")
    return image_files("size", figure)


def run_record(summary: RunSummary) -> dict[str, Any]:
    """How a run was made, what of it is done, and the report cards of its simulators."""
    run = summary.run
    missing = [str(cell) for cell in run.missing]
    return {
        "command": (run.folder / "command.txt").read_text("utf-8"),
        "settings": to_dict(run.settings),
        "run": json.loads((run.folder / "run.json").read_bytes()),
        "cells": {"all": len(run.cells), "done": len(run.cells) - len(missing), "missing": missing},
        "test sessions": len(summary.users),
        "simulators": {
            judge: {name: round_value(value) for name, value in card.items() if isinstance(value, int | float)}
            for judge, card in summary.report_cards.items()
        },
    }


def round_value(value: Any) -> Any:
    """Six significant digits of a float; everything else as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
