"""Results of a run as tables: plain values with a title and a note, written as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mbcal.data.describe import describe
from mbcal.environments.report_card import ReportCard
from mbcal.environments.trust import Trust
from mbcal.evaluation.comparison import MARK
from mbcal.evaluation.significance import Comparison, compare_to, kendall_tau, rounds_to
from mbcal.report.columns import column, is_p
from mbcal.report.formats import Marked, WithinError, format_p, format_value
from mbcal.report.summary import PROTOCOLS, RunSummary

BASES = ("gru4rec", "mbcal")
"""Methods that the others are tested against."""

Row = list[Any]


@dataclass(frozen=True)
class Table:
    """Columns and rows of plain values; numbers stay numbers until they are formatted."""

    name: str
    """File name, without its ending."""
    title: str
    columns: tuple[str, ...]
    rows: list[Row]
    note: str = ""
    warnings: Mapping[int, str] = field(default_factory=dict)
    """Warnings by the first row that they concern."""

    def csv(self) -> str:
        """Return the columns and rows as CSV; None is empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if value is None else value for value in row] for row in self.rows])
        return out.getvalue()

    def markdown(self) -> str:
        """Return the title, the columns and rows, and the note as Markdown."""
        warnings = [line for warning in self.warnings.values() for line in (f"> {warning}", "")]
        lines = [f"## {self.title}", "", *warnings, self.grid(), ""]
        return "\n".join([*lines, self.note, ""] if self.note else lines)

    def grid(self) -> str:
        """Return the columns and rows alone as Markdown."""
        lines = [f"| {' | '.join(column(name).title for name in self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(text.replace('|', '/') for text in self.texts(row))} |" for row in self.rows]
        return "\n".join(lines)

    def texts(self, row: Row) -> list[str]:
        """Return the values of a row as readers see them."""
        return [
            format_p(value) if is_p(name) and isinstance(value, float) else format_value(value)
            for name, value in zip(self.columns, row, strict=True)
        ]


def run_tables(summary: RunSummary) -> list[Table]:
    """Return all tables of the report that have rows."""
    tables = [data_table(summary), simulators_table(summary)]
    tables += [rewards_table(summary, protocol) for protocol in PROTOCOLS if summary.by_agent(protocol)]
    tables += [choices_table(summary), variance_table(summary), exposure_table(summary), agreement_table(summary)]
    return [table for table in tables if table.rows]


def data_table(summary: RunSummary) -> Table:
    """Sizes of the data."""
    description = describe(summary.run.store())
    rows: list[Row] = [
        ["source", description["source"]],
        ["users", description["users"]],
        ["items", description["items"]],
        ["steps", description["rows"]],
        ["sessions", description["sessions"]],
        ["horizon", description["horizon"]],
        *([f"{part} sessions", counts["sessions"]] for part, counts in description["parts"].items()),
        ["behaviours", len(description["behaviours"])],
        ["reward per step", description["reward_per_step"]],
        ["item features", ", ".join(description["features"]) or None],
    ]
    held, used = description["parts"].get("test", {"sessions": 0})["sessions"], len(summary.users)
    note = f"The tests use {used:,} of the {held:,} test sessions (setting test_sessions)." if used < held else ""
    return Table("data", "Data", ("what", "value"), rows, note)


def simulators_table(summary: RunSummary) -> Table:
    """Report cards of the simulators."""
    columns = ("macro_f1", "weighted_f1", "rmse", "nll", "baseline_nll", "accuracy", "ece")
    rows: list[Row] = [
        [judge, *(float(card[name]) for name in columns), ReportCard(**card).drift, _finite(summary.trust[judge].difference)]
        for judge, card in summary.report_cards.items()
    ]
    note = "On test users the simulator never saw. The paper's Table 1 has macro-F1, weighted F1 and RMSE."
    return Table("simulators", "Simulators", ("family", *columns, "drift", "trusted from"), rows, note)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def rewards_table(summary: RunSummary, protocol: str) -> Table:
    """Reward per session of every method under every judge, the number of its trainings, and tests against the `BASES`.

    Numbers that the warning of a simulator concerns are `Marked`, and p-values of gaps within its own error `WithinError`.
    """
    tests: dict[tuple[str, str], dict[str, Comparison]] = {}
    tested = {judge: summary.rewards(protocol, judge) for judge in summary.judges}
    warnings: dict[int, str] = {}
    for judge in summary.judges:
        rewards = summary.compared(protocol, judge)
        tests |= {(judge, base): compare_to(base, rewards, summary.users) for base in BASES if base in rewards}
    oracle_reward = summary.oracle_reward()
    rows: list[Row] = []
    for judge in summary.judges:
        mark, trust = _mark(summary, judge), summary.trust.get(judge)
        warnings |= _warning_from(len(rows), summary, judge)
        for agent, mean, spread in summary.ranked_with_log(protocol, judge):
            own = mark if agent in tested[judge] else float
            row: Row = [judge, agent, own(mean.mean), None if spread is None else own(spread), own(mean.low), own(mean.high)]
            for base in BASES:
                row += _test_values(tests.get((judge, base), {}).get(agent), trust)
            row.append(oracle_reward - mean.mean if oracle_reward is not None and judge == "truth" else None)
            is_growing = protocol == "growing" and judge == summary.judges[0]
            row.append(_mean_rounds(summary, agent) if is_growing else None)
            rows.append([*row, len(tested[judge][agent]) if agent in tested[judge] else None])
    columns = ["judge", "agent", "reward per session", "spread over seeds", "low", "high"]
    columns += [f"{name} to {base}" for base in BASES for name in ("gap", "gap low", "gap high", "p")]
    spread_note = " spread is their standard deviation;" if any(row[3] is not None for row in rows) else ""
    note = (
        f"Mean over trainings, each with another seed;{spread_note} low and high bound the 95% "
        "interval, clustered by user. Gaps are paired (same users, candidates and noise); p is two-sided after Holm's "
        "correction over the methods under one judge, for these trained models. The log is what the logging policy earned "
        "in the same test sessions."
    )
    title = {"batch": "Batch-RL", "growing": "Growing Batch-RL, after the last round"}[protocol]
    return Table(protocol, title, (*columns, "regret", "rounds to 99%", "seeds"), rows, note, warnings)


def _mark(summary: RunSummary, *judges: str) -> type[float]:
    """The type of numbers by these judges: `Marked` if one of them can be trusted for nothing."""
    return Marked if any(judge in summary.trust and summary.trust[judge].marks() for judge in judges) else float


def _warning_from(row: int, summary: RunSummary, judge: str) -> dict[int, str]:
    """The warning of a judge for the rows that begin with this one; empty if none is due."""
    warning = summary.trust[judge].warning if judge in summary.trust else None
    return {row: f"{MARK} {judge}: {warning}"} if warning else {}


def _test_values(test: Comparison | None, trust: Trust | None) -> Row:
    """Gap, its interval and its p-value."""
    if test is None:
        return [None] * 4
    mark = Marked if trust is not None and trust.marks(test.gap.mean) else float
    is_trusted = trust is None or trust.covers(test.gap.mean)
    p = test.adjusted if is_trusted else WithinError(test.adjusted)
    return [mark(test.gap.mean), mark(test.gap.low), mark(test.gap.high), p]


def _mean_rounds(summary: RunSummary, agent: str) -> float | None:
    """Rounds to 99% of the last round's reward, mean over trainings."""
    results = summary.by_agent("growing").get(agent, [])
    rounds = [rounds_to([entry["mean"] for entry in result.record["rounds"]]) for result in results]
    counts = [count for count in rounds if count is not None]
    return float(np.mean(counts)) if counts else None


def choices_table(summary: RunSummary) -> Table:
    """What methods chose from data, in their last choice, with the evidence: a row for every candidate."""
    rows: list[Row] = []
    results = [result for protocol in PROTOCOLS for found in summary.by_agent(protocol).values() for result in found]
    for result in results:
        choice = result.record.get("choices", {}).get("advantage", {"trials": []})
        for trial in choice["trials"]:
            evidence = [trial[name] for name in ("kind", "reward", "gain", "low", "high")]
            rows.append([*result.cell, *evidence, trial["kind"] == choice["kind"]])
    note = (
        "Policies with these advantages, fitted on half of the train users, served the other half, as several models of "
        "that half imagine them, and the other way round. A candidate replaces the best one before it if the lower end of "
        "its gain is above 0."
    )
    columns = ("protocol", "agent", "seed", "advantage", "judged reward", "judged gain", "gain from", "gain to", "chosen")
    return Table("choices", "What was chosen from data", columns, rows, note)


def variance_table(summary: RunSummary) -> Table:
    """The variance analysis of every method with a value network (the paper's Table 3)."""
    names = ("mse", "label_variance", "explained", "future_variance")
    rows: list[Row] = []
    for agent, results in summary.by_agent("batch").items():
        regressions = [result.record["regression"] for result in results if result.record["regression"]]
        if regressions:
            rows.append([agent, *(float(np.mean([entry[name] for entry in regressions])) for name in names)])
    note = (
        "Of each method's value network on the sessions of its own Batch-RL test, in squared reward units "
        "(variances, not standard deviations). “explained” is the share of the labels' variance that is predicted (R²); the"
        " last column is the variance of the label of one (state, action) over resampled futures: noise that "
        "no network can learn."
    )
    columns = ("agent", "MSE", "label variance", "R²", "variance over futures")
    return Table("variance", "Variance of the labels", columns, sorted(rows, key=lambda row: row[1]), note)


def exposure_table(summary: RunSummary) -> Table:
    """How the choices of every method spread over items, under the first judge."""
    names, judge = ["coverage", "gini", "diversity", "repetition"], summary.judges[0]
    mark = _mark(summary, judge)
    if summary.run.store().behaviours.terminal:
        names = ["length", "left", *names]
    rows: list[Row] = []
    for agent, results in summary.by_agent("batch").items():
        entries = [result.record["judges"][judge] for result in results if judge in result.record["judges"]]
        if entries:
            rows.append([agent, *(mark(np.mean([entry[name] for entry in entries])) for name in names)])
    note = (
        "Items shown: share of the catalogue shown at least once. Inequality: Gini coefficient of exposure. Diversity: "
        "distinct values of the first single-valued feature a session, per step. Repetition: share of steps "
        "with the value of the step before."
    )
    if "left" in names:
        note = "Steps per session, and the share of sessions that the user left. " + note
    return Table("exposure", "Exposure (Batch-RL)", ("agent", *names), rows, note, _warning_from(0, summary, judge))


def agreement_table(summary: RunSummary) -> Table:
    """Agreement of every two judges on the ranking of methods."""
    rows: list[Row] = []
    for protocol in PROTOCOLS:
        means = {judge: {agent: mean.mean for agent, mean, _ in summary.ranked(protocol, judge)} for judge in summary.judges}
        for index, first in enumerate(summary.judges):
            for second in summary.judges[index + 1 :]:
                both = [agent for agent in means[first] if agent in means[second]]
                if len(both) > 1:
                    tau = kendall_tau([means[first][agent] for agent in both], [means[second][agent] for agent in both])
                    rows.append([protocol, first, second, len(both), _mark(summary, first, second)(tau)])
    columns = ("protocol", "judge", "and", "agents", "Kendall's tau")
    note = "1: the same ranking; -1: the reverse. All pairs of methods count, also those that a judge cannot tell apart."
    return Table("agreement", "Agreement of the judges", columns, rows, note)
