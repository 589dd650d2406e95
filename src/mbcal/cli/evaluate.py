"""`mbcal evaluate`: what models earn from simulated users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.console import progress
from mbcal.cli.options import DeviceOption, Json, Seed
from mbcal.data import Store
from mbcal.errors import OptionError


def evaluate_models(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Models written by 'mbcal fit'.")],
    data: Annotated[Path, typer.Option(help="The store whose test users are served.", show_default=False)],
    simulator: Annotated[
        list[Path] | None, typer.Option(help="Users to ask, from 'mbcal simulator'; may be repeated.", show_default=False)
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Ask the generated newsfeed itself, whose users are known exactly.")
    ] = False,
    sessions: Annotated[int | None, typer.Option(help="Serve so many test sessions.", show_default="all of them")] = None,
    epsilon: Annotated[float, typer.Option(help="Share of choices made at random; 0 is greedy.")] = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
    device: DeviceOption = "auto",
) -> None:
    """Mean reward per session of each model with its 95% interval, against chance and against the first model.

    All models meet the same users, candidates and luck, so differences are paired. Intervals allow for sessions of one user
    being alike.
    """
    from mbcal.agents import AGENTS, load
    from mbcal.evaluation import evaluate
    from mbcal.metrics import mean_interval
    from mbcal.simulator import Simulator
    from mbcal.training import device_named

    if not simulator and not truth:
        raise OptionError("simulator: missing; give --simulator SIM (from 'mbcal simulator'), or --truth for the newsfeed")
    store = Store.open(data)
    test = store.sessions("test")
    test = test[:sessions] if sessions else test
    judges: dict[str, Any] = {}
    for path in simulator or []:
        judge = Simulator.load(path, device)
        judge.require_strangers(test)
        judges[str(path)] = judge
    if truth:
        judges["the newsfeed's truth"] = _truth(store, str(device_named(device)))
    agents = {str(path): load(path, device) for path in models}
    for name, agent in agents.items():
        agent.domain.require(test, name)
    agents["random"] = AGENTS["random"](device=device).fit(test)
    rows: list[dict[str, Any]] = []
    with progress() as listener:
        for judge_name, judge in judges.items():
            first = None
            for name, agent in agents.items():
                title = f"{name} meets {judge_name}"
                outcome = evaluate(agent, judge, test, epsilon=epsilon, seed=seed, title=title, progress=listener)
                first = outcome if first is None else first
                mean, gap = outcome.mean, mean_interval(outcome.rewards - first.rewards, test.user)
                rows.append(
                    {
                        "judge": judge_name,
                        "model": name,
                        "agent": agent.name,
                        "sessions": mean.count,
                        "mean": mean.mean,
                        "interval": [mean.low, mean.high],
                        "gap": gap.mean,
                        "gap_interval": [gap.low, gap.high],
                    }
                )
    logged = mean_interval(test.rewards.sum(1), test.user)
    if as_json:
        said = {"rows": rows, "logged": {"mean": logged.mean, "interval": [logged.low, logged.high]}, "seed": seed}
        typer.echo(json.dumps(said, indent=2))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    for judge_name in judges:
        table = Table(box=None, pad_edge=False, title=None)
        for column, side in (
            ("model", "left"),
            ("reward per session", "right"),
            ("95% interval", "right"),
            ("to the first", "right"),
        ):
            table.add_column(column, justify=side)  # type: ignore[arg-type]
        for row in (row for row in rows if row["judge"] == judge_name):
            low, high = row["gap_interval"]
            to_first = f"{row['gap']:+.3f} [{low:+.3f}, {high:+.3f}]" if row["model"] != rows[0]["model"] else ""
            table.add_row(row["model"], f"{row['mean']:.3f}", "[{:.3f}, {:.3f}]".format(*row["interval"]), to_first)
        console.print(f"judged by {judge_name}, {len(test):,} test sessions", style="bold")
        console.print(table)
    console.print(f"as logged, real users: {logged}")


def _truth(store: Store, device: str) -> Any:
    from mbcal.worlds.newsfeed import Newsfeed

    if store.manifest["source"] != "newsfeed":
        raise OptionError(f"truth: only the generated newsfeed knows its truth; this store is {store.manifest['source']}")
    return Newsfeed.from_options(dict(store.manifest["options"]), device)
