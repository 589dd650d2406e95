"""`mbcal report` and `mbcal compare`: the results of runs."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.options import shell_quoted

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A folder written by 'mbcal experiment'.")]


def report_command(
    folder: RunDir,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Print the results of a run, finished or not, and write RUN/report.html, RUN/tables and RUN/figures."""
    from mbcal.report.runs import report
    from mbcal.report.terminal import print_summary

    written = report(folder)
    print_summary(written.summary)
    if written.done < written.total:
        resume = f"mbcal experiment --resume {shell_quoted(folder)}"
        typer.echo(f"{written.done} of {written.total} cells are done; continue with: {resume}")
    typer.echo(f"Report: {written.page}")
    if show:
        typer.launch(written.page.resolve().as_uri())


def compare_command(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A run.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another run.")],
) -> None:
    """Compare two runs: reward per session of every method that both have, and the difference.

    If both have the same test sessions, the difference is paired and has an interval.
    """
    from mbcal.report.runs import compare_runs

    comparison = compare_runs(first, second)
    console = Console(highlight=False, markup=False, emoji=False)
    for (protocol, judge), rows in groupby(comparison.rows, key=lambda row: (row.protocol, row.judge)):
        table = Table("agent", str(first), str(second), "difference" if comparison.paired else "", box=None, pad_edge=False)
        for row in rows:
            gap = row.difference
            text = "" if gap is None else f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
            table.add_row(row.agent, f"{row.first:.3f}", f"{row.second:.3f}", text)
        console.print(f"{protocol}, judged by {judge}", style="bold")
        console.print(table)
    if not comparison.paired:
        console.print("The runs have different data or test sessions, so differences are not paired and have no interval.")
