"""Print the results of a run on a terminal: rewards as numbers and bars, and paired gaps to the baseline."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid

from mbcal.evaluation.comparison import MARK
from mbcal.metrics import Mean
from mbcal.report.formats import WITHIN_ERROR
from mbcal.report.standing import compare
from mbcal.report.summary import RunSummary

BAR_WIDTH = 24
PIPE_WIDTH = 160
"""Characters per line where the output is not a terminal."""


def print_summary(summary: RunSummary) -> None:
    """Print one table per protocol and judge, best first, then the result in a few sentences."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for protocol, title in (("batch", "Batch-RL"), ("growing", "Growing Batch-RL, last round")):
        for judge in summary.judges:
            if summary.by_agent(protocol) and summary.ranked(protocol, judge):
                trust = summary.trust.get(judge)
                console.print(f"\n{title}, judged by {judge}", style="bold")
                if trust is not None:
                    console.print(f"{MARK} {trust.warning}" if trust.warning else trust.sentence)
                console.print(_reward_grid(summary, protocol, judge))
    console.print()
    for sentence in summary.sentences():
        console.print(sentence)


def _reward_grid(summary: RunSummary, protocol: str, judge: str) -> Grid:
    ranked, base = summary.ranked_with_log(protocol, judge), summary.baseline
    trust, rewards = summary.trust.get(judge), summary.rewards(protocol, judge)

    def mark(gap: float | None = None) -> str:
        return f" {MARK}" if trust is not None and trust.marks(gap) else ""

    low, high = min(mean.low for _, mean, _ in ranked), max(mean.high for _, mean, _ in ranked)
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("method")
    grid.add_column("reward", justify="right")
    grid.add_column("± trainings", justify="right")
    grid.add_column("95% interval")
    grid.add_column("" if base is None else f"against {base}")
    for agent, mean, spread in ranked:
        gap = ""
        if base in rewards and agent in rewards and agent != base:
            against = compare(agent, base, rewards, summary.users, trust)
            gap = f"{against.amount} {_REMARKS.get(against.relation, '')}".rstrip() + mark(against.gap.mean)
        own_mark = mark() if agent in rewards else ""
        grid.add_row(
            agent, f"{mean.mean:.2f}{own_mark}", "" if spread is None else f"{spread:.2f}", _bar(mean, low, high), gap
        )
    return grid


_REMARKS = {"level": "level", "untrusted": f"too small for this judge ({WITHIN_ERROR})"}


def _bar(mean: Mean, low: float, high: float) -> str:
    """An interval as a bar on the scale from `low` to `high`."""

    def column(value: float) -> int:
        return round((BAR_WIDTH - 1) * (value - low) / max(high - low, 1e-9))

    characters = [" "] * BAR_WIDTH
    for index in range(column(mean.low), column(mean.high) + 1):
        characters[index] = "─"
    characters[column(mean.mean)] = "●"
    return f"{''.join(characters)}  [{mean.low:.2f}, {mean.high:.2f}]"
