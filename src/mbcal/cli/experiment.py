"""`mbcal experiment`: methods, seeds and protocols in one run that can be stopped and resumed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from mbcal.cli.console import SECONDS_BETWEEN_LINES, progress
from mbcal.cli.options import AddressOption, DeviceOption, EngineOption, GpusOption, worker_resources
from mbcal.distributed.engines import create_engine
from mbcal.errors import OptionError

if TYPE_CHECKING:
    from mbcal.evaluation.experiment.config import ExperimentConfig
    from mbcal.evaluation.experiment.run import Cell

CellsOption = Annotated[
    int | None, typer.Option(help="Cells to run at a time.", min=1, show_default="one per core; 1 on a GPU")
]


def experiment_command(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[newsfeed|DIR|gym:ID|CONFIG.toml]",
            help="The generated newsfeed, a store, a Gymnasium world, or a file of settings.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default=False)] = None,
    preset: Annotated[str, typer.Option(help="Sizes: quick (minutes), laptop (an hour), paper (a GPU).")] = "quick",
    agents: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas: 'all', names, path.py:Class, 'mbcal+gamma=0.9'.", show_default="all"
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How often each method is trained.", show_default="3")] = None,
    protocols: Annotated[str | None, typer.Option(help="batch, growing or both.", show_default="batch,growing")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: 'rounds=3' or 'simulator.hidden=64'.", show_default=False),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume this run instead.", show_default=False)] = None,
    workers: CellsOption = None,
    track: Annotated[str | None, typer.Option(help="Also send results to mlflow or wandb.", show_default=False)] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
) -> None:
    """Compare methods on the same users, candidates and noise, by Batch-RL and Growing Batch-RL.

    A run that was stopped resumes with --resume RUN; finished cells are kept, and the tables are the same.
    A cell is one method, seed and protocol. All settings: docs/experiments.md.
    """
    from mbcal.evaluation.experiment.runner import run_experiment
    from mbcal.report.runs import report
    from mbcal.report.terminal import print_summary

    resources = worker_resources(engine, device, gpus)
    if resume is None:
        folder, config = _new_run(source, out, preset, agents, seeds, protocols, change)
    elif source or out or change:
        raise OptionError("resume: a run knows its settings; give --resume alone")
    else:
        folder, config = resume, None
    with create_engine(engine, workers, address) as running_engine, ExitStack() as preparation:
        listener = preparation.enter_context(progress())
        with _CellProgress(preparation.close) as observer:
            run = run_experiment(
                config,
                folder,
                resume=resume is not None,
                workers=workers,
                device=device,
                engine=None if engine == "local" else running_engine,
                resources=resources,
                tracker=track,
                observer=observer,
                progress=listener,
            )
    written = report(run)
    print_summary(written.summary)
    typer.echo(f"Report: {written.page}")


def _new_run(
    source: str | None,
    out: Path | None,
    preset: str,
    agents: str | None,
    seeds: int | None,
    protocols: str | None,
    overrides: list[str] | None,
) -> tuple[Path, ExperimentConfig]:
    """The folder and the settings of a new run, from the options."""
    from mbcal.evaluation.experiment.config import load_experiment_config
    from mbcal.evaluation.experiment.overrides import split_list

    if source is None or out is None:
        raise OptionError("experiment: give newsfeed, a store, gym:ID or a TOML file, and --out RUN; or --resume RUN")
    options: dict[str, Any] = {
        "agents": None if agents is None else split_list(agents),
        "protocols": None if protocols is None else split_list(protocols),
        "seeds": seeds,
    }
    settings = {name: value for name, value in options.items() if value is not None}
    return out, load_experiment_config(source, preset=preset, overrides=overrides or (), **settings)


class _CellProgress:
    """Progress of all cells together and of each: bars on a terminal, lines in a pipe.

    Args:
        on_begin: Is called when the first cell is about to run, to close the progress of the preparation.
    """

    def __init__(self, on_begin: Callable[[], None]) -> None:
        self._on_begin = on_begin
        self._total, self._done, self._began_at = 0, 0, time.monotonic()
        self._line_at = self._began_at
        self._tasks: dict[Cell, TaskID] = {}
        self._overall: TaskID | None = None
        self._bars: Bars | None = None

    def __enter__(self) -> _CellProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def begin(self, cells: Sequence[Cell]) -> None:
        self._on_begin()
        self._total, self._began_at = len(cells), time.monotonic()
        console = Console(stderr=True)
        if console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[counted]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            self._bars.start()
            self._overall = self._bars.add_task("all", total=self._total, counted=f"0 of {self._total}")

    def phase(self, cell: Cell, title: str, total: int | None) -> None:
        if self._bars:
            if cell not in self._tasks:
                self._tasks[cell] = self._bars.add_task("", counted="")
            self._bars.reset(self._tasks[cell], description=f"{cell}: {title}", total=total, counted="")
        elif time.monotonic() - self._line_at > SECONDS_BETWEEN_LINES:
            self._line_at = time.monotonic()
            self._print(f"{self._done} of {self._total} done; {cell}: {title}")

    def advance(self, cell: Cell, amount: int) -> None:
        if self._bars and cell in self._tasks:
            self._bars.advance(self._tasks[cell], amount)

    def done(self, cell: Cell) -> None:
        self._done += 1
        if self._bars and self._overall is not None:
            if cell in self._tasks:
                self._bars.remove_task(self._tasks.pop(cell))
            self._bars.update(self._overall, completed=self._done, counted=f"{self._done} of {self._total}")
        else:
            self._print(f"{self._done} of {self._total} done: {cell}")

    def _print(self, text: str) -> None:
        """Print a line with the time left, estimated from the cells that are done."""
        if self._done:
            seconds = (time.monotonic() - self._began_at) / self._done * (self._total - self._done)
            text += f", {seconds / 60:.1f} min left" if seconds > 1 else ""
        print(text, file=sys.stderr, flush=True)
