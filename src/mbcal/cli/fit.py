"""`mbcal fit`: fit an agent on a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mbcal.cli.console import progress
from mbcal.cli.options import (
    AddressOption,
    BatchOption,
    ContextOption,
    DataDir,
    DeviceOption,
    EmbeddingOption,
    EngineOption,
    EpochsOption,
    GpusOption,
    HiddenOption,
    Out,
    Overwrite,
    PatienceOption,
    RateOption,
    UserFeaturesOption,
    WorkersOption,
    feature_names,
    given,
    print_records,
    require_ray,
    shell_quoted,
    worker_resources,
)
from mbcal.data import Store

if TYPE_CHECKING:
    from mbcal.agents.fit_job import FittedModel


def fit_agent(
    data: DataDir,
    out: Out,
    agent: Annotated[str, typer.Option(help="The method: mbcal, gru4rec, dqn, …; see docs/methods.")] = "mbcal",
    epochs: EpochsOption = None,
    patience: PatienceOption = None,
    validation: Annotated[
        float | None, typer.Option(help="Share of users held out; 0 runs every epoch.", show_default="0.1")
    ] = None,
    batch: BatchOption = None,
    learning_rate: RateOption = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Item features seen beside the id: 'category,type', or 'none'.",
            show_default="those named at prepare; a few for newsfeed and kuairand, none for ratings",
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="How users are encoded: history, id or none.", show_default="history")
    ] = None,
    context: ContextOption = None,
    user_features: UserFeaturesOption = None,
    hidden: HiddenOption = None,
    embedding: EmbeddingOption = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Discount of future rewards, 0 to 1.", show_default="1 for mbcal and its variants, else 0.95"),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting of the method, such as 'mask_rate=0.2' (mbcal) or 'advantage=planned' (mbcal-plan); see "
            "docs/methods.",
            show_default=False,
        ),
    ] = None,
    propensity_weights: Annotated[
        bool, typer.Option("--propensity-weights", help="Weight steps by their logged propensities (docs/coverage.md).")
    ] = False,
    warm_start: Annotated[
        Path | None, typer.Option("--from", help="Continue from this model instead of from nothing.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and noise.", show_default="0")] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
    overwrite: Overwrite = False,
) -> None:
    """Fit an agent on a store's 'train' users and write it as a folder.

    A fit that was stopped, even by kill -9, resumes when the same command is run again, to the same result.
    With --engine ray several workers share one fit: each holds a part of the users, and the result is that of one worker,
    up to the rounding of sums.
    """
    from mbcal.agents.fit_job import fit
    from mbcal.distributed.engines import create_engine

    settings = given(
        epochs=epochs,
        patience=patience,
        validation=validation,
        batch=batch,
        learning_rate=learning_rate,
        features=None if features is None else feature_names(features),
        context=None if context is None else feature_names(context),
        user_features=None if user_features is None else feature_names(user_features),
        user=user,
        hidden=hidden,
        embedding=embedding,
        gamma=gamma,
        propensity_weights=propensity_weights or None,
        seed=seed,
    )
    settings |= _settings_of(agent, change or [])
    resources = worker_resources(engine, device, gpus)
    require_ray(engine, workers)
    store = Store.open(data)
    with progress() as listener, create_engine(engine, workers, address) as running_engine:
        model = fit(
            store,
            out,
            agent,
            warm_start=warm_start,
            device=device,
            engine=None if engine == "local" else running_engine,
            resources=resources,
            overwrite=overwrite,
            progress=listener,
            on_resume=lambda: typer.echo("resuming from the last checkpoint", err=True),
            **settings,
        )
    _show(model, data)


def _show(model: FittedModel, data: Path) -> None:
    typer.echo(f"{model.path}: {model.agent}, fitted on {model.n_sessions:,} sessions")
    print_records(model.records)
    typer.echo(f"  item features: {', '.join(f'{name} ({kind})' for name, kind in model.features.items()) or 'none'}")
    if model.fields:
        typer.echo(f"  fields: {model.fields.describe()}")
    if "advantage" in model.choices:
        typer.echo(f"  {describe_advantage(model.choices['advantage'])}")
    for warning in model.warnings:
        typer.echo(f"Warning: {warning}", err=True)
    evaluate = f"mbcal evaluate {shell_quoted(model.path)} --data {shell_quoted(data)} --simulator SIM"
    typer.echo(f"Next: {evaluate}   (mbcal simulator {shell_quoted(data)} --out SIM)")


def describe_advantage(choice: Mapping[str, Any]) -> str:
    """The chosen advantage and the gains it was chosen by; `choice` is an `AdvantageChoice.record`."""
    if not choice["trials"]:
        return f"advantage: {choice['kind']}, since there are too few users to choose it from data"
    first, *others = choice["trials"]
    reward = f"{first['kind']} earns {first['reward']:.2f} in {choice['sessions']:,} imagined sessions"
    gains = [f"{trial['kind']} {trial['gain']:+.2g} [{trial['low']:+.2g}, {trial['high']:+.2g}]" for trial in others]
    rule = "one is taken if the interval of its gain over the best before it lies above 0"
    return f"advantage: {choice['kind']}, chosen from data ({'; '.join([reward, *gains, rule])})"


def _settings_of(agent: str, changes: Sequence[str]) -> dict[str, Any]:
    """Settings of a method from texts like 'mask_rate=0.2'; raises OptionError if the method has no such setting."""
    if not changes:
        return {}
    from mbcal.agents.lookup import agent_class
    from mbcal.evaluation.experiment.overrides import parse_override

    parsed = (parse_override(text, agent_class(agent).Config) for text in changes)
    return {path[-1]: value for path, value in parsed}  # NAME may be dotted, as in 'training.epochs'
