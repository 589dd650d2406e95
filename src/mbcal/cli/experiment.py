"""`mbcal experiment`: methods, seeds and protocols in one run that can be stopped and resumed."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from mbcal.cli.console import SECONDS_BETWEEN_LINES, progress
from mbcal.cli.options import AddressOption, DeviceOption, EngineOption, GpusOption, worker_resources
from mbcal.distributed.engines import create_engine
from mbcal.errors import InputError, OptionError

if TYPE_CHECKING:
    from mbcal.evaluation.experiment.run import Cell, Run


def run_experiment(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[newsfeed|DIR|CONFIG.toml]", help="The generated newsfeed, a store, or a file of settings."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default=False)] = None,
    preset: Annotated[str, typer.Option(help="Sizes: quick (minutes), laptop (an hour), paper (a GPU).")] = "quick",
    agents: Annotated[
        str | None,
        typer.Option(help="'all', names, or path.py:Class, by commas; with options, 'mbcal+gamma=0.9'.", show_default="all"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How often each method is trained.", show_default="3")] = None,
    protocols: Annotated[str | None, typer.Option(help="batch, growing or both.", show_default="batch,growing")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, 'rounds=3' or 'simulator.hidden=64'.", show_default=False)
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run instead.", show_default=False)] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Cells at a time: processes on a CPU, threads with a stream each on a GPU, tasks on Ray.",
            min=1,
            show_default="cores, 1 on a GPU",
        ),
    ] = None,
    track: Annotated[str | None, typer.Option(help="Also send results to mlflow or wandb.", show_default=False)] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
) -> None:
    """Compare methods: Batch-RL and Growing Batch-RL, several seeds, on common random numbers.

    Kill it at any moment and resume it (--resume RUN): what is done is not done again, and the tables are the same.
    What every setting means: docs/experiments.md.
    """
    from mbcal.evaluation.experiment.run import Run
    from mbcal.evaluation.experiment.tracking import track as send
    from mbcal.evaluation.experiment.tracking import write_tensorboard
    from mbcal.evaluation.experiment.workers import execute_all, execute_on, prepare_on

    resources = worker_resources(engine, device, gpus)
    if engine == "ray":
        device = "cpu"  # here things are only read; workers compute on what they are given
    if resume is not None:
        if what or out or change:
            raise OptionError("resume: a run knows its settings; give --resume alone")
        run = Run.open(resume, device)
    else:
        if what is None or out is None:
            raise OptionError("give what to run on (newsfeed, a store, a TOML file) and --out RUN, or --resume RUN")
        run = Run.create(out, _settings(what, preset, agents, seeds, protocols, change or []), device)
    with create_engine(engine, workers, address) as remote:
        with progress() as listener:
            run.prepare(listener) if engine == "local" else prepare_on(remote, run, resources, listener)
        missing = run.missing
        with _Watch(run, len(missing)) as watch:
            if engine == "local":
                execute_all(run, missing, min(workers or _cores(run.device), max(len(missing), 1)), watch)
            else:
                execute_on(remote, run, missing, watch, resources)
    run.write_metrics()
    write_tensorboard(run)
    if track:
        send(run, track)
    _show(run)


def _cores(device: str) -> int:
    return len(os.sched_getaffinity(0)) if device == "cpu" and hasattr(os, "sched_getaffinity") else 1


def _settings(
    what: str, preset: str, agents: str | None, seeds: int | None, protocols: str | None, change: list[str]
) -> Any:
    from mbcal.evaluation.experiment.config import apply_overrides, experiment_config, split_list

    values: dict[str, Any] = {"data": what}
    if what.endswith(".toml"):
        try:
            values = tomllib.loads(Path(what).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{what}: cannot be read ({error.strerror})") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{what}: not TOML ({error})") from error
        preset = values.pop("preset", preset)
    for name, text in (("agents", agents), ("protocols", protocols)):
        if text is not None:
            values[name] = split_list(text)
    if seeds is not None:
        values["seeds"] = seeds
    return experiment_config(apply_overrides(values, change), preset)


class _Watch:
    """Overall and per cell, bars on a terminal and lines in a pipe."""

    def __init__(self, run: Run, cells: int) -> None:
        self._run, self._cells, self._done, self._begun = run, cells, 0, time.monotonic()
        console = Console(stderr=True)
        self._bars = (
            Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[counted]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._tasks: dict[Cell, TaskID] = {}
        self._said = time.monotonic()

    def __enter__(self) -> _Watch:
        if self._bars:
            self._bars.start()
            self._all = self._bars.add_task("all", total=self._cells, counted=f"0 of {self._cells}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def phase(self, cell: Cell, title: str, total: int | None) -> None:
        if self._bars:
            if cell not in self._tasks:
                self._tasks[cell] = self._bars.add_task("", counted="")
            self._bars.reset(self._tasks[cell], description=f"{cell}: {title}", total=total, counted="")
        elif time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            print(f"{self._done} of {self._cells} done; {cell}: {title}{self._left()}", file=sys.stderr, flush=True)

    def advance(self, cell: Cell, amount: int) -> None:
        if self._bars and cell in self._tasks:
            self._bars.advance(self._tasks[cell], amount)

    def done(self, cell: Cell) -> None:
        self._done += 1
        if self._bars:
            if cell in self._tasks:
                self._bars.remove_task(self._tasks.pop(cell))
            self._bars.update(self._all, completed=self._done, counted=f"{self._done} of {self._cells}")
        else:
            print(f"{self._done} of {self._cells} done: {cell}{self._left()}", file=sys.stderr, flush=True)
        self._run.write_metrics()

    def _left(self) -> str:
        """Time left, told from the cells that are done."""
        if not self._done:
            return ""
        seconds = (time.monotonic() - self._begun) / self._done * (self._cells - self._done)
        return f", {seconds / 60:.1f} min left" if seconds > 1 else ""


def _show(run: Run) -> None:
    from mbcal.report.page_writer import write_report
    from mbcal.report.terminal import show

    show(run)
    typer.echo(f"Report: {write_report(run)}")
