"""`mbcal simulator`: fit a simulator and show its report card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from mbcal.cli.console import output, progress
from mbcal.cli.options import (
    BatchOption,
    ContextOption,
    DataDir,
    DeviceOption,
    EmbeddingOption,
    EpochsOption,
    Json,
    Out,
    Overwrite,
    PatienceOption,
    RateOption,
    Seed,
    UserFeaturesOption,
    feature_names,
    given,
    print_records,
    shell_quoted,
)

if TYPE_CHECKING:
    from mbcal.environments.report_card import ReportCard


def simulator_command(
    data: DataDir,
    out: Out,
    family: Annotated[Literal["lstm", "transformer"], typer.Option(help="Kind of network.")] = "lstm",
    epochs: EpochsOption = None,
    patience: PatienceOption = None,
    batch: BatchOption = None,
    learning_rate: RateOption = None,
    features: Annotated[
        str | None, typer.Option(help="Item features seen beside the id, or 'none'.", show_default="all")
    ] = None,
    context: ContextOption = None,
    user_features: UserFeaturesOption = None,
    hidden: Annotated[int | None, typer.Option(help="Size of the hidden state.", show_default="64")] = None,
    embedding: EmbeddingOption = None,
    seed: Seed = 0,
    as_json: Json = False,
    device: DeviceOption = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Fit a user simulator on a store's 'simulator' users and evaluate it on its 'test' users.

    The results are in SIM/report-card.json and SIM/report-card.png. Warns if the simulator can hardly be trusted.
    A fit that was stopped, even by kill -9, resumes when the same command is run again, to the same result.
    """
    from mbcal.evaluation.simulators import fit_simulator

    settings = given(
        epochs=epochs,
        patience=patience,
        batch=batch,
        learning_rate=learning_rate,
        features=None if features is None else feature_names(features),
        context=None if context is None else feature_names(context),
        user_features=None if user_features is None else feature_names(user_features),
        hidden=hidden,
        embedding=embedding,
    )
    with progress() as listener:
        fit = fit_simulator(
            data,
            out,
            device=device,
            overwrite=overwrite,
            progress=listener,
            on_resume=lambda: typer.echo("resuming from the last checkpoint", err=True),
            family=family,
            seed=seed,
            **settings,
        )
    if warning := fit.simulator.trust.warning:
        typer.echo(f"Warning: {out}: {warning}", err=True)
    if as_json:
        typer.echo((out / "report-card.json").read_text("utf-8"))
        return
    print_records({"simulator": fit.simulator.record})
    if fit.simulator.fields:
        typer.echo(f"  fields: {fit.simulator.fields.describe()}")
    _print_card(fit.card)
    typer.echo(f"{out}: {family} simulator, evaluated on {fit.card.sessions:,} sessions of users it never saw")
    typer.echo(f"See {out}/report-card.png. Next: mbcal fit {shell_quoted(data)} --out MODEL, then mbcal evaluate")


def _print_card(card: ReportCard) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    rows = [
        ("NLL", f"{card.nll:.4f}", f"per step; {card.baseline_nll:.4f} for the frequencies of behaviours alone"),
        ("accuracy", f"{card.accuracy:.4f}", "of the most likely behaviour"),
        ("macro-F1", f"{card.macro_f1:.4f}", "mean over behaviours"),
        ("weighted-F1", f"{card.weighted_f1:.4f}", "mean over steps"),
        ("RMSE", f"{card.rmse:.4f}", "of the expected reward, per step"),
        ("ECE", f"{card.ece:.4f}", "calibration error: mean gap between how sure it is and how often it is right"),
        ("drift", f"{card.drift:.2%}", "largest gap at any step between its mean reward and the logged one"),
    ]
    if card.length_drift is not None:
        rows.append(("length", f"{card.length_drift:+.2%}", "steps until users leave, against the real ones"))
    for name, value, meaning in rows:
        table.add_row(name, value, meaning)
    output().print(table)
