"""`mbcal evaluate`: the reward per session of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mbcal.cli.console import output, progress
from mbcal.cli.options import (
    AddressOption,
    DeviceOption,
    EngineOption,
    GpusOption,
    Json,
    Seed,
    WorkersOption,
    worker_resources,
)
from mbcal.distributed.engines import create_engine
from mbcal.errors import OptionError

if TYPE_CHECKING:
    from mbcal.evaluation.comparison import ModelComparison


def evaluate_command(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Models written by 'mbcal fit'.")],
    data: Annotated[Path | None, typer.Option(help="The store whose test users are served.", show_default=False)] = None,
    simulator: Annotated[
        list[Path] | None,
        typer.Option(help="A simulator that judges, from 'mbcal simulator'; may be repeated.", show_default=False),
    ] = None,
    truth: Annotated[bool, typer.Option("--truth", help="Let the generated newsfeed itself judge.")] = False,
    env: Annotated[
        str | None,
        typer.Option(help="A Gymnasium environment to play instead, 'gym:ID' (docs/worlds.md).", show_default=False),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes of --env, the same for every model.", min=2)] = 200,
    repeats: Annotated[bool, typer.Option("--repeats", help="In --env, let an item be shown again.")] = False,
    sessions: Annotated[
        int | None,
        typer.Option(
            help="Most test sessions to serve: one of each user before a second of any.", min=1, show_default="all"
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Probability of a random choice; 0 is greedy.")] = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
) -> None:
    """Print the mean reward per session of each model, with its 95% interval.

    A uniformly random policy ("chance") is evaluated beside the models; "the log" is what the logging policy earned from
    the same users. A simulator says for what differences it can be trusted, and marks its numbers if that is not far.
    All models meet the same users, candidates and noise, so differences are paired. Intervals are clustered by user.
    With --env, all models play the same episodes of a Gymnasium environment and rank all its items.
    """
    from mbcal.evaluation.judges import TRUTH
    from mbcal.evaluation.models import evaluate_models
    from mbcal.evaluation.worlds import evaluate_in_world

    resources = worker_resources(engine, device, gpus)
    if env is not None:
        if data or simulator or truth or sessions or engine != "local":
            raise OptionError("env: episodes are played in the environment; leave out --data, its judges and --engine")
        with progress() as listener:
            comparison = evaluate_in_world(
                models, env, episodes=episodes, epsilon=epsilon, repeats=repeats, seed=seed, device=device, progress=listener
            )
        _print(comparison, as_json)
        return
    if data is None:
        raise OptionError("data: missing; give --data STORE whose test users are served, or --env gym:ID")
    if not simulator and not truth:
        raise OptionError("simulator: missing; give --simulator SIM (from 'mbcal simulator'), or --truth for the newsfeed")
    with create_engine(engine, workers, address) as running_engine, progress() as listener:
        comparison = evaluate_models(
            models,
            [*(simulator or []), *([TRUTH] if truth else [])],
            data,
            sessions=sessions,
            epsilon=epsilon,
            seed=seed,
            device=device,
            engine=None if engine == "local" else running_engine,
            resources=resources,
            progress=listener,
        )
    _print(comparison, as_json)


def _print(comparison: ModelComparison, as_json: bool) -> None:
    from mbcal.evaluation.comparison import LOG_ROW

    if as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=2, allow_nan=False))
        return
    console = output()
    for judge in comparison.judges:
        table = Table(box=None, pad_edge=False)
        for number, column in enumerate(comparison.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in comparison.table(judge):
            table.add_row(*row)
        title, *trust = comparison.heading(judge).splitlines()
        console.print(title, style="bold")
        for line in trust:
            console.print(line, soft_wrap=True)
        console.print(table)
    if comparison.logged is not None:
        console.print(f"{LOG_ROW}: what the logging policy earned in the same test sessions, from the users of the log.")
    for warning in comparison.warnings:
        console.print(f"Warning: {warning}", soft_wrap=True)
