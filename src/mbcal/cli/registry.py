"""`mbcal registry`: publish, list, show, activate, try as a canary, roll back and remove versions of models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mbcal.cli.console import output
from mbcal.cli.options import Json, shell_quoted
from mbcal.errors import ModelError, OptionError
from mbcal.registry.registry import Registry
from mbcal.registry.summary import version_summaries, version_summary

app = typer.Typer(
    help="Versions of models for the ranking service.\n\n"
    "'mbcal registry publish MODEL --registry DIR' makes a model the next version, and the first one live. 'mbcal registry "
    "activate VERSION' makes another one live. "
    "'mbcal registry rollback --registry DIR' goes back to the version before. 'mbcal registry canary VERSION' tries one "
    "on a share of users first (of sessions, where requests name no user). A version is never changed. "
    "A version that is damaged, or ranks differently from its agent, never goes live. 'mbcal rank' and 'mbcal fit --from' "
    "accept DIR/versions/NAME as a model.",
    no_args_is_help=True,
)

RegistryOption = Annotated[
    Path, typer.Option("--registry", metavar="DIR", help="Folder of the registry.", show_default=False)
]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="A version, such as v000003.")]


@app.command("publish")
def publish_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model written by 'mbcal fit'.")],
    folder: RegistryOption,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A number to keep with the version. May be repeated.", show_default=False),
    ] = None,
    activate: Annotated[
        bool | None,
        typer.Option(help="Make it the live version, or do not.", show_default="only if none is live"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a model the next version; if none is live yet, or with --activate, it goes live.

    Beside a live version, 'mbcal registry canary' tries it on a share of users, and 'mbcal registry activate' makes it live.
    The folder is created if absent. A model is refused if its scores without torch differ from its own by more than 1e-5 or
    are not finite.
    """
    registry = Registry(folder)
    name = registry.publish(model, metrics=dict(map(_metric, metric or [])), activate=activate)
    if as_json:
        typer.echo(json.dumps({"version": name, "current": registry.current()}))
    elif registry.current() == name and not registry.previous_versions():
        typer.echo(f"{name} is live, the first of this registry; to serve it: mbcal serve --registry {shell_quoted(folder)}")
    elif registry.current() == name:
        typer.echo(f"{name} is live; to undo: mbcal registry rollback --registry {shell_quoted(folder)}")
    else:
        where = f"{name} --registry {shell_quoted(folder)}"
        typer.echo(
            f"{name} is published; {registry.current() or 'no version'} is live\n"
            f"to try it on some users: mbcal registry canary {where}\nto make it live: mbcal registry activate {where}"
        )


@app.command("list")
def list_versions(folder: RegistryOption, as_json: Json = False) -> None:
    """List all versions, oldest first: which is live, which is the canary, and what is known of each."""
    registry = existing_registry(folder)
    pointer, rows = registry.pointer(), version_summaries(registry)
    if as_json:
        values = {"current": pointer.current, "canary": pointer.canary, "before": pointer.before, "versions": rows}
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    table = Table("version", "state", "agent", "published", "parent", "notes", box=None, pad_edge=False)
    for row in rows:
        state = "damaged" if "damaged" in row else row["state"] or "not live"
        published = (row.get("published") or "")[:16].replace("T", " ")
        table.add_row(row["version"], state, row.get("agent"), published, row.get("parent") or "", _notes(row))
    output().print(table if rows else f"{folder}: no versions yet; publish a model with 'mbcal registry publish'")


@app.command("show")
def show_version(
    folder: RegistryOption,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="A version; by default the live one.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify a version and show what it holds.

    Every file, shape and verification score is checked, as the service does when it opens a version.
    """
    registry = existing_registry(folder)
    opened = registry.open(version)
    summary = version_summary(registry, opened.name) | {
        "path": str(opened.path),
        "scorer": opened.manifest["version"]["scorer"],
        "items": len(opened.catalog),
        "items_seen": int(opened.seen[2:].sum()),
        "behaviours": dict(zip(opened.behaviours.names, opened.behaviours.rewards, strict=True)),
        "horizon": opened.horizon,
        "history": opened.history,
        "bytes": sum(file["bytes"] for file in opened.manifest["files"].values()),
        "config": opened.manifest["config"],
    }
    if as_json:
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    behaviours = ", ".join(f"{name} {reward:g}" for name, reward in list(summary["behaviours"].items())[:8])
    for name, value in (
        ("version", f"{opened.name} ({summary['state'] or 'not live'}), verified"),
        ("path", summary["path"]),
        ("agent", summary["agent"]),
        ("published", summary["published"]),
        ("parent", summary["parent"] or "none"),
        ("items", f"{summary['items']:,}, of which {summary['items_seen']:,} seen in training"),
        ("behaviours", behaviours + (", …" if len(opened.behaviours) > 8 else "")),
        ("session", f"up to {opened.horizon} steps after a history of up to {opened.history}"),
        ("size", f"{summary['bytes'] / 2**20:.1f} MiB"),
        *((f"metric {name}", _format(value)) for name, value in opened.metrics.items() if name != "checks"),
        *((f"check {name}", text) for name, text in _checks(opened.metrics).items()),
    ):
        table.add_row(name, str(value))
    output().print(table)


@app.command("activate")
def activate_version(version: VersionArgument, folder: RegistryOption) -> None:
    """Verify a version and make it live. A canary ends with that."""
    existing_registry(folder).activate(version)
    typer.echo(f"{version} is live")


@app.command("rollback")
def roll_back(folder: RegistryOption) -> None:
    """Make the version live that was live before the current one. Run again to go back one more."""
    registry = existing_registry(folder)
    replaced = registry.current()
    typer.echo(f"{registry.rollback()} is live again instead of {replaced}")


@app.command("canary")
def start_canary(version: VersionArgument, folder: RegistryOption) -> None:
    """Verify a version and make it the canary: servers started with --canary give it that share of users.

    Where requests name no user, it is that share of sessions. The trial goes on until the canary is promoted or withdrawn,
    by a person or by the watcher that 'mbcal serve --canary' and 'mbcal loop' run. Making any version live by hand ends it,
    too.
    """
    registry = existing_registry(folder)
    registry.start_canary(version)
    where = f"--registry {shell_quoted(folder)}"
    typer.echo(
        f"{version} is the canary beside {registry.current()}\n"
        f"to end it: mbcal registry promote {where}, or mbcal registry withdraw {where}"
    )


@app.command("promote")
def promote_canary(folder: RegistryOption) -> None:
    """Make the canary live now, whatever its sessions say."""
    registry = existing_registry(folder)
    replaced = registry.current()
    typer.echo(f"{registry.promote_canary()} is live instead of {replaced}")


@app.command("withdraw")
def withdraw_canary(
    folder: RegistryOption,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; 'mbcal registry list' shows it.")] = "by hand",
) -> None:
    """End the canary: the live version serves all sessions again. The withdrawn version is kept."""
    registry = existing_registry(folder)
    typer.echo(f"{registry.withdraw_canary(reason=reason)} is withdrawn; {registry.current()} serves all sessions")


@app.command("gc")
def remove_versions(
    folder: RegistryOption,
    keep: Annotated[int, typer.Option(help="Previously live versions to keep for rollback.")] = 5,
) -> None:
    """Remove versions older than the live one, except those kept for rollback, and leftovers of killed processes."""
    removed = existing_registry(folder).gc(keep)
    typer.echo(f"removed {', '.join(removed)}" if removed else "nothing to remove")


def existing_registry(path: Path) -> Registry:
    """Open a registry for a command that does not create one; raises ModelError if there is none."""
    if not (path / "versions").is_dir():
        problem = "not a registry (no versions folder)" if path.exists() else "no such folder"
        raise ModelError(f"{path}: {problem}; create one with 'mbcal registry publish'")
    return Registry(path)


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        if not (name.strip() and equals):
            raise ValueError
        return name.strip(), float(value)
    except ValueError:
        raise OptionError(f"metric: {text!r} is not NAME=VALUE with a number as the value") from None


def _notes(summary: Mapping[str, Any]) -> str:
    """What is known of a version in one line: why it is damaged or was withdrawn, its metrics, its checks by name."""
    metrics = summary.get("metrics", {})
    notes = [str(summary[key]) for key in ("damaged", "withdrawn") if key in summary]
    notes += [f"{name} {_format(value)}" for name, value in metrics.items() if name != "checks"]
    notes += [f"{name}: {text.partition('.')[0]}" for name, text in _checks(metrics).items()]
    return "; ".join(notes)


def _checks(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The checks of the update that published a version: name, and answer with its detail."""
    checks = metrics.get("checks")
    return {
        str(check.get("name")): f"{check.get('answer')}. {check.get('detail')}"
        for check in (checks if isinstance(checks, list) else [])
        if isinstance(check, Mapping)
    }


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
