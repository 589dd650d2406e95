"""`mbcal diagnose`: does looking ahead pay on this log?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.console import progress
from mbcal.cli.options import DataDir, DeviceOption, Json, Seed
from mbcal.data import Store


def diagnose_store(
    data: DataDir,
    simulator: Annotated[
        Path | None, typer.Option(help="Users from 'mbcal simulator'; fitted here if not given.", show_default=False)
    ] = None,
    epochs: Annotated[int, typer.Option(help="Most passes over the data for each network.")] = 20,
    sessions: Annotated[int, typer.Option(help="Test sessions to serve.", min=2)] = 4_000,
    seed: Seed = 0,
    as_json: Json = False,
    device: DeviceOption = "auto",
) -> None:
    """Before training a policy: how much does the future of a session depend on the item shown now, and does it pay?

    Fits a simulator, a myopic and a far-sighted agent, compares them on the same simulated users, and says it in words.
    """
    from mbcal.environments.simulator import Simulator
    from mbcal.evaluation.diagnose import diagnose
    from mbcal.training.config import TrainingConfig

    store = Store.open(data)
    users = None if simulator is None else Simulator.load(simulator, device)
    with progress() as listener:
        found = diagnose(
            store,
            training=TrainingConfig(epochs=epochs),
            environment=users,
            sessions=sessions,
            seed=seed,
            device=device,
            progress=listener,
        )
    if as_json:
        typer.echo(json.dumps({**asdict(found), "pays": found.pays, "verdict": found.verdict}, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value, meaning in (
        (
            "future moved by the item",
            f"{found.share:.2%}",
            f"of its variance; {found.chance_share:.2%} by chance",
        ),
        ("myopic policy", str(found.myopic), "reward per session, simulated"),
        ("far-sighted policy", str(found.far_sighted), ""),
        ("difference", str(found.gap), "paired: same users, candidates, luck"),
        ("covered choices", f"{found.coverage:.1%}", "of test steps show an item seen at least 5 times in training"),
        ("times an item was shown", f"{found.repeats:g}", "median, in training"),
        (
            "effective sample size",
            "–" if found.effective is None else f"{found.effective:.1%}",
            "of the log for judging a uniform policy" if found.effective is not None else "the log has no propensities",
        ),
    ):
        table.add_row(name, value, meaning)
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(table)
    console.print(f"\n{found.verdict}")
