"""Tables of docs/results that reports of single runs do not have."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from results_experiments import rewards_table

from mbcal.config import to_dict
from mbcal.environments.newsfeed import oracle
from mbcal.evaluation.experiment.context import agent_config, split_agent_name
from mbcal.evaluation.experiment.overrides import parse_override
from mbcal.evaluation.significance import paired_difference
from mbcal.report.summary import RunSummary
from mbcal.report.tables import Row, Table, run_tables

REGRESSION = ("mse", "label_variance", "explained", "future_variance")
VARIANCE_COLUMNS = ("agent", "seeds", "MSE", "lowest MSE", "highest MSE", "label variance", "R²", "variance over futures")


def experiment_tables(name: str, summary: RunSummary) -> list[Table]:
    """The report's tables and, by kind of experiment, paired gaps, curves and options."""
    kind = name.partition("-")[2]
    tables = [table for table in run_tables(summary) if table.name != "variance"]
    tables.append(Table("variance", "", VARIANCE_COLUMNS, variance_rows(summary)))
    if kind in ("batch", "discount", "growing"):
        tables.append(gaps_table(summary, rewards_table(name)))
    if kind == "growing":
        tables.append(curves_table(summary))
    if kind in ("ablation", "labels"):
        tables.append(options_table(summary, next(table for table in tables if table.name == "batch")))
    return tables


def gaps_table(summary: RunSummary, protocol: str) -> Table:
    """Paired gaps of every two methods, the better one first, with an interval over users."""
    rows: list[Row] = []
    for judge in summary.judges:
        rewards = summary.compared(protocol, judge)
        ranked = [agent for agent, _, _ in summary.ranked(protocol, judge) if agent in rewards]
        for method, other in combinations(ranked, 2):
            gap, _ = paired_difference(rewards[method], rewards[other], summary.users)
            rows.append([judge, method, other, gap.mean, gap.low, gap.high])
    return Table("gaps", "", ("judge", "method", "against", "gap", "low", "high"), rows)


def curves_table(summary: RunSummary) -> Table:
    """Reward by round, and how far the worst seed is below its best round before."""
    rows: list[Row] = []
    for agent, results in summary.by_agent("growing").items():
        seeds = np.array([[entry["mean"] for entry in result.record["rounds"]] for result in results])
        falls = (np.maximum.accumulate(seeds, 1) - seeds).max(0)
        points = zip(seeds.mean(0), seeds.min(0), seeds.max(0), falls, strict=True)
        rows += [[agent, len(seeds), index + 1, *map(float, point)] for index, point in enumerate(points)]
    columns = ("agent", "seeds", "round", "reward per session", "lowest seed", "highest seed", "fall")
    return Table("curves", "", columns, rows)


def options_table(summary: RunSummary, rewards: Table) -> Table:
    """Each setting by its values; the method without overrides stands for the default value."""
    settings = summary.run.settings
    variants: set[tuple[str, str, Any, str]] = set()
    for agent in summary.by_agent("batch"):
        method, overrides = split_agent_name(agent)
        kind, config = agent_config(method, settings, (), 0)
        for override in overrides:
            path, value = parse_override(override, kind.Config)
            default = functools.reduce(getattr, path, config)
            variants |= {(method, ".".join(path), value, agent), (method, ".".join(path), default, method)}
    columns = ("reward per session", "spread over seeds", "seeds", "low", "high", "gap to mbcal", "p to mbcal")
    numbers = {(row[0], row[1]): [row[rewards.columns.index(column)] for column in columns] for row in rewards.rows}
    order = sorted(variants, key=lambda entry: (*entry[:2], isinstance(entry[2], str), entry[2]))
    rows: list[Row] = [
        [judge, method, option, value, *numbers[judge, agent]]
        for judge in summary.judges
        for method, option, value, agent in order
        if (judge, agent) in numbers
    ]
    return Table("options", "", ("judge", "agent", "option", "value", *columns), rows)


def variance_rows(summary: RunSummary) -> list[Row]:
    """The variance analysis of every method with a value network (the paper's Table 3), smallest error first."""
    rows: list[Row] = []
    for agent, results in summary.by_agent("batch").items():
        found = [result.record["regression"] for result in results if result.record["regression"]]
        if found:
            error, *others = (np.array([entry[name] for entry in found]) for name in REGRESSION)
            numbers = [error.mean(), error.min(), error.max(), *(values.mean() for values in others)]
            rows.append([agent, len(found), *map(float, numbers)])
    return sorted(rows, key=lambda row: row[2])


def size_tables(summaries: Sequence[RunSummary]) -> list[Table]:
    """Reward by the size of the log, and variance of the labels by the size of the log."""
    rows: list[Row] = [
        [summary.run.settings.log_sessions, judge, agent, mean.mean, spread, seeds, mean.low, mean.high]
        for summary in summaries
        for judge in summary.judges
        for agent, mean, spread in sorted(summary.ranked("batch", judge), key=lambda entry: entry[0])
        if agent != oracle.NAME
        for seeds in [len(summary.rewards("batch", judge)[agent])]
    ]
    columns = ("log sessions", "judge", "agent", "reward per session", "spread over seeds", "seeds", "low", "high")
    varied = [[summary.run.settings.log_sessions, *row] for summary in summaries for row in sorted(variance_rows(summary))]
    return [Table("size", "", columns, rows), Table("variance", "", ("log sessions", *VARIANCE_COLUMNS), varied)]


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
