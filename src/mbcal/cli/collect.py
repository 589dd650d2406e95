"""`mbcal collect`: play a Gymnasium environment and write the log as a store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mbcal.cli.console import progress
from mbcal.cli.options import DeviceOption, Out, Overwrite, Seed
from mbcal.cli.store_summary import summarise
from mbcal.data.readers.table import parse_numbers


def collect_command(
    world: Annotated[
        str, typer.Argument(metavar="gym:ID", help="A Gymnasium environment; gym:MODULE:ID imports a module first.")
    ],
    out: Out,
    policy: Annotated[str, typer.Option(help="Who chooses: 'random', or a model written by 'mbcal fit'.")] = "random",
    sessions: Annotated[int, typer.Option(help="Number of episodes; each is a session.", min=1)] = 20_000,
    epsilon: Annotated[float, typer.Option(help="Probability of a random item at each step of a model.")] = 0.1,
    repeats: Annotated[bool, typer.Option("--repeats", help="Let an item be shown again in an episode.")] = False,
    horizon: Annotated[
        int | None, typer.Option(help="Most steps of an episode.", min=2, show_default="the environment's limit")
    ] = None,
    split: Annotated[str, typer.Option(help="Shares of episodes in the parts simulator, train and test.")] = "0.4,0.4,0.2",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    device: DeviceOption = "auto",
) -> None:
    """Play episodes in a Gymnasium environment whose action is an item, and write them as a store.

    The policy ranks all items at every step. Every episode is a user of its own, and propensities are recorded.
    """
    from mbcal.evaluation.worlds import collect  # imports torch, which takes a second

    shares: Any = parse_numbers("split", split)  # SessionConfig checks that there are three
    with progress() as listener:
        store = collect(
            world,
            out,
            policy=policy,
            sessions=sessions,
            epsilon=epsilon,
            repeats=repeats,
            horizon=horizon,
            split=shares,
            seed=seed,
            overwrite=overwrite,
            device=device,
            progress=listener,
        )
    summarise(store)
