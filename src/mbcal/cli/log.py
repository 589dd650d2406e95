"""`mbcal log`: what a service decided, looked at, compacted, and turned into sessions."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict, deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.console import progress
from mbcal.cli.options import Json, quoted
from mbcal.errors import OutputError

if TYPE_CHECKING:  # msgspec is an extra: the commands fetch what they need of it
    from mbcal.decision_log import Damage, Joined, Record

app = typer.Typer(
    help="Look at the decision log of a service, compact it, or turn it into sessions.",
    no_args_is_help=True,
)

LogDir = Annotated[Path, typer.Argument(metavar="LOG", help="The folder a service logs to.")]


@app.command("show")
def show_log(
    folder: LogDir,
    last: Annotated[int, typer.Option(min=0, help="Print this many of the latest records too, as JSON lines.")] = 0,
    as_json: Json = False,
) -> None:
    """Count decisions, answers and sessions by version; also of a log that is being written."""
    from mbcal.decision_log import Decision, read_log
    from mbcal.decision_log.records import fields

    damage: list[Damage] = []
    tail: deque[Record] = deque(maxlen=last)
    version_of: dict[str, str] = {}
    decisions: Counter[str] = Counter()
    sessions: dict[str, set[tuple[str, str]]] = defaultdict(set)
    answered: set[str] = set()
    feedback = 0
    for record in read_log(folder, damage):
        tail.append(record)
        if isinstance(record, Decision):
            version_of[record.id] = record.version
            decisions[record.version] += 1
            sessions[record.version].add((record.user, record.session))
        else:
            feedback += 1
            answered.add(record.decision)
    answers = Counter(version_of[name] for name in answered if name in version_of)
    versions: list[dict[str, Any]] = [
        {"version": version, "decisions": count, "answered": answers[version], "sessions": len(sessions[version])}
        for version, count in sorted(decisions.items())
    ]
    records = [{"kind": type(record).__name__.lower(), **fields(record)} for record in tail]
    _tell(damage)
    if as_json:
        told = {"decisions": decisions.total(), "feedback": feedback, "versions": versions, "damaged": len(damage)}
        typer.echo(json.dumps({**told, "last": records}, indent=2, ensure_ascii=False))
        return
    total = len(set().union(*sessions.values()))
    typer.echo(f"{folder}: {decisions.total():,} decisions in {total:,} sessions, {feedback:,} records of feedback")
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(("version", "decisions", "answered", "share", "sessions")):
        table.add_column(column, justify="right" if number else "left")
    for entry in versions:
        share = f"{entry['answered'] / entry['decisions']:.1%}"
        table.add_row(entry["version"], f"{entry['decisions']:,}", f"{entry['answered']:,}", share, f"{entry['sessions']:,}")
    if versions:
        Console(highlight=False, markup=False, emoji=False).print(table)
    for line in records:
        typer.echo(json.dumps(line, ensure_ascii=False))


@app.command("compact")
def compact_segments(folder: LogDir) -> None:
    """Turn closed segments into Parquet; safe to stop, and while a service is writing."""
    from mbcal.decision_log import compact_log

    with progress() as listener:
        done = compact_log(folder, listener)
    _tell(done.left, "its segment is left as it is")
    size = f"{done.bytes_before / 2**20:,.1f} MiB to {done.bytes_after / 2**20:,.1f} MiB"
    typer.echo(f"{folder}: {done.segments:,} segments compacted, {done.records:,} records, {size}")


@app.command("export")
def export_sessions(
    folder: LogDir,
    model: Annotated[Path, typer.Option(help="A model: its items and behaviours are those of the sessions.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write, a session a row.", show_default=False)],
    horizon: Annotated[int, typer.Option(help="Steps a session has at most; longer ones are cut.")] = 20,
    history: Annotated[int, typer.Option(help="Steps before it that are kept.")] = 20,
    skip_damaged: Annotated[bool, typer.Option("--skip-damaged", help="Pass over what cannot be read.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Join decisions and feedback to sessions, the same whatever the order in which they were logged."""
    from mbcal.decision_log import join_sessions, read_log
    from mbcal.storage.artifacts import MODEL_KIND, Artifact
    from mbcal.storage.atomic import write_atomic

    if out.is_dir() or (out.exists() and not overwrite):
        remedy = "choose another --out" if out.is_dir() else "add --overwrite to replace it"
        raise OutputError(f"{out}: already exists; {remedy}")
    bundle = Artifact.open(model, MODEL_KIND)
    damage: list[Damage] = []
    records = read_log(folder, damage if skip_damaged else None)
    joined = join_sessions(records, bundle.catalog, bundle.behaviours, horizon=horizon, history=history)
    _tell(damage)
    write_atomic(out, _parquet(joined))
    counts = asdict(joined.counts)
    refused = counts.pop("unknown_behaviours")
    told = {name: count for name, count in counts.items() if count and name not in ("sessions", "steps")}
    typer.echo(f"{out}: {counts['sessions']:,} sessions, {counts['steps']:,} steps of {len(joined.users):,} users")
    typer.echo(", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in told.items()))
    for name, count in refused.items():
        typer.echo(f"refused: behaviour {name!r} is unknown to {quoted(model)}, {count:,} records of feedback")


def _tell(damage: list[Damage], rest: str = "passed over") -> None:
    for found in damage:
        typer.echo(f"{found}; {rest}", err=True)


def _parquet(joined: Joined) -> bytes:
    """A session a row, in names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sessions, name = joined.sessions, joined.sessions.catalog.name_of
    labels = sessions.behaviour_set.names
    rows: list[dict[str, Any]] = []
    for number in range(len(sessions)):
        one = {key: array[number] for key, array in sessions.arrays()}
        steps, before = int(one["length"]), int(one["history_length"])
        rows.append(
            {
                "user": joined.users[int(one["user"])],
                "session": joined.names[number],
                "items": [name(row) for row in one["items"][:steps].tolist()],
                "behaviours": [labels[label] for label in one["behaviours"][:steps].tolist()],
                "propensities": one["propensities"][:steps].tolist(),
                "times": one["timestamps"][:steps].tolist(),
                "candidates": [[name(row) for row in offered if row] for offered in one["candidates"][:steps].tolist()],
                "history_items": [name(row) for row in one["history_items"][:before].tolist()],
                "history_behaviours": [labels[label] for label in one["history_behaviours"][:before].tolist()],
            }
        )
    texts = pa.list_(pa.string())
    columns = {"user": pa.string(), "session": pa.string(), "items": texts, "behaviours": texts}
    columns |= {"propensities": pa.list_(pa.float32()), "times": pa.list_(pa.timestamp("us", "UTC"))}
    columns |= {"candidates": pa.list_(texts), "history_items": texts, "history_behaviours": texts}
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(columns)), content, compression="zstd")
    return content.getvalue()
