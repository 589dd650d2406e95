"""The result on a terminal: rewards as numbers and as bars of intervals."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid

from mbcal.evaluation.experiment.run import Run
from mbcal.metrics import Mean
from mbcal.report.tables import RunSummary

WIDTH = 36


def show(run: Run) -> None:
    """One table a protocol and judge, best first."""
    findings = RunSummary(run)
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 140
    for protocol, title in (("batch", "Batch-RL"), ("growing", "Growing Batch-RL, last round")):
        for judge in findings.judges:
            ranked = findings.ranked(protocol, judge)
            if not ranked:
                continue
            low, high = min(mean.low for _, mean, _ in ranked), max(mean.high for _, mean, _ in ranked)
            grid = Grid(box=None, pad_edge=False)
            for column, side in (("agent", "left"), ("reward", "right"), ("± seeds", "right"), ("95% interval", "left")):
                grid.add_column(column, justify="right" if side == "right" else "left")
            for agent, mean, spread in ranked:
                beside = "" if spread is None else f"{spread:.2f}"
                grid.add_row(agent, f"{mean.mean:.2f}", beside, _bar(mean, low, high))
            console.print(f"\n{title}, judged by {judge}", style="bold")
            console.print(grid)
    console.print(f"\n{findings.headline()}")
    for warning in findings.warnings():
        console.print(f"Warning: {warning}")


def _bar(mean: Mean, low: float, high: float) -> str:
    """The interval between the lowest and the highest of all."""

    def place(value: float) -> int:
        return round((WIDTH - 1) * (value - low) / max(high - low, 1e-9))

    marks = [" "] * WIDTH
    for spot in range(place(mean.low), place(mean.high) + 1):
        marks[spot] = "─"
    marks[place(mean.mean)] = "●"
    return f"{''.join(marks)}  [{mean.low:.2f}, {mean.high:.2f}]"
