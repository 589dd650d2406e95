"""Run records to tables: plain values with a title and a note, written as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.data.describe import describe
from mbcal.environments.newsfeed import oracle
from mbcal.environments.report_card import ReportCard
from mbcal.evaluation.experiment.run import CellRecord, Run
from mbcal.evaluation.significance import compare_to, kendall_tau, rounds_to
from mbcal.metrics import Mean, mean_interval
from mbcal.storage.artifacts import SIMULATOR_KIND, Artifact

BASES = ("gru4rec", "mbcal")
"""Whom the others are tested against."""

Cells = list[Any]


@dataclass(frozen=True)
class Table:
    """Columns and rows of plain values; numbers stay numbers until they are shown."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[Cells]
    note: str = ""

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if value is None else value for value in row] for row in self.rows])
        return out.getvalue()

    def markdown(self) -> str:
        """With its title and note."""
        lines = [f"## {self.title}", "", self.grid(), ""]
        return "\n".join([*lines, self.note, ""] if self.note else lines)

    def grid(self) -> str:
        """The columns and rows alone, as Markdown."""
        lines = [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(shown(value).replace('|', '/') for value in row)} |" for row in self.rows]
        return "\n".join(lines)


def shown(value: Any) -> str:
    """A value for people: four significant digits are enough, and nothing is a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class RunSummary:
    """Everything the report says, computed once from a run's results."""

    def __init__(self, run: Run) -> None:
        self.run, self.judges = run, run.judge_names
        self.results = list(run.results())

    @cached_property
    def users(self) -> NDArray[np.int32]:
        """Of every test session."""
        found: NDArray[np.int32] = self.run.test_sessions(self.run.store()).user
        return found

    def of(self, protocol: str) -> dict[str, list[CellRecord]]:
        """Results by agent, seeds in order."""
        by_agent: dict[str, list[CellRecord]] = {}
        for result in self.results:
            if result.cell.protocol == protocol:
                by_agent.setdefault(result.cell.agent, []).append(result)
        return by_agent

    def rewards(self, protocol: str, judge: str) -> dict[str, NDArray[np.float32]]:
        """(seeds, sessions) by agent."""
        return {
            agent: np.stack([one.rewards[judge] for one in results if judge in one.rewards])
            for agent, results in self.of(protocol).items()
            if any(judge in one.rewards for one in results)
        }

    def mean(self, rewards: NDArray[np.float32]) -> Mean:
        """Over sessions, seeds averaged, users clustered."""
        return mean_interval(rewards.mean(0), self.users)

    def ranked(self, protocol: str, judge: str) -> list[tuple[str, Mean, float | None]]:
        """Agents, best first: mean with interval, and the spread (standard deviation) over seeds."""
        found = [
            (agent, self.mean(values), float(values.mean(1).std(ddof=1)) if len(values) > 1 else None)
            for agent, values in self.rewards(protocol, judge).items()
        ]
        return sorted(found, key=lambda entry: -entry[1].mean)

    def headline(self) -> str:
        """The result in a sentence."""
        protocol = "batch" if self.of("batch") else "growing"
        judge = self.judges[0]
        rewards = {name: values for name, values in self.rewards(protocol, judge).items() if name != oracle.NAME}
        if not rewards:
            return "No method is done yet."
        best, mean, _ = next(entry for entry in self.ranked(protocol, judge) if entry[0] in rewards)
        said = f"{best} earns most: {mean.mean:.2f} per session [{mean.low:.2f}, {mean.high:.2f}] in {_PROTOCOL[protocol]}"
        base = "gru4rec" if best != "gru4rec" else "mbcal"
        if base in rewards:
            gap = compare_to(base, {name: rewards[name] for name in (base, best)}, self.users)[best].gap
            earned = abs(self.mean(rewards[base]).mean) / 100
            percent, low, high = (value / earned for value in (gap.mean, gap.low, gap.high))
            said += f", {percent:+.1f}% against {base} [{low:+.1f}, {high:+.1f}]"
        seeds = max(len(values) for values in rewards.values())
        trained = "one training of each" if seeds == 1 else f"{seeds} trainings of each"
        return f"{said} (judged by {_JUDGE[judge]}, {len(self.users):,} test sessions, {trained})."

    def warnings(self) -> list[str]:
        """What should keep a reader from believing too much."""
        said = []
        for judge in self.judges:
            if judge != "truth":
                card = Artifact.open(self.run.folder / "simulators" / judge, SIMULATOR_KIND).manifest["report_card"]
                if card["nll"] >= card["baseline_nll"]:
                    said.append(
                        f"The {judge} simulator knows no more than how often each behaviour occurs (NLL {card['nll']:.3f} "
                        f"against {card['baseline_nll']:.3f}): do not believe its ranking; train it longer or on more."
                    )
        return said

    def tables(self) -> list[Table]:
        made = [self._data(), self._simulators()]
        made += [self._rewards(protocol) for protocol in ("batch", "growing") if self.of(protocol)]
        made += [self._variance(), self._exposure(), self._agreement()]
        return [table for table in made if table.rows]

    def _data(self) -> Table:
        found = describe(self.run.store())
        rows: list[Cells] = [
            ["source", found["source"]],
            ["users", found["users"]],
            ["items", found["items"]],
            ["steps", found["rows"]],
            ["sessions", found["sessions"]],
            ["horizon", found["horizon"]],
            *([f"{part} sessions", entry["sessions"]] for part, entry in found["parts"].items()),
            ["behaviours", len(found["behaviours"])],
            ["reward per step", found["reward_per_step"]],
            ["item features", ", ".join(found["features"]) or None],
        ]
        return Table("data", "Data", ("what", "value"), rows)

    def _simulators(self) -> Table:
        columns = ("macro_f1", "weighted_f1", "rmse", "nll", "baseline_nll", "accuracy", "ece")
        rows: list[Cells] = []
        for judge in self.judges:
            if judge != "truth":
                card = Artifact.open(self.run.folder / "simulators" / judge, SIMULATOR_KIND).manifest["report_card"]
                rows.append([judge, *(float(card[name]) for name in columns), ReportCard(**card).drift])
        note = "On test users the simulator never saw. The paper's Table 1 has macro-F1, weighted-F1 and RMSE."
        return Table("simulators", "Simulators", ("family", *columns, "drift"), rows, note)

    def _rewards(self, protocol: str) -> Table:
        rows: list[Cells] = []
        earned = {judge: self.rewards(protocol, judge) for judge in self.judges}
        tests = {
            (judge, base): compare_to(base, {name: v for name, v in by_agent.items() if name != oracle.NAME}, self.users)
            for judge, by_agent in earned.items()
            for base in BASES
            if base in by_agent
        }
        top = self.rewards("batch", "truth").get(oracle.NAME) if "truth" in self.judges else None
        for judge in self.judges:
            for agent, mean, spread in self.ranked(protocol, judge):
                row: Cells = [judge, agent, mean.mean, spread, mean.low, mean.high]
                for base in BASES:
                    test = tests.get((judge, base), {}).get(agent)
                    row += [None, None] if test is None else [test.gap.mean, test.adjusted]
                row.append(self.mean(top).mean - mean.mean if top is not None and judge == "truth" else None)
                row.append(self._rounds(agent) if protocol == "growing" and judge == self.judges[0] else None)
                rows.append(row)
        columns = ["judge", "agent", "reward per session", "spread over seeds", "low", "high"]
        columns += [name for base in BASES for name in (f"gap to {base}", f"p to {base}")]
        note = (
            "Mean over seeds; spread is the standard deviation over seeds; low and high bound the 95% interval, "
            "clustered by user. Gaps are paired (same users, candidates and luck); p is two-sided after Holm's "
            "correction over the methods under one judge, for these trained models."
        )
        title = {"batch": "Batch-RL", "growing": "Growing Batch-RL, after the last round"}[protocol]
        return Table(protocol, title, (*columns, "regret", "rounds to 99%"), rows, note)

    def _rounds(self, agent: str) -> float | None:
        found = [rounds_to([one["mean"] for one in result.record["rounds"]]) for result in self.of("growing").get(agent, [])]
        counted = [value for value in found if value is not None]
        return float(np.mean(counted)) if counted else None

    def curves(self) -> dict[str, dict[str, list[float]]]:
        """Growing Batch-RL by agent: mean reward by round, and the band (lowest and highest seed)."""
        made = {}
        for agent, results in self.of("growing").items():
            seeds = np.array([[one["mean"] for one in result.record["rounds"]] for result in results])
            made[agent] = {"mean": seeds.mean(0).tolist(), "low": seeds.min(0).tolist(), "high": seeds.max(0).tolist()}
        return made

    def _variance(self) -> Table:
        rows: list[Cells] = []
        for agent, results in self.of("batch").items():
            found = [result.record["regression"] for result in results if result.record["regression"]]
            if found:
                names = ("mse", "label_variance", "explained", "future_variance")
                rows.append([agent, *(float(np.mean([one[name] for one in found])) for name in names)])
        note = (
            "Of each method's value network on the sessions of its own Batch-RL test, in squared reward units "
            "(variances, not standard deviations). R² is the share of the labels' variance that is predicted; the"
            " last column is the variance of the label of one (state, action) over resampled futures: noise that "
            "no network can learn."
        )
        columns = ("agent", "MSE", "label variance", "R²", "variance over futures")
        return Table("variance", "Variance of the labels", columns, sorted(rows, key=lambda row: row[1]), note)

    def _exposure(self) -> Table:
        rows: list[Cells] = []
        names = ("coverage", "gini", "diversity", "repetition")
        for agent, results in self.of("batch").items():
            judge = self.judges[0]
            found = [result.record["judges"][judge] for result in results if judge in result.record["judges"]]
            if found:
                rows.append([agent, *(float(np.mean([one[name] for one in found])) for name in names)])
        note = (
            "Coverage: share of the catalogue shown at least once. Gini: inequality of exposure. Diversity: "
            "distinct values of the first single-valued feature a session, per step. Repetition: share of steps "
            "with the value of the step before."
        )
        return Table("exposure", "What was shown (Batch-RL)", ("agent", *names), rows, note)

    def _agreement(self) -> Table:
        rows: list[Cells] = []
        for protocol in ("batch", "growing"):
            means = {judge: {a: m.mean for a, m, _ in self.ranked(protocol, judge)} for judge in self.judges}
            for place, first in enumerate(self.judges):
                for second in self.judges[place + 1 :]:
                    both = [agent for agent in means[first] if agent in means[second]]
                    if len(both) > 1:
                        tau = kendall_tau([means[first][a] for a in both], [means[second][a] for a in both])
                        rows.append([protocol, first, second, len(both), tau])
        columns = ("protocol", "judge", "and", "agents", "Kendall's tau")
        return Table("agreement", "Do the judges agree?", columns, rows, "1: the same ranking; -1: the reverse.")


_PROTOCOL: Mapping[str, str] = {"batch": "Batch-RL", "growing": "Growing Batch-RL"}
_JUDGE: Mapping[str, str] = {
    "truth": "the newsfeed's truth",
    "lstm": "the LSTM simulator",
    "transformer": "the transformer simulator",
}
