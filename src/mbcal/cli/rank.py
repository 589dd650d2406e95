"""`mbcal rank`: candidates in order, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.options import DeviceOption, Json
from mbcal.errors import InputError, nearest
from mbcal.types import UNKNOWN_ROW


def rank_candidates(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model written by 'mbcal fit'.")],
    candidates: Annotated[
        str, typer.Option(help="Items to rank, 'ITEM,ITEM,…', or a JSON list where names hold commas.", show_default=False)
    ],
    history: Annotated[
        str, typer.Option(help="What the user did before the session, oldest first: 'ITEM:BEHAVIOUR,…', or JSON pairs.")
    ] = "",
    session: Annotated[str, typer.Option(help="What was shown in this session so far, in the same form.")] = "",
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Rank items the model never saw as new items, instead of refusing them.")
    ] = False,
    as_json: Json = False,
    device: DeviceOption = "cpu",
) -> None:
    """Rank candidates for one user: instant reward, future advantage and their sum, best first."""
    from mbcal.agents import load

    agent = load(model, device)
    names, past, shown = _names(candidates), _steps("history", history), _steps("session", session)
    if not allow_unknown:
        catalog = agent.domain.catalog
        for name in (*names, *(item for item, _ in (*past, *shown))):
            if catalog.rows_of([name])[0] == UNKNOWN_ROW:
                hint = nearest(name, catalog.items)
                raise InputError(f"item {name!r} is unknown to the model; add --allow-unknown to rank new items.{hint}")
    ranked = agent.rank(past, names, shown)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in ranked], indent=2, ensure_ascii=False, allow_nan=False))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("item", justify="left")
    parts = [*ranked[0].parts, "total"]
    for part in parts:
        table.add_column({"instant": "instant reward", "future": "future advantage"}.get(part, part), justify="right")
    for entry in ranked:
        shares = [f"{value:.4f}" for value in (*entry.parts.values(), entry.score)]
        table.add_row(entry.title + ("" if entry.known else " (new)"), *shares)
    Console(highlight=False, markup=False, emoji=False).print(table)


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option}: starts like JSON but is none ({error})") from None


def _names(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        listed = _json("candidates", text)
        if not all(isinstance(name, str) for name in listed):
            raise InputError('candidates: must be a JSON list of names, ["a", "b"]')
        return list(listed)
    return [name.strip() for name in text.split(",") if name.strip()]


def _steps(option: str, text: str) -> list[tuple[str, str]]:
    if text.lstrip().startswith("["):
        pairs = _json(option, text)
        if not all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in pairs):
            raise InputError(f'{option}: must be a JSON list of pairs, [["item", "behaviour"], …]')
        return [(item, behaviour) for item, behaviour in pairs]
    steps = []
    for step in filter(None, (part.strip() for part in text.split(","))):
        item, colon, behaviour = step.rpartition(":")
        if not (item and colon and behaviour):
            raise InputError(f"{option}: {step!r} is not ITEM:BEHAVIOUR")
        steps.append((item, behaviour))
    return steps
