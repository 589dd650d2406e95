"""Verdicts on the claims of claims.toml, computed from the files in docs/results.

A claim is tested on every data set it names, pair by pair and judge by judge. Where the truth is known it judges alone; else
every simulator must agree, and a gap that a simulator's own error could explain tells nothing. Intervals cover other test
users and other trainings:

    half-width² = (half-width over users)² + (t · standard error over trainings)²

with Student's t at Welch's degrees of freedom; with a single training the second part is unknown and nothing can be told.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from results_experiments import DEFINITIONS, ResultFiles, Row

from mbcal.metrics import t_quantile

Verdict = Literal["holds", "does not hold", "inconclusive"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNKNOWN: Verdict = "inconclusive"
NORMAL = 1.959964
RATINGS = ("netflix", "ml1m")
YARDSTICKS = ("yardstick", "BoredInf")
"""Rows of worlds.py whose policies play the world of the growing experiment."""


@dataclass(frozen=True)
class Claim:
    """One claim; claims.toml explains the fields."""

    by: Literal["paper", "ours"]
    says: str
    table: str
    data: tuple[str, ...]
    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()
    margin: float = 0.0
    column: str = ""


@dataclass(frozen=True)
class Evidence:
    """One number with its interval, and what it must exceed."""

    value: float
    low: float
    high: float
    bound: float = 0.0
    """The claim holds above it."""
    against: str = ""
    judge: str = ""
    trainings: int = 0
    """Of the method with fewer; 0 where trainings do not matter."""
    trusted: float | None = None
    """Smallest gap that the judge's own error does not explain, if it is a simulator that knows."""
    factor: bool = False
    """Whether the value is a factor, not a difference."""
    loss: bool = False
    """Whether the value is minus a loss; readers see the loss."""
    paper: float | None = None
    """The paper's number, where its data has the same scale."""
    partial: bool = False
    """Whether something that the claim compares was not measured yet, so that it can be refuted only."""
    disputed: bool = False
    """Whether another judge says the opposite."""

    @property
    def verdict(self) -> Verdict:
        if self.trainings == 1 or math.isnan(self.value) or self.is_small or self.disputed:
            return UNKNOWN
        if self.high < self.bound:
            return FAILS
        return HOLDS if self.low > self.bound and not self.partial else UNKNOWN

    @property
    def is_small(self) -> bool:
        """Whether the judge's own error could explain how far the value is from the bound."""
        return self.trusted is not None and abs(self.value - self.bound) < self.trusted

    def __str__(self) -> str:
        if self.factor:
            interval = f" [{_factor(self.low)}, {_factor(self.high)}]" if self.low < self.high else ""
            return f"{_factor(self.value)}×{interval}"
        numbers = (-self.value, -self.high, -self.low) if self.loss else (self.value, self.low, self.high)
        sign = "" if self.loss else "+"
        if self.low == self.high:
            return f"{numbers[0]:{sign}.3g}" if self.value else "0"
        decimals = _decimals(self.low, self.high)
        value, low, high = (round(number, decimals) or 0.0 for number in numbers)  # no -0.0
        return f"{value:{sign if value else ''}.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"

    @property
    def limit_text(self) -> str:
        """The bound as readers see it, where it is not that nothing is lost; empty otherwise."""
        return f"{-self.bound if self.loss else self.bound:.2g}" if self.bound and not self.factor else ""

    @property
    def paper_text(self) -> str:
        """The paper's number as text; empty if there is none."""
        if self.paper is None:
            return ""
        return f"{_factor(self.paper)}×" if self.factor else f"{self.paper:+.2f}"


def _decimals(low: float, high: float) -> int:
    """Decimals that show two digits of an interval's half-width, and on which side of 0 each end is."""
    smallest = min(abs(end) for end in (low, high) if end)
    return max(1 - math.floor(math.log10((high - low) / 2)), -math.floor(math.log10(2 * smallest)), 0)


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


CLAIMS = [
    Claim(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})
    for entry in tomllib.loads(Path(__file__).with_name("claims.toml").read_text("utf-8"))["claims"]
]
"""All claims, in the order of the page."""


def evidence(claim: Claim, data: str, files: ResultFiles) -> Evidence | None:
    """The evidence that decides a claim on a data set: of what refutes it, or is weakest; None if nothing was measured."""
    compared = TESTS[claim.table](claim, data, files)
    pairs = [found for found in compared if found]
    if not pairs:
        return None
    if len(pairs) < len(compared):
        pairs = [[replace(entry, partial=True) for entry in by_judge] for by_judge in pairs]
    verdicts = [_joint([entry.verdict for entry in by_judge]) for by_judge in pairs]
    decided = _over_all(verdicts)
    deciding = [entry for verdict, by_judge in zip(verdicts, pairs, strict=True) if verdict == decided for entry in by_judge]
    if decided == UNKNOWN:
        deciding = [entry for entry in deciding if entry.verdict != HOLDS] or deciding
    least = min(deciding, key=lambda entry: entry.low - entry.bound)
    return replace(least, disputed=decided == UNKNOWN != least.verdict)


def overall_verdict(found: Sequence[Evidence | None]) -> Verdict | None:
    """The verdict on a claim over the data sets that were measured: one that refutes a claim is enough; None without any."""
    verdicts = [entry.verdict for entry in found if entry is not None]
    return _over_all(verdicts) if verdicts else None


def _joint(verdicts: Sequence[Verdict]) -> Verdict:
    """What judges say together: what all say, else nothing."""
    return verdicts[0] if len(set(verdicts)) == 1 else UNKNOWN


def _over_all(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim about all of something: refuted by one, and true only if true of each."""
    return FAILS if FAILS in verdicts else UNKNOWN if UNKNOWN in verdicts else HOLDS


# ---- what is compared


def deciding_judges(data: str) -> list[str]:
    """The truth alone where it is known; else all judges."""
    judges = list(DEFINITIONS["data"][data].get("judges", ["world"]))
    return ["truth"] if "truth" in judges else judges


def training_error(rows: Sequence[Row]) -> tuple[float, float]:
    """Standard error of a difference over trainings, and Student's t for it, given the rows of both."""
    parts = [(row["spread over seeds"] or 0.0) ** 2 / row["seeds"] for row in rows]
    variance = sum(parts)
    if variance == 0:
        return 0.0, 0.0
    freedom = variance**2 / sum(part**2 / max(row["seeds"] - 1, 1) for part, row in zip(parts, rows, strict=True))
    return math.sqrt(variance), student_t(freedom)


def student_t(freedom: float) -> float:
    """The 97.5% quantile of Student's t for a fraction of degrees of freedom, interpolated in 1 / freedom."""
    below = max(int(freedom), 1)
    first, second = (t_quantile(0.975, count) for count in (below, below + 1))
    share = (1 / below - 1 / max(freedom, 1.0)) / (1 / below - 1 / (below + 1))
    return first + share * (second - first)


def paired_gap(files: ResultFiles, experiment: str, judge: str, more: str, less: str) -> Evidence | None:
    """The paired gap of two methods in an experiment, with an interval over users and trainings."""
    found = _gap_over_users(files.rows(f"{experiment}-gaps"), judge, more, less)
    table = experiment.partition("-")[2]
    rows = {row["agent"]: row for row in files.rows(f"{experiment}-{table}") if row["judge"] == judge}
    if found is None or more not in rows or less not in rows:
        return None
    mean, half = found
    error, t = training_error([rows[more], rows[less]])
    half = math.hypot(half, t * error)
    seeds, trusted = min(rows[more]["seeds"], rows[less]["seeds"]), trusted_from(files, experiment, judge)
    return Evidence(mean, mean - half, mean + half, judge=judge, trainings=seeds, trusted=trusted)


def trusted_from(files: ResultFiles, experiment: str, judge: str) -> float | None:
    """The smallest gap that the own error of a judge of the experiment does not explain; None for the truth."""
    return {row["family"]: row.get("trusted from") for row in files.rows(f"{experiment}-simulators")}.get(judge)


def _gap_over_users(rows: Sequence[Row], judge: str, more: str, less: str) -> tuple[float, float] | None:
    """A gap and its half-width over users."""
    for row in rows:
        if row["judge"] == judge and {row["method"], row["against"]} == {more, less}:
            sign = 1 if row["method"] == more else -1
            return sign * row["gap"], (row["high"] - row["low"]) / 2
    return None


def compare_rewards(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Batch-RL and Growing Batch-RL."""
    experiment, found = f"{data}-{claim.table}", []
    rewards = {(row["judge"], row["agent"]): row["reward per session"] for row in files.rows(f"{experiment}-{claim.table}")}
    for more in claim.more:
        for less in claim.less:
            by_judge = []
            for judge in deciding_judges(data):
                gap = paired_gap(files, experiment, judge, more, less)
                if gap is not None:
                    against = less if len(claim.less) > 1 else more if len(claim.more) > 1 else ""
                    bound, known = -claim.margin * rewards[judge, less], paper_gap(files, data, claim, more, less)
                    by_judge.append(replace(gap, bound=bound, against=against, paper=known))
            found.append(by_judge)
    return found


def paper_gap(files: ResultFiles, data: str, claim: Claim, more: str, less: str) -> float | None:
    """The gap in the paper's Table 2, for its own claims on ratings; other feeds have other scales of reward."""
    numbers = files.paper("batch", data) if claim.table == "batch" and claim.by == "paper" and data in RATINGS else {}
    if more not in numbers or less not in numbers:
        return None
    return numbers[more]["reward per session"] - numbers[less]["reward per session"]


def compare_size(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Rewards from the smallest share of the log; not paired, so the interval is wider than it had to be."""
    rows = files.rows(f"{data}-size-size")
    smallest = min((row["log sessions"] for row in rows), default=0)
    table = {(row["judge"], row["agent"]): row for row in rows if row["log sessions"] == smallest}
    found = []
    for more in claim.more:
        for less in claim.less:
            pairs = [(judge, table.get((judge, more)), table.get((judge, less))) for judge in deciding_judges(data)]
            gaps = [_difference(first, second, judge, less) for judge, first, second in pairs if first and second]
            found.append([replace(gap, trusted=trusted_from(files, f"{data}-batch", gap.judge)) for gap in gaps])
    return found


def _difference(first: Row, second: Row, judge: str, against: str) -> Evidence:
    """The difference of two rows that are not paired."""
    mean = first["reward per session"] - second["reward per session"]
    error, t = training_error([first, second])
    half = math.hypot(*((row["high"] - row["low"]) / 2 for row in (first, second)), t * error)
    trainings = min(first["seeds"], second["seeds"])
    return Evidence(mean, mean - half, mean + half, against=against, judge=judge, trainings=trainings)


def compare_variance(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Factors between mean squared errors, from lowest to highest training."""
    rows = {row["agent"]: row for row in files.rows(f"{data}-batch-variance")}
    paper = files.paper("variance", data) if claim.by == "paper" else {}
    ends = {
        agent: [row.get(f"{end}MSE") or row["MSE"] for end in ("", "lowest ", "highest ")] for agent, row in rows.items()
    }
    found: list[list[Evidence]] = []
    for more in claim.more:
        for less in claim.less:
            if more not in ends or less not in ends:
                found.append([])
                continue
            (own, own_low, own_high), (other, lowest, highest) = ends[more], ends[less]
            entry = Evidence(other / own, lowest / own_high, highest / own_low, bound=1.0, against=less, factor=True)
            known = paper[less]["MSE"] / paper[more]["MSE"] if more in paper and less in paper else None
            found.append([replace(entry, trainings=min(rows[more]["seeds"], rows[less]["seeds"]), paper=known)])
    return found


def compare_choice(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Minus the regret of the choice, mean over trainings."""
    rows = [row for row in files.rows("planning-choice") if row["data"] == data and row["regret"] is not None]
    by_judge = []
    for judge in dict.fromkeys(row["judge"] for row in rows):
        regrets = [(row["regret"], (row["regret high"] - row["regret low"]) / 2) for row in rows if row["judge"] == judge]
        reward = sum(row["reward"] for row in rows if row["judge"] == judge) / len(regrets)
        mean, half = mean_of_seeds([regret for regret, _ in regrets])
        half = math.hypot(half, sum(users for _, users in regrets) / len(regrets))
        found = Evidence(-mean, -mean - half, -mean + half, -claim.margin * reward, judge=judge, trainings=len(regrets))
        by_judge.append(replace(found, loss=True, trusted=trusted_from(files, f"{data}-batch", judge)))
    return [by_judge]


def mean_of_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its interval over seeds; 0 for one seed."""
    mean, count = sum(values) / len(values), len(values)
    if count == 1:
        return mean, 0.0
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, t_quantile(0.975, count - 1) * spread / math.sqrt(count)


def compare_ranking(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Rank correlations with the true advantage, on the largest log, mean over seeds."""
    column, rows = claim.column or "rank, logging", files.rows(f"{data}-advantages")
    largest = max((row["sessions"] for row in rows), default=0)
    by_estimate: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["sessions"] == largest and row.get(column) is not None:
            by_estimate.setdefault(row["estimate"], {})[row.get("seed", 0)] = row[column]
    found = []
    for more in claim.more:
        for less in claim.less:
            first, second = by_estimate.get(more, {}), by_estimate.get(less, {})
            seeds = sorted(set(first) & set(second))
            if seeds:
                mean, half = mean_of_seeds([first[seed] - second[seed] for seed in seeds])
                found.append([Evidence(mean, mean - half, mean + half, trainings=len(seeds))])
    return found


def compare_yardstick(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """The last round of growing against a policy that knows the truth."""
    rows = {row["agent"]: row for row in files.rows(f"{data}-growing-growing")}
    known = {row["policy"]: row for row in files.rows(f"{data}-worlds") if (row["kind"], row["world"]) == YARDSTICKS}
    found = []
    for more in claim.more:
        for less in claim.less:
            if more in rows and less in known:
                yardstick = {
                    "reward per session": known[less]["clicks"],
                    "spread over seeds": 0.0,
                    "seeds": rows[more]["seeds"],
                }
                half = NORMAL * known[less]["stderr"]
                yardstick |= {"low": known[less]["clicks"] - half, "high": known[less]["clicks"] + half}
                found.append([_difference(rows[more], yardstick, "world", "")])
    return found


def compare_steady(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Minus the largest fall of any training below its best round before."""
    rows = [
        row for row in files.rows(f"{data}-growing-curves") if row["agent"] in claim.more and row.get("fall") is not None
    ]
    if not rows:
        return []
    fall = max(row["fall"] for row in rows)
    return [[Evidence(-fall, -fall, -fall, -claim.margin, trainings=rows[0]["seeds"], loss=True)]]


TESTS: dict[str, Callable[[Claim, str, ResultFiles], list[list[Evidence]]]] = {
    "batch": compare_rewards,
    "growing": compare_rewards,
    "size": compare_size,
    "variance": compare_variance,
    "choice": compare_choice,
    "ranking": compare_ranking,
    "yardstick": compare_yardstick,
    "steady": compare_steady,
}
"""By table of a claim: the evidence, pair by pair and judge by judge."""
