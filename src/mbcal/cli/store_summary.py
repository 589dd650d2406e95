"""What `mbcal prepare` and `mbcal collect` print about a new store."""

from __future__ import annotations

import typer

from mbcal.cli.options import shell_quoted
from mbcal.data import Store
from mbcal.data.clicks import only_reranks
from mbcal.data.endings import suggest_ends
from mbcal.data.feature_kinds import doubtful_category
from mbcal.data.log_facts import early_start, first_time, unknown_labels
from mbcal.data.rejection import UNKNOWN_LABEL
from mbcal.types import Feature

SHOWN_LABELS = 5
"""Labels without a reward that are named."""


def summarise(store: Store) -> None:
    """Print the sizes of a new store."""
    counts, rejected = store.manifest["counts"], store.manifest["rejected"]
    typer.echo(
        f"{store.path}: {counts['rows']:,} steps of {counts['users']:,} users with {counts['items']:,} items, "
        f"{counts['sessions']:,} sessions ({counts['full_sessions']:,} full: {store.horizon} steps)"
    )
    if rejected:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in rejected.items())
        typer.echo(f"{sum(rejected.values()):,} rejected rows in rejected.parquet: {reasons}")
    if UNKNOWN_LABEL in rejected:
        labels = unknown_labels(store)
        listed = ", ".join(repr(label) for label in labels[:SHOWN_LABELS]) + ", …" * (len(labels) > SHOWN_LABELS)
        typer.echo(f"Warning: rows with {listed} were left out; give every label a reward in --rewards", err=True)
    if outside := counts.get("outside_parts"):
        typer.echo(f"{outside:,} of {counts['rows_read']:,} rows left out: outside the time of their part (docs/time.md)")
    if features := store.catalog.features:
        kinds = ", ".join(f"{name} ({feature.kind})" for name, feature in features.items())
        typer.echo(f"Item features: {kinds}")
    for name, feature in features.items():
        if isinstance(feature, Feature) and (doubt := doubtful_category(feature)):
            typer.echo(f"Warning: feature {name!r} was taken for a category: {doubt}", err=True)
    if store.fields:
        typer.echo(f"Fields: {store.fields.describe()}")
    if conflicts := counts.get("item_conflicts"):
        problem = f"rows of the item table contradict each other about {conflicts:,} items"
        typer.echo(f"Warning: {problem}; each has the smallest of its values", err=True)
    if sentence := early_start(first_time(store)):
        typer.echo(f"Warning: {sentence}", err=True)
    for suggestion in suggest_ends(store):
        typer.echo(suggestion)
    if sentence := only_reranks(store.manifest):
        typer.echo(f"Warning: {sentence}", err=True)
    typer.echo(f"Next: mbcal describe {shell_quoted(store.path)}")
