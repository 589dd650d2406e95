"""`mbcal report` and `mbcal compare`: what runs found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mbcal.errors import InputError

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A folder written by 'mbcal experiment'.")]


def show_report(
    folder: RunDir,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Tables on the terminal; RUN/report.html, RUN/tables and RUN/figures written anew, also of a run under way."""
    from mbcal.evaluation.experiment.run import Run
    from mbcal.report.page_writer import write_report
    from mbcal.report.terminal import show as show_tables

    run = Run.open(folder, "cpu")
    done = len(run.cells) - len(run.missing)
    if not done:
        raise InputError(f"{folder}: nothing is done yet; go on with 'mbcal experiment --resume {folder}'")
    page = write_report(run)
    show_tables(run)
    if run.missing:
        typer.echo(f"{done} of {len(run.cells)} results; the rest: mbcal experiment --resume {folder}")
    typer.echo(f"Report: {page}")
    if show:
        typer.launch(page.resolve().as_uri())


def compare_runs(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another.")],
) -> None:
    """Two runs side by side: reward per session of every method both have, and the difference.

    On the same test sessions the difference is paired and has an interval; else means are shown alone.
    """
    from mbcal.evaluation.experiment.run import Run
    from mbcal.evaluation.significance import paired_difference
    from mbcal.report.tables import RunSummary

    a, b = RunSummary(Run.open(first, "cpu")), RunSummary(Run.open(second, "cpu"))
    alike = a.run.store().manifest["content_hash"] == b.run.store().manifest["content_hash"] and len(a.users) == len(b.users)
    console = Console(highlight=False, markup=False, emoji=False)
    told = 0
    for protocol in ("batch", "growing"):
        for judge in (name for name in a.judges if name in b.judges):
            here, there = a.rewards(protocol, judge), b.rewards(protocol, judge)
            table = Table("agent", str(first), str(second), "difference" if alike else "", box=None, pad_edge=False)
            for agent in (name for name in here if name in there):
                gap = ""
                if alike:
                    mean, _ = paired_difference(there[agent].mean(0), here[agent].mean(0), a.users)
                    gap = f"{mean.mean:+.3f} [{mean.low:+.3f}, {mean.high:+.3f}]"
                table.add_row(agent, f"{here[agent].mean():.3f}", f"{there[agent].mean():.3f}", gap)
            if table.row_count:
                told += 1
                console.print(f"{protocol}, judged by {judge}", style="bold")
                console.print(table)
    if not told:
        raise InputError(f"{first} and {second}: no method is done in both under the same protocol and judge")
    if not alike:
        console.print("The runs have other data or test sessions, so differences have no paired interval.")
