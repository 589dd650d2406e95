"""`mbcal log`: summarise a decision log, compact it, export it as sessions."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mbcal.cli.console import progress
from mbcal.cli.options import Json, shell_quoted
from mbcal.errors import OptionError, OutputError, printable

if TYPE_CHECKING:  # msgspec is an optional dependency, so the commands import the log when they run
    from mbcal.decision_log import Joined, Loss, Record
    from mbcal.types import Catalog

app = typer.Typer(
    help="Show the decision log of a service, compact it, or export it as sessions.",
    no_args_is_help=True,
)

LogDir = Annotated[Path, typer.Argument(metavar="LOG", help="Folder of the decision log.")]


@app.command("show")
def show_log(
    folder: LogDir,
    last: Annotated[int, typer.Option(min=0, help="Also print this many of the latest records, as JSON lines.")] = 0,
    as_json: Json = False,
) -> None:
    """Count decisions, answered decisions and sessions by version.

    The service may be writing the log at the same time. Damaged records, and segments that are missing or were cut off, are
    named on standard error.
    """
    from mbcal.decision_log import Decision, read_log
    from mbcal.decision_log.records import fields

    lost: list[Loss] = []
    tail: deque[Record] = deque(maxlen=last)
    version_of: dict[str, tuple[int, str]] = {}  # the latest of decisions with one id, with its time
    decisions: Counter[str] = Counter()
    sessions: dict[str, set[tuple[str, str]]] = defaultdict(set)
    answered: set[str] = set()
    feedback = 0
    for record in read_log(folder, lost):
        tail.append(record)
        if isinstance(record, Decision):
            version_of[record.id] = max(version_of.get(record.id, (record.time, "")), (record.time, record.version))
            decisions[record.version] += 1
            is_alone = not record.session and not record.user  # a session of its own, as in `join_sessions`
            sessions[record.version].add((record.user, record.id if is_alone else record.session))
        else:
            feedback += 1
            answered.add(record.decision)
    answers = Counter(version_of[decision][1] for decision in answered if decision in version_of)
    versions: list[dict[str, Any]] = [
        {"version": version, "decisions": count, "answered": answers[version], "sessions": len(sessions[version])}
        for version, count in sorted(decisions.items())
    ]
    records = [{"kind": type(record).__name__.lower(), **fields(record)} for record in tail]
    _report(lost)
    if as_json:
        summary = {"decisions": decisions.total(), "feedback": feedback, "versions": versions, "lost": [*map(str, lost)]}
        lines = json.dumps({**summary, "last": records}, indent=2, ensure_ascii=False).split("\n")
        typer.echo("\n".join(map(printable, lines)))
        return
    total = len(set().union(*sessions.values()))
    typer.echo(f"{folder}: {decisions.total():,} decisions in {total:,} sessions, {feedback:,} feedback records")
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(("version", "decisions", "answered", "share", "sessions")):
        table.add_column(column, justify="right" if number else "left")
    for entry in versions:
        share = f"{entry['answered'] / entry['decisions']:.1%}"
        table.add_row(entry["version"], f"{entry['decisions']:,}", f"{entry['answered']:,}", share, f"{entry['sessions']:,}")
    if versions:
        Console(highlight=False, markup=False, emoji=False).print(table)
    for values in records:
        typer.echo(printable(json.dumps(values, ensure_ascii=False)))


@app.command("compact")
def compact_segments(folder: LogDir) -> None:
    """Convert closed segments to Parquet files, about a tenth of their size.

    The service may be writing the log at the same time. Compaction may be stopped at any point and run again.
    """
    from mbcal.decision_log import compact_log

    with progress() as listener:
        result = compact_log(folder, listener)
    _report(result.left, "its segment is left as it is")
    size = f"{result.bytes_before / 2**20:,.1f} MiB to {result.bytes_after / 2**20:,.1f} MiB"
    typer.echo(f"{folder}: {result.segments:,} segments compacted, {result.records:,} records, {size}")


@app.command("export")
def export_sessions(
    folder: LogDir,
    model: Annotated[Path, typer.Option(help="Model whose behaviours the sessions use. Items it does not know are kept.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write, one row per session.", show_default=False)],
    horizon: Annotated[int, typer.Option(help="Most steps in a row. Longer sessions are cut into several rows.")] = 20,
    history: Annotated[int, typer.Option(help="Most history steps in a row.")] = 20,
    teaching: Annotated[
        bool,
        typer.Option("--teaching", help="Without users who judge: for a model that 'mbcal update --candidate' is given."),
    ] = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Name damaged and missing records, and go on.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Join decisions and feedback to sessions. The order of the records does not matter.

    Items keep their names, also those that the model does not know. Features that requests gave to such items are written
    beside the file, as NAME.items.parquet, which `mbcal prepare table --items` reads.
    """
    import numpy as np

    from mbcal.decision_log import join_sessions, read_log
    from mbcal.decision_log.new_items import named_items
    from mbcal.storage.artifacts import MODEL_KIND, Artifact
    from mbcal.storage.atomic import write_atomic
    from mbcal.types import SessionFields

    if out.suffix.lower() != ".parquet":
        raise OptionError(f"out: {str(out)!r} is no name of a Parquet file, which this writes; end it with .parquet")
    items_path = out.with_name(f"{out.stem}.items.parquet")
    for path in (out, items_path):
        if path.is_dir() or (path.exists() and not overwrite):
            remedy = "choose another --out" if path.is_dir() else "add --overwrite to replace it"
            raise OutputError(f"{path}: already exists; {remedy}")
    artifact = Artifact.open(model, MODEL_KIND)
    lost: list[Loss] = []
    catalog = named_items(artifact.catalog, read_log(folder, lost if skip_damaged else None))
    records = read_log(folder, [] if skip_damaged else None)
    fields = SessionFields.from_record(artifact.manifest.get("fields"))
    joined = join_sessions(records, catalog, artifact.behaviours, horizon=horizon, history=history, fields=fields)
    _report(lost)
    new = len(catalog) - len(artifact.catalog)
    if new:
        write_atomic(items_path, _items_to_parquet(catalog, new))
    else:
        items_path.unlink(missing_ok=True)  # of an earlier export, which is replaced
    rows = np.arange(len(joined.sessions))
    if teaching:
        from mbcal.release.gate import GateConfig, split_judges

        rows, _ = split_judges(joined.users, joined.sessions.user, GateConfig.judge_share)
    write_atomic(out, _to_parquet(joined, rows.tolist()))
    counts = asdict(joined.counts)
    unknown_behaviours = counts.pop("unknown_behaviours")
    del counts["lost"]
    other_counts = {name: count for name, count in counts.items() if count and name not in ("sessions", "steps")}
    sessions = joined.sessions[rows]
    n_steps, n_users = int(sessions.length.sum()), len(np.unique(sessions.user))
    typer.echo(f"{out}: {len(sessions):,} sessions, {n_steps:,} steps of {n_users:,} users")
    typer.echo(", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in other_counts.items()))
    if new:
        typer.echo(
            f"{items_path}: {new:,} items that {shell_quoted(model)} does not know, with the features that requests gave"
        )
    for name, count in unknown_behaviours.items():
        typer.echo(f"left out: behaviour {name!r} is not in {shell_quoted(model)}, {count:,} feedback records")


def _report(lost: list[Loss], consequence: str = "the rest is used") -> None:
    for entry in lost:
        typer.echo(f"{entry}; {consequence}", err=True)


def _items_to_parquet(catalog: Catalog, count: int) -> bytes:
    """Return a Parquet file with the last items of a catalogue, one row each, and their features by name."""
    import pyarrow.parquet as pq

    from mbcal.storage.catalog_io import PREFIX, catalog_table

    table = catalog_table(catalog).slice(len(catalog) - count)
    content = io.BytesIO()
    pq.write_table(
        table.rename_columns([name.removeprefix(PREFIX) for name in table.column_names]), content, compression="zstd"
    )
    return content.getvalue()


def _to_parquet(joined: Joined, indices: Sequence[int]) -> bytes:
    """Return a Parquet file with a row for each of these sessions, items and behaviours by name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sessions, item_name = joined.sessions, joined.sessions.catalog.name_of
    behaviour_names = sessions.behaviour_set.names
    rows: list[dict[str, Any]] = []
    for index in indices:
        values = {key: array[index] for key, array in sessions.arrays()}
        steps, history = int(values["length"]), int(values["history_length"])
        candidates = values["candidates"][:steps].tolist()
        rows.append(
            {
                "user": joined.users[int(values["user"])],
                "session": joined.session_names[index],
                "items": [item_name(row) for row in values["items"][:steps].tolist()],
                "behaviours": [behaviour_names[n] for n in values["behaviours"][:steps].tolist()],
                "propensities": values["propensities"][:steps].tolist(),
                "times": values["timestamps"][:steps].tolist(),
                "candidates": [[item_name(row) for row in step_candidates if row] for step_candidates in candidates],
                "history_items": [item_name(row) for row in values["history_items"][:history].tolist()],
                "history_behaviours": [behaviour_names[n] for n in values["history_behaviours"][:history].tolist()],
            }
        )
    names = pa.list_(pa.string())
    schema = pa.schema(
        {
            "user": pa.string(),
            "session": pa.string(),
            "items": names,
            "behaviours": names,
            "propensities": pa.list_(pa.float32()),
            "times": pa.list_(pa.timestamp("us", "UTC")),
            "candidates": pa.list_(names),
            "history_items": names,
            "history_behaviours": names,
        }
    )
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), content, compression="zstd")
    return content.getvalue()
