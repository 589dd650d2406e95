"""`mbcal registry`: which version of a model is live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.options import Json, quoted
from mbcal.errors import ModelError, OptionError
from mbcal.registry.registry import Registry

app = typer.Typer(
    help="Versions of models for the ranking service: publish, look, go live, roll back.\n\n"
    "'mbcal registry publish MODEL --registry DIR' makes a model the next version and the live one; "
    "'mbcal registry rollback --registry DIR' takes that back. A version is never changed, and one that is damaged or "
    "ranks otherwise than its agent never goes live. It is a model too: 'mbcal rank' and 'mbcal fit --from' take "
    "DIR/versions/NAME.",
    no_args_is_help=True,
)

Where = Annotated[Path, typer.Option("--registry", metavar="DIR", help="The registry's folder.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="VERSION", help="A version, such as v000003.")]


@app.command("publish")
def publish_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model written by 'mbcal fit'.")],
    registry: Where,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A number to keep with the version; may be repeated.", show_default=False),
    ] = None,
    activate: Annotated[bool, typer.Option(help="Make it the live version at once.")] = True,
    as_json: Json = False,
) -> None:
    """Make a model the next version and, unless --no-activate is given, the live one.

    The folder is made if there is none. A model whose scores without torch differ from its own by more than 1e-5, or are no
    finite numbers, is refused.
    """
    kept = Registry(registry)
    name = kept.publish(model, metrics=dict(map(_metric, metric or [])), activate=activate)
    if as_json:
        typer.echo(json.dumps({"version": name, "current": kept.current()}))
    elif activate:
        typer.echo(f"{name} is live; take it back with: mbcal registry rollback --registry {quoted(registry)}")
    else:
        typer.echo(f"{name} is there; make it live with: mbcal registry activate {name} --registry {quoted(registry)}")


@app.command("list")
def list_versions(registry: Where, as_json: Json = False) -> None:
    """All versions, oldest first: which is live, what they hold, how they were judged."""
    kept = _existing(registry)
    current, before = kept.current(), kept.previous_versions()
    rows = [_row(kept, name, current, before) for name in kept.versions()]
    if as_json:
        typer.echo(json.dumps({"current": current, "before": before, "versions": rows}, indent=2, ensure_ascii=False))
        return
    table = Table("version", "", "agent", "published", "parent", "metrics", box=None, pad_edge=False)
    for row in rows:
        state = f"damaged: {row['damaged']}" if "damaged" in row else row["state"]
        metrics = ", ".join(f"{name} {_shown(value)}" for name, value in row.get("metrics", {}).items())
        table.add_row(row["version"], state, row.get("agent"), row.get("published"), row.get("parent") or "", metrics)
    _console().print(table if rows else f"{registry}: no versions yet; publish a model with 'mbcal registry publish'")


@app.command("show")
def show_version(
    registry: Where,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="A version; the live one if left out.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Open a version as the service does, every file, shape and golden score checked, and say what it holds."""
    kept = _existing(registry)
    opened = kept.open(version)
    said = _row(kept, opened.name, kept.current(), kept.previous_versions()) | {
        "path": str(opened.path),
        "scorer": opened.manifest["version"]["scorer"],
        "items": len(opened.catalog),
        "items_met": int(opened.seen[2:].sum()),
        "behaviours": dict(zip(opened.behaviours.names, opened.behaviours.rewards, strict=True)),
        "horizon": opened.horizon,
        "history": opened.history,
        "bytes": sum(file["bytes"] for file in opened.manifest["files"].values()),
        "config": opened.manifest["config"],
    }
    if as_json:
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    behaviours = ", ".join(f"{name} {reward:g}" for name, reward in list(said["behaviours"].items())[:8])
    for name, value in (
        ("version", f"{opened.name} ({said['state'] or 'not live'}), verified"),
        ("path", said["path"]),
        ("agent", said["agent"]),
        ("published", said["published"]),
        ("parent", said["parent"] or "none"),
        ("items", f"{said['items']:,}, of which the model has met {said['items_met']:,}"),
        ("behaviours", behaviours + (", …" if len(opened.behaviours) > 8 else "")),
        ("session", f"up to {opened.horizon} steps after a history of up to {opened.history}"),
        ("size", f"{said['bytes'] / 2**20:.1f} MiB"),
        *((f"metric {name}", _shown(value)) for name, value in opened.metrics.items()),
    ):
        table.add_row(name, str(value))
    _console().print(table)


@app.command("activate")
def activate_version(version: Name, registry: Where) -> None:
    """Make a version live, after every check that opening it makes."""
    _existing(registry).activate(version)
    typer.echo(f"{version} is live")


@app.command("rollback")
def roll_back(registry: Where) -> None:
    """Make the version live that was before the current one; again goes one further back."""
    kept = _existing(registry)
    left = kept.current()
    typer.echo(f"{kept.rollback()} is live again, {left} no more")


@app.command("gc")
def remove_versions(
    registry: Where,
    keep: Annotated[int, typer.Option(help="How many of those live before the current one to keep, to roll back to.")] = 5,
) -> None:
    """Remove versions older than the live one, but for those to roll back to; and what killed publishers left."""
    removed = _existing(registry).gc(keep)
    typer.echo(f"removed {', '.join(removed)}" if removed else "nothing to remove")


def _existing(path: Path) -> Registry:
    if not (path / "versions").is_dir():
        problem = "not a registry (no versions within)" if path.exists() else "no such folder"
        raise ModelError(f"{path}: {problem}; 'mbcal registry publish' makes one")
    return Registry(path)


def _row(registry: Registry, name: str, current: str | None, before: list[str]) -> dict[str, Any]:
    """What one line says of a version."""
    state = "live" if name == current else "live before" if name in before else ""
    try:
        said = registry.manifest(name)
    except ModelError as error:
        return {"version": name, "state": state, "damaged": str(error)}
    about = {key: said["version"].get(key) for key in ("published", "parent")}
    return {
        "version": name,
        "state": state,
        "agent": said.get("agent"),
        **about,
        "metrics": said["version"].get("metrics") or {},
    }


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        if not (name.strip() and equals):
            raise ValueError
        return name.strip(), float(value)
    except ValueError:
        raise OptionError(f"metric: {text!r} is not NAME=VALUE with a number for a value") from None


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _console() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    return console
