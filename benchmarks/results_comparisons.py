"""What claims compare: the evidence of each table in docs/results, pair by pair and judge by judge.

Intervals cover other test users and other trainings:

    half-width² = (half-width over users)² + (t · standard error over trainings)²

with Student's t at Welch's degrees of freedom; with a single training the second part is unknown and nothing can be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from results_evidence import Claim, Evidence
from results_experiments import DEFINITIONS, SHARES, ResultFiles, Row, rewards_table

from mbcal.metrics import t_quantile

NORMAL = 1.959964
RATINGS = ("netflix", "ml1m")
PLANNING = "mbcal-plan"
SMALLEST = f"1-{max(SHARES)}"
"""The smallest share of the log, as records of experiments on sizes call it."""
YARDSTICKS = ("yardstick", "BoredInf")
"""Rows of worlds.py whose policies play the world of the growing experiment."""


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
    rewards = files.rows(f"{experiment}-{rewards_table(experiment)}")
    rows = {row["agent"]: row for row in rewards if row["judge"] == judge}
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
    """Batch-RL, also without a discount, and Growing Batch-RL."""
    experiment, found = f"{data}-{claim.table}", []
    note = planned_note(files, experiment) if PLANNING in (*claim.more, *claim.less) else ""
    table = files.rows(f"{experiment}-{rewards_table(experiment)}")
    rewards = {(row["judge"], row["agent"]): row["reward per session"] for row in table}
    for more in claim.more:
        for less in claim.less:
            by_judge = []
            for judge in deciding_judges(data):
                gap = paired_gap(files, experiment, judge, more, less)
                if gap is not None:
                    against = less if len(claim.less) > 1 else more if len(claim.more) > 1 else ""
                    bound, known = -claim.margin * rewards[judge, less], paper_gap(files, data, claim, more, less)
                    by_judge.append(replace(gap, bound=bound, against=against, paper=known, note=note))
            found.append(by_judge)
    return found


def planned_note(files: ResultFiles, experiment: str) -> str:
    """In how many trainings mbcal-plan planned; empty where its choices are not known."""
    chosen = [row for row in files.rows(f"{experiment}-choices") if row["agent"] == PLANNING and row["chosen"] == "True"]
    if chosen:
        return f"planned in {sum(row['advantage'] == 'planned' for row in chosen)} of {len(chosen)}"
    rewards = files.rows(f"{experiment}-{rewards_table(experiment)}")
    trainings = {row["seeds"] for row in rewards if row["agent"] == PLANNING}
    regressions = [row["seeds"] for row in files.rows(f"{experiment}-variance") if row["agent"] == PLANNING]
    if not trainings or not files.rows(f"{experiment}-variance"):
        return ""
    return f"planned in {max(trainings) - sum(regressions)} of {max(trainings)}"  # planned ones have no value regression


def paper_gap(files: ResultFiles, data: str, claim: Claim, more: str, less: str) -> float | None:
    """The gap in the paper's Table 2, for its own claims on ratings; other feeds have other scales of reward."""
    numbers = files.paper("batch", data) if claim.table == "batch" and claim.by == "paper" and data in RATINGS else {}
    if more not in numbers or less not in numbers:
        return None
    return numbers[more]["reward per session"] - numbers[less]["reward per session"]


def compare_size(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Rewards from a sixteenth of the log; not paired, so the interval is wider than it had to be."""
    record = files.record(f"{data}-size").get(SMALLEST)
    smallest = record["settings"]["log_sessions"] if record else None
    rows = files.rows(f"{data}-size-size")
    table = {(row["judge"], row["agent"]): row for row in rows if row["log sessions"] == smallest}
    found = []
    for more in claim.more:
        for less in claim.less:
            pairs = [(judge, table.get((judge, more)), table.get((judge, less))) for judge in deciding_judges(data)]
            against = less if len(claim.less) > 1 else ""
            gaps = [_difference(first, second, judge, against) for judge, first, second in pairs if first and second]
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
    """Factors between mean squared errors; the ends are the lowest and highest between two trainings, no 95% interval."""
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
        chosen = [row["chosen"] for row in rows if row["judge"] == judge]
        notes = [f"planned in {chosen.count('planned')} of {len(chosen)}"]
        if all(regret == 0 for regret, _ in regrets):
            notes.append("the choice was the best in all trainings")
        found = Evidence(-mean, -mean - half, -mean + half, -claim.margin * reward, judge=judge, trainings=len(regrets))
        found = replace(found, loss=True, note=", ".join(notes))
        by_judge.append(replace(found, trusted=trusted_from(files, f"{data}-batch", judge)))
    return [by_judge]


def mean_of_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its interval over seeds; 0 for one seed."""
    mean, count = sum(values) / len(values), len(values)
    if count == 1:
        return mean, 0.0
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, t_quantile(0.975, count - 1) * spread / math.sqrt(count)


def compare_ranking(claim: Claim, data: str, files: ResultFiles) -> list[list[Evidence]]:
    """Rank correlations with the true advantage, mean over seeds; the claim is about logs of every size."""
    column = claim.column or "rank, logging"
    ranks: dict[tuple[int, str], dict[int, float]] = {}
    for row in files.rows(f"{data}-advantages"):
        if row.get(column) is not None:
            ranks.setdefault((row["sessions"], row["estimate"]), {})[row.get("seed", 0)] = row[column]
    sizes = sorted({size for size, _ in ranks}, reverse=True)
    return [
        _rank_gaps({size: (ranks.get((size, more), {}), ranks.get((size, less), {})) for size in sizes}, size)
        for more in claim.more
        for less in claim.less
        for size in sizes
    ]


def _rank_gaps(by_size: Mapping[int, tuple[Mapping[int, float], Mapping[int, float]]], size: int) -> list[Evidence]:
    """The difference of ranks (by seed) on a log of one size, with a note of the others; empty without a common seed."""
    gaps = {at: [first[seed] - second[seed] for seed in first if seed in second] for at, (first, second) in by_size.items()}
    if not gaps[size]:
        return []
    mean, half = mean_of_seeds(gaps[size])
    others = [f"{mean_of_seeds(found)[0]:+.3f} with {at:,}" for at, found in gaps.items() if found and at != size]
    found = Evidence(mean, mean - half, mean + half, against=f"{size:,} sessions", trainings=len(gaps[size]))
    return [replace(found, note=", ".join(others))]


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


TESTS: dict[str, Callable[[Claim, str, ResultFiles], list[list[Evidence]]]] = {
    "batch": compare_rewards,
    "discount": compare_rewards,
    "growing": compare_rewards,
    "size": compare_size,
    "variance": compare_variance,
    "choice": compare_choice,
    "ranking": compare_ranking,
    "yardstick": compare_yardstick,
}
"""By table of a claim: the evidence, pair by pair and judge by judge."""
