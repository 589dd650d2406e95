"""`mbcal diagnose`: does long-term optimisation pay on this log?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mbcal.cli.console import output, progress
from mbcal.cli.options import DataDir, DeviceOption, Json, Seed

if TYPE_CHECKING:
    from mbcal.evaluation.diagnose import Diagnosis


def diagnose_command(
    data: DataDir,
    simulator: Annotated[
        Path | None, typer.Option(help="A simulator from 'mbcal simulator'; by default one is fitted.", show_default=False)
    ] = None,
    epochs: Annotated[int, typer.Option(help="Most passes over the data for each network.")] = 20,
    sessions: Annotated[int, typer.Option(help="Most test sessions to serve.", min=2)] = 4_000,
    seed: Seed = 0,
    as_json: Json = False,
    device: DeviceOption = "auto",
) -> None:
    """Measure whether long-term optimisation pays on this log, before a policy is trained.

    Fits a simulator, a myopic agent and a far-sighted agent, and compares the agents on the same simulated users.
    Also measures how much the rest of a session depends on the item shown now, and how well the log covers the choices.
    """
    from mbcal.evaluation.diagnose import diagnose
    from mbcal.training.config import TrainingConfig

    with progress() as listener:
        diagnosis = diagnose(
            data,
            training=TrainingConfig(epochs=epochs),
            environment=simulator,
            sessions=sessions,
            seed=seed,
            device=device,
            progress=listener,
        )
    if as_json:
        record = {**asdict(diagnosis), "pays": diagnosis.pays, "verdict": diagnosis.verdict}
        typer.echo(json.dumps(record, indent=2))
    else:
        print_diagnosis(diagnosis)


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the measurements, each with its meaning, the verdict and the warnings."""
    table = Table(box=None, pad_edge=False, show_header=False)
    effective = diagnosis.effective
    for name, value, meaning in (
        (
            "later rewards due to the item",
            f"{diagnosis.share:.2%}",
            f"of their variance is explained by the item shown now; {diagnosis.chance_share:.2%} by an item of chance",
        ),
        ("myopic policy", str(diagnosis.myopic), "reward per session, simulated"),
        ("far-sighted policy", str(diagnosis.far_sighted), ""),
        ("difference", str(diagnosis.gap), "paired: same users, candidates, noise"),
        ("covered choices", f"{diagnosis.coverage:.1%}", "of test steps show an item seen at least 5 times in training"),
        ("items new to the test", f"{diagnosis.unseen:.1%}", "of test steps show an item that never occurs in training"),
        ("reward due to length", f"{diagnosis.length_share:.1%}", "of its variance over logged sessions"),
        ("times an item was shown", f"{diagnosis.repeats:g}", "median, in training"),
        (
            "effective sample size",
            "–" if effective is None else f"{effective:.1%}",
            "the log has no propensities" if effective is None else "of the log for evaluating a uniform policy",
        ),
        (
            "being shown counts for",
            f"{diagnosis.shown_evidence.slope:.0%}",
            "of the best response, as evidence of taste; well above 0 if the log's policy knew more than it holds",
        ),
    ):
        table.add_row(name, value, meaning)
    console = output()
    console.print(table)
    lengths = {entry["behaviour"]: f"{entry['mean_length']:.1f}" for entry in diagnosis.length_by_outcome}
    if len(set(lengths.values())) > 1:  # sessions that are all of one length tell nothing
        outcomes = ", ".join(f"{length} steps if {behaviour}" for behaviour, length in lengths.items())
        console.print(f"Logged sessions by their last behaviour: {outcomes}")
    console.print(f"\n{diagnosis.verdict}", soft_wrap=True)
    for warning in diagnosis.warnings:
        console.print(f"Warning: {warning}", soft_wrap=True)
