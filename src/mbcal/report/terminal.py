"""Print the results of a run on a terminal: rewards as numbers, and their intervals as bars."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid

from mbcal.metrics import Mean
from mbcal.report.summary import RunSummary

BAR_WIDTH = 36
PIPE_WIDTH = 140
"""Characters per line where the output is not a terminal."""


def print_summary(summary: RunSummary) -> None:
    """Print one table per protocol and judge, best first, then the result in a sentence and the warnings."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for protocol, title in (("batch", "Batch-RL"), ("growing", "Growing Batch-RL, last round")):
        for judge in summary.judges:
            ranked = summary.ranked(protocol, judge)
            if ranked:
                console.print(f"\n{title}, judged by {judge}", style="bold")
                console.print(_reward_grid(ranked))
    console.print(f"\n{summary.headline()}")
    for warning in summary.warnings():
        console.print(f"Warning: {warning}")


def _reward_grid(ranked: list[tuple[str, Mean, float | None]]) -> Grid:
    low, high = min(mean.low for _, mean, _ in ranked), max(mean.high for _, mean, _ in ranked)
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("agent")
    grid.add_column("reward", justify="right")
    grid.add_column("± seeds", justify="right")
    grid.add_column("95% interval")
    for agent, mean, spread in ranked:
        grid.add_row(agent, f"{mean.mean:.2f}", "" if spread is None else f"{spread:.2f}", _bar(mean, low, high))
    return grid


def _bar(mean: Mean, low: float, high: float) -> str:
    """An interval as a bar on the scale from `low` to `high`."""

    def column(value: float) -> int:
        return round((BAR_WIDTH - 1) * (value - low) / max(high - low, 1e-9))

    characters = [" "] * BAR_WIDTH
    for index in range(column(mean.low), column(mean.high) + 1):
        characters[index] = "─"
    characters[column(mean.mean)] = "●"
    return f"{''.join(characters)}  [{mean.low:.2f}, {mean.high:.2f}]"
