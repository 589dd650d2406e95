"""`mbcal rank`: rank candidates for one user with a model on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.options import DeviceOption, Json
from mbcal.errors import InputError, nearest
from mbcal.types import UNKNOWN_ROW, Catalog, to_names, to_steps

if TYPE_CHECKING:
    from mbcal.agents.ranking import RankedItem


def rank_candidates(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model written by 'mbcal fit'.")],
    history: Annotated[
        str,
        typer.Option(
            help="What the user did before the session, oldest first: 'ITEM:BEHAVIOUR,…', or JSON [[ITEM, BEHAVIOUR], …].",
            show_default="none",
        ),
    ] = "",
    candidates: Annotated[str, typer.Option(help="Items to rank: 'ITEM,ITEM,…', or a JSON list.", show_default=False)],
    shown: Annotated[
        str, typer.Option(help="What was shown in the session so far, in the form of --history.", show_default="none")
    ] = "",
    context: Annotated[
        str | None,
        typer.Option(help='Fields of the moment as JSON: \'{"device": "phone"}\'.', show_default="all missing"),
    ] = None,
    user_features: Annotated[
        str | None, typer.Option(help="Fields of the user, in the form of --context.", show_default="all missing")
    ] = None,
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Rank items the model does not know as new items, instead of failing.")
    ] = False,
    as_json: Json = False,
    device: DeviceOption = "cpu",
) -> None:
    """Rank candidates for one user, best first, with the parts of every score."""
    from mbcal.agents import load

    agent = load(model, device)
    history_steps, names, shown_steps = (
        _parse_steps("history", history),
        _parse_names(candidates),
        _parse_steps("shown", shown),
    )
    if not allow_unknown:
        _require_known([*names, *(item for item, _ in (*history_steps, *shown_steps))], agent.domain.catalog)
    ranked = agent.rank(
        history_steps,
        names,
        shown_steps,
        context=_parse_fields("context", context),
        user_features=_parse_fields("user-features", user_features),
    )
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in ranked], indent=2, ensure_ascii=False, allow_nan=False))
    else:
        Console(highlight=False, markup=False, emoji=False).print(ranking_table(ranked))


def ranking_table(ranked: Sequence[RankedItem]) -> Table:
    """Return a row for each candidate: its name, its title if any has one, the parts of its score, and their sum."""
    table = Table(box=None, pad_edge=False)
    table.add_column("item", justify="left", no_wrap=True)
    has_titles = any(entry.title != entry.item for entry in ranked)
    if has_titles:
        table.add_column("title", justify="left")
    for part in (*ranked[0].parts, "total"):
        table.add_column({"instant": "instant reward", "future": "future advantage"}.get(part, part), justify="right")
    for entry in ranked:
        values = [f"{value:.4f}" for value in (*entry.parts.values(), entry.score)]
        names = [entry.item + ("" if entry.known else " (new)"), *([entry.title] if has_titles else [])]
        table.add_row(*names, *values)
    return table


def _require_known(items: Sequence[str], catalog: Catalog) -> None:
    for item, row in zip(items, catalog.rows_of(items).tolist(), strict=True):
        if row == UNKNOWN_ROW:
            hint = nearest(item, catalog.items)
            raise InputError(f"item {item!r} is unknown to the model; add --allow-unknown to rank new items.{hint}")


def _parse_fields(option: str, text: str | None) -> dict[str, Any] | None:
    values = None if text is None else _parse_json(option, text)
    if values is not None and not isinstance(values, dict):
        raise InputError(f"{option}: must be a JSON object of names and values, got {text!r}")
    return values


def _parse_json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option}: starts like JSON but is not valid JSON ({error})") from None


def _parse_names(text: str) -> list[str]:
    """Parse `ITEM,ITEM` or a JSON list of names."""
    if text.lstrip().startswith("["):
        return to_names(_parse_json("candidates", text))
    return [name.strip() for name in text.split(",") if name.strip()]


def _parse_steps(option: str, text: str) -> list[tuple[str, str]]:
    """Parse `ITEM:BEHAVIOUR,ITEM:BEHAVIOUR` or a JSON list of pairs."""
    if text.lstrip().startswith("["):
        return to_steps(_parse_json(option, text), option)
    steps = []
    for step in filter(None, (part.strip() for part in text.split(","))):
        item, colon, behaviour = step.rpartition(":")
        if not (item and colon and behaviour):
            raise InputError(f"{option}: {step!r} is not ITEM:BEHAVIOUR")
        steps.append((item, behaviour))
    return steps
