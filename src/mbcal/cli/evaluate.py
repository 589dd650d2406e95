"""`mbcal evaluate`: what models earn from simulated users."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.console import progress
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
from mbcal.data import Store
from mbcal.distributed.engines import create_engine
from mbcal.errors import ModelError, OptionError
from mbcal.metrics import Mean

NEWSFEED = "the newsfeed's truth"


def evaluate_models(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Models written by 'mbcal fit'.")],
    data: Annotated[Path, typer.Option(help="The store whose test users are served.", show_default=False)],
    simulator: Annotated[
        list[Path] | None, typer.Option(help="Users to ask, from 'mbcal simulator'; may be repeated.", show_default=False)
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Ask the generated newsfeed itself, whose users are known exactly.")
    ] = False,
    sessions: Annotated[int | None, typer.Option(help="How many test sessions to serve.", min=1, show_default="all")] = None,
    epsilon: Annotated[float, typer.Option(help="Share of choices made at random; 0 is greedy.")] = 0.0,
    seed: Seed = 0,
    as_json: Json = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    gpus: GpusOption = 0.0,
) -> None:
    """Mean reward per session of each model with its 95% interval, against chance and against the first model.

    All models meet the same users, candidates and luck, so differences are paired. Intervals allow for sessions of one user
    being alike.
    """
    from mbcal.agents import AGENTS, load
    from mbcal.environments.candidates import session_candidates
    from mbcal.environments.simulator import Simulator
    from mbcal.evaluation.blocks import CHANCE, TRUTH, SessionRange, evaluate_in_blocks
    from mbcal.evaluation.evaluator import evaluate
    from mbcal.metrics import mean_interval
    from mbcal.training.device import resolve_device

    if not simulator and not truth:
        raise OptionError("simulator: missing; give --simulator SIM (from 'mbcal simulator'), or --truth for the newsfeed")
    resources = worker_resources(engine, device, gpus)
    device = "cpu" if engine == "ray" else device
    store = Store.open(data)
    test = store.sessions("test")
    test = replace(test, candidates=session_candidates(test, seed))[
        :sessions
    ]  # the same for a session however many are served
    judges: dict[str, Any] = {}
    for path in simulator or []:
        judge = Simulator.load(path, device)
        judge.require_unseen_users(test)
        judges[str(path)] = judge
    if truth:
        judges[NEWSFEED] = _truth(store, str(resolve_device(device)))
    agents = [(str(path), load(path, device)) for path in models]
    for name, agent in agents:
        agent.domain.require_compatible(test, name)
        if agent.provenance.get("data", test.origin) != test.origin:
            rule = f"{name}: was fitted on another store, so nobody knows which of these users it has seen"
            raise ModelError(f"{rule}; fit one on {data}")
    agents.append((CHANCE, AGENTS["random"](device=device).fit(test)))
    rows: list[dict[str, Any]] = []
    users = SessionRange(data, "test", len(test), seed)
    with create_engine(engine, workers, address) as remote, progress() as listener:
        for judge_name, judge in judges.items():
            first = None
            for place, (name, agent) in enumerate(agents):
                title = f"{name} meets {judge_name}"
                if engine == "local":
                    rewards = evaluate(
                        agent, judge, test, epsilon=epsilon, seed=seed, title=title, progress=listener
                    ).rewards
                else:
                    who = models[place] if place < len(models) else CHANCE
                    whom = TRUTH if judge_name == NEWSFEED else Path(judge_name)
                    rewards = evaluate_in_blocks(
                        remote, users, who, whom, epsilon=epsilon, resources=resources, title=title, progress=listener
                    )
                first = rewards if first is None else first
                mean, gap = mean_interval(rewards, test.user), mean_interval(rewards - first, test.user)
                rows.append(
                    {
                        "judge": judge_name,
                        "model": name,
                        "agent": agent.name,
                        "sessions": mean.count,
                        "mean": mean.mean,
                        "interval": _finite(mean),
                        "gap": gap.mean,
                        "gap_interval": _finite(gap),
                    }
                )
    logged = mean_interval(test.rewards.sum(1), test.user)
    if as_json:
        said = {"rows": rows, "logged": {"mean": logged.mean, "interval": _finite(logged)}, "seed": seed}
        typer.echo(json.dumps(said, indent=2, allow_nan=False))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    for judge_name in judges:
        table = Table(box=None, pad_edge=False, title=None)
        table.add_column("model")
        for column in ("reward per session", "95% interval", "to the first"):
            table.add_column(column, justify="right")
        for place, row in enumerate(row for row in rows if row["judge"] == judge_name):
            to_first = f"{row['gap']:+.3f} {_shown(row['gap_interval'], '+.3f')}" if place else ""
            table.add_row(row["model"], f"{row['mean']:.3f}", _shown(row["interval"], ".3f"), to_first)
        console.print(f"judged by {judge_name}, {len(test):,} test sessions", style="bold")
        console.print(table)
    console.print(f"as logged, real users: {logged}")


def _finite(mean: Mean) -> list[float | None]:
    """The interval's ends; None where one user alone says nothing about others."""
    return [end if math.isfinite(end) else None for end in (mean.low, mean.high)]


def _shown(interval: list[float | None], form: str) -> str:
    return "" if None in interval else f"[{', '.join(format(end, form) for end in interval)}]"


def _truth(store: Store, device: str) -> Any:
    from mbcal.environments.newsfeed.world import Newsfeed

    if store.manifest["source"] != "newsfeed":
        raise OptionError(f"truth: only the generated newsfeed knows its truth; this store is {store.manifest['source']}")
    return Newsfeed.from_options(dict(store.manifest["options"]), device)
