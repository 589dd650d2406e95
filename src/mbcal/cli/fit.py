"""`mbcal fit`: fit an agent on a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mbcal.cli.console import progress
from mbcal.cli.options import (
    AddressOption,
    DataDir,
    DeviceOption,
    EngineOption,
    GpusOption,
    Out,
    Overwrite,
    WorkersOption,
    feature_names,
    require_ray,
    shell_quoted,
    worker_resources,
)
from mbcal.data import Store
from mbcal.errors import OptionError

if TYPE_CHECKING:
    from mbcal.agents.fit_job import FittedModel


def fit_agent(
    data: DataDir,
    out: Out,
    agent: Annotated[str, typer.Option(help="The method: mbcal, gru4rec, dqn, …; see docs/methods.")] = "mbcal",
    epochs: Annotated[int, typer.Option(help="Most passes over the data; held-out users decide when to stop.")] = 20,
    patience: Annotated[int, typer.Option(help="Epochs without a better held-out loss before stopping.")] = 2,
    validation: Annotated[float, typer.Option(help="Share of users held out for that; 0 runs every epoch.")] = 0.1,
    batch: Annotated[int, typer.Option(help="Sessions per update.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    features: Annotated[
        str | None,
        typer.Option(help="Item features seen beside the id: 'category,type', or 'none'.", show_default="by kind of store"),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="How users are encoded: history, id or none.", show_default="history")
    ] = None,
    hidden: Annotated[int | None, typer.Option(help="Size of the hidden state.", show_default="32")] = None,
    embedding: Annotated[int | None, typer.Option(help="Size of every embedding.", show_default="32")] = None,
    gamma: Annotated[
        float | None, typer.Option(help="Discount of future rewards.", show_default="0.95; methods that look ahead")
    ] = None,
    mask_rate: Annotated[
        float | None, typer.Option(help="Share of items masked in the environment model.", show_default="0.2; mbcal")
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(
            help="Share of the masked future in the label, 0 to 1, or 'auto' (docs/methods/mbcal.md).",
            show_default="0; mbcal",
        ),
    ] = None,
    propensity_weights: Annotated[
        str, typer.Option(help="Correct the fit by logged propensities: auto, on or off (docs/coverage.md).")
    ] = "auto",
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

    training: dict[str, Any] = {"epochs": epochs, "patience": patience, "validation": validation, "batch": batch}
    training["propensity_weights"] = propensity_weights
    optional = {
        "features": None if features is None else feature_names(features),
        "user": user,
        "hidden": hidden,
        "embedding": embedding,
        "gamma": gamma,
        "mask_rate": mask_rate,
        "mix": _parse_mix(mix),
        "seed": seed,
    }
    settings: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
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
            learning_rate=learning_rate,
            **training,
            **settings,
        )
    _show(model, data)


def _show(model: FittedModel, data: Path) -> None:
    typer.echo(f"{model.path}: {model.agent}, fitted on {model.n_sessions:,} sessions")
    for name, curve in model.curves.items():
        best = min(curve, key=lambda epoch: epoch.get("held_out", epoch["loss"]))
        kind = "held-out loss" if "held_out" in best else "loss"
        value = best.get("held_out", best["loss"])
        typer.echo(f"  {name}: {kind} {value:.4f}, epoch {curve.index(best) + 1} of {len(curve)}")
    for warning in model.warnings:
        typer.echo(f"Warning: {warning}", err=True)
    evaluate = f"mbcal evaluate {shell_quoted(model.path)} --data {shell_quoted(data)} --simulator SIM"
    typer.echo(f"Next: {evaluate}   (mbcal simulator {shell_quoted(data)} --out SIM)")


def _parse_mix(text: str | None) -> float | str | None:
    try:
        return text if text in (None, "auto") else float(text)
    except ValueError:
        raise OptionError(f"mix: must be in [0, 1], or auto, got {text!r}") from None
