"""`mbcal fit`: an agent from a store."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

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
    about,
    checkpoint_folder,
    features_of,
    quoted,
    require_ray,
    worker_resources,
)
from mbcal.data import Store
from mbcal.errors import OptionError


def fit_agent(
    data: DataDir,
    out: Out,
    agent: Annotated[str, typer.Option(help="The method: mbcal, gru4rec, dqn, …; see docs/methods.")] = "mbcal",
    epochs: Annotated[int, typer.Option(help="Most passes over the data; held-out users tell when to stop.")] = 20,
    patience: Annotated[int, typer.Option(help="Epochs without a better held-out loss before stopping.")] = 2,
    validation: Annotated[float, typer.Option(help="Share of users held out for that; 0 runs every epoch.")] = 0.1,
    batch: Annotated[int, typer.Option(help="Sessions an update.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 1e-3,
    features: Annotated[
        str | None,
        typer.Option(help="Item features seen beside the id, 'category,type', or 'none'.", show_default="by kind of store"),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="What tells users apart: history, id or none.", show_default="history")
    ] = None,
    hidden: Annotated[int | None, typer.Option(help="Size of the hidden state.", show_default="32")] = None,
    embedding: Annotated[int | None, typer.Option(help="Size of every embedding.", show_default="32")] = None,
    gamma: Annotated[
        float | None, typer.Option(help="Discount of the future.", show_default="0.95; of far-sighted methods")
    ] = None,
    mask_rate: Annotated[
        float | None, typer.Option(help="Share of items hidden from the environment model.", show_default="0.2; of mbcal")
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option(
            help="How much of the masked future is in the label, 0 to 1, or 'auto' (docs/methods/mbcal.md).",
            show_default="0; of mbcal",
        ),
    ] = None,
    warm: Annotated[
        Path | None, typer.Option("--from", help="Go on from this model instead of from nothing.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another result.", show_default="0")] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
    overwrite: Overwrite = False,
) -> None:
    """Fit an agent on a store's 'train' users and write it as a folder.

    A fit that is stopped, even by kill -9, goes on where it was when the same command is given again, to the same result.
    With --engine ray several workers share one fit: each holds its part of the users, and the result is that of one worker,
    up to the rounding of sums.
    """
    from mbcal.agents import agent_class, load
    from mbcal.agents.fit_job import FitJob, run_fit_job
    from mbcal.config import to_dict
    from mbcal.distributed.engines import create_engine
    from mbcal.nn.config import NetConfig
    from mbcal.storage.artifacts import MODEL_KIND, Artifact
    from mbcal.storage.atomic import AtomicFolder
    from mbcal.training.config import TrainingConfig
    from mbcal.training.device import resolve_device

    kind, resources = agent_class(agent), worker_resources(engine, device, gpus)
    require_ray(engine, workers)
    here = device if engine == "local" else "cpu"  # elsewhere the networks are not ours
    resolve_device(here)
    with AtomicFolder(out, "model", overwrite):  # refuses now what it would refuse after an hour
        pass
    store = Store.open(data)
    training = TrainingConfig(epochs, batch, learning_rate, validation=validation, patience=patience)
    own = {"gamma": gamma, "mask_rate": mask_rate, "mix": _mix(mix)}
    shape = {"user": user, "hidden": hidden, "embedding": embedding}
    if warm:
        for name, value in {**own, **shape, "features": features, "seed": seed}.items():
            if value is not None:
                rule = f"{name.replace('_', '-')}: a model keeps its own when it goes on"
                raise OptionError(f"{rule}; leave it out, or leave out --from")
        made = load(warm, here)
        if made.name != agent:
            raise OptionError(f"from: {warm} holds a {made.name} agent; add --agent {made.name} or start from nothing")
        made.config = replace(made.config, training=training)
    else:
        given = {name: value for name, value in own.items() if value is not None}
        for name in given.keys() - {field.name for field in fields(kind.Config)}:
            raise OptionError(f"{name.replace('_', '-')}: the {agent} agent has no such setting; leave it out")
        sizes = {name: value for name, value in shape.items() if value is not None}
        net = NetConfig(features=features_of(store, features), **sizes)  # type: ignore[arg-type]  # NetConfig checks
        made = kind(kind.Config(net=net, training=training, seed=seed or 0, **given), here)
    settings = {"agent": agent, "config": to_dict(made.config), "fits": made.n_fits, **about(store, "train")}
    if warm:
        settings["from"] = Artifact.open(warm, MODEL_KIND).manifest["content_hash"]
    job = FitJob(
        data=data.resolve(),
        out=out.resolve(),
        checkpoints=checkpoint_folder(out),
        agent=agent,
        config=to_dict(made.config),
        warm_start=warm and warm.resolve(),
        device=device,
        settings=settings,
        provenance=about(store, "train"),
    )
    if job.checkpoints.is_dir():
        typer.echo("going on from the last checkpoint", err=True)
    with progress() as listener, create_engine(engine, workers, address) as where:
        curves = run_fit_job(where, job, resources, listener)
    typer.echo(f"{out}: {agent}, fitted on {store.n_sessions('train'):,} sessions")
    for name, curve in curves.items():
        best = min(curve, key=lambda epoch: epoch.get("held_out", epoch["loss"]))
        which = "held-out loss" if "held_out" in best else "loss"
        typer.echo(
            f"  {name}: {which} {best.get('held_out', best['loss']):.4f}, epoch {curve.index(best) + 1} of {len(curve)}"
        )
    simulate = f"mbcal simulator {quoted(data)} --out SIM"
    typer.echo(f"Next: mbcal evaluate {quoted(out)} --data {quoted(data)} --simulator SIM   ({simulate})")


def _mix(text: str | None) -> float | str | None:
    """As the config has it, who also says which numbers are none."""
    try:
        return text if text in (None, "auto") else float(text)
    except ValueError:
        raise OptionError(f"mix: must be in [0, 1], or auto, got {text!r}") from None
