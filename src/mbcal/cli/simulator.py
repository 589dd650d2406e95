"""`mbcal simulator`: learned users, and how far they can be trusted."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.console import progress
from mbcal.cli.options import (
    DataDir,
    DeviceOption,
    Json,
    Out,
    Overwrite,
    Seed,
    about,
    checkpoint_folder,
    features_of,
    quoted,
)
from mbcal.data import Store


def fit_simulator(
    data: DataDir,
    out: Out,
    family: Annotated[Literal["lstm", "transformer"], typer.Option(help="ArtifactKind of network.")] = "lstm",
    epochs: Annotated[int, typer.Option(help="Most passes over the data; held-out users tell when to stop.")] = 20,
    patience: Annotated[int, typer.Option(help="Epochs without a better held-out loss before stopping.")] = 2,
    batch: Annotated[int, typer.Option(help="Sessions an update.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 1e-3,
    features: Annotated[
        str | None, typer.Option(help="Item features seen beside the id, or 'none'.", show_default="all")
    ] = None,
    hidden: Annotated[int, typer.Option(help="Size of the hidden state.")] = 32,
    embedding: Annotated[int, typer.Option(help="Size of every embedding.")] = 32,
    seed: Seed = 0,
    as_json: Json = False,
    device: DeviceOption = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Fit a user simulator on a store's 'simulator' users and judge it on its 'test' users, whom it never saw.

    SIM/report-card.json and SIM/report-card.png hold the verdict. Stopped, it goes on where it was when run again.
    """
    from mbcal.config import to_dict
    from mbcal.environments.simulator import Simulator, SimulatorConfig
    from mbcal.report.report_card import draw_report_card
    from mbcal.storage.atomic import AtomicFolder
    from mbcal.storage.checkpoints import Checkpoints
    from mbcal.training.config import TrainingConfig
    from mbcal.training.device import resolve_device

    resolve_device(device)
    with AtomicFolder(out, "simulator", overwrite):  # refuses now what it would refuse after an hour
        pass
    store = Store.open(data)
    test = store.sessions("test")
    wanted = None if features is None else features_of(store, features)
    training = TrainingConfig(epochs, batch, learning_rate, patience=patience)
    config = SimulatorConfig(family, hidden, embedding, wanted, training, seed)
    kept = Checkpoints(checkpoint_folder(out), {"config": to_dict(config), **about(store, "simulator")})
    if kept.latest:
        typer.echo("going on from the last checkpoint", err=True)
    with progress() as listener:
        made = Simulator(config, device).fit(store, progress=listener, checkpoints=kept)
        made.provenance = about(store, "simulator")
        card = made.evaluate(test, progress=listener)
    said = {**asdict(card), "drift": card.drift}
    extra = {
        "report-card.json": json.dumps(said, indent=2, allow_nan=False).encode(),
        "report-card.png": draw_report_card(card, made.behaviours, f"{family} on {store.manifest['source']}"),
    }
    made.save(out, card=card, extra_files=extra, overwrite=overwrite)
    kept.remove()
    if as_json:
        typer.echo(extra["report-card.json"].decode())
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value, meaning in (
        ("NLL", f"{card.nll:.4f}", f"per step; {card.baseline_nll:.4f} for the shares of behaviours alone"),
        ("accuracy", f"{card.accuracy:.4f}", "of the most likely behaviour"),
        ("macro-F1", f"{card.macro_f1:.4f}", "mean over behaviours"),
        ("weighted-F1", f"{card.weighted_f1:.4f}", "mean over steps"),
        ("RMSE", f"{card.rmse:.4f}", "of the expected reward, per step"),
        ("ECE", f"{card.ece:.4f}", "gap between confidence and accuracy"),
        ("drift", f"{card.drift:.2%}", "largest gap to real mean reward at any step, fed on its own behaviours"),
    ):
        table.add_row(name, value, meaning)
    Console(highlight=False).print(table)
    typer.echo(f"{out}: {family} simulator, judged on {card.sessions:,} sessions of users it never saw")
    typer.echo(f"See {out}/report-card.png. Next: mbcal fit {quoted(data)} --out MODEL, then mbcal evaluate")
