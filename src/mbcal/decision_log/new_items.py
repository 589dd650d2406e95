"""Items that a decision log has and a catalogue does not: the catalogue grows by those that users met."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from mbcal.decision_log.records import Decision, Feedback, Record
from mbcal.types import Catalog
from mbcal.types.feature_values import catalog_of_values, declarations

_Given = dict[str, dict[str, tuple[int, str, Any]]]
"""Item -> feature -> time and id of the decision that gave it, and the value."""


def extend_by_log(catalog: Catalog, records: Iterable[Record]) -> Catalog:
    """Return the catalogue with the log's new items appended: those that got feedback, or were shown in a session.

    Candidates that no user met stay unknown. Features are those that the latest request gave to an item.

    Args:
        catalog: The items that are known.
        records: In any order, which does not matter.

    Returns:
        The grown catalogue; the same object if nothing is new.
    """
    known = set(catalog.items)
    ranked: set[tuple[str, str]] = set()
    answered: set[tuple[str, str]] = set()
    shown: set[str] = set()
    given: _Given = {}
    for record in records:
        if isinstance(record, Feedback):
            if record.item not in known:
                answered.add((record.decision, record.item))
        elif isinstance(record, Decision):
            ranked.update((record.id, item) for item in record.items if item not in known)
            shown.update(item for item, _ in record.shown if item not in known)
            _note_features(record, given)
    return _extended(catalog, shown | {item for _, item in ranked & answered}, given)


def named_items(catalog: Catalog, records: Iterable[Record]) -> Catalog:
    """Return the catalogue with every item appended that the log names anywhere, also candidates that no user met.

    Args:
        catalog: The items that are known.
        records: In any order, which does not matter.

    Returns:
        The grown catalogue; the same object if nothing is new.
    """
    known, names = set(catalog.items), set[str]()
    given: _Given = {}
    for record in records:
        if isinstance(record, Decision):
            names.update(record.candidates, record.items, (item for item, _ in (*record.history, *record.shown)))
            _note_features(record, given)
        elif isinstance(record, Feedback):
            names.add(record.item)
    return _extended(catalog, names - known, given)


def _note_features(record: Decision, given: _Given) -> None:
    """Add the features of a decision's items to those given so far; the latest decision counts."""
    for item, values in record.features.items():
        latest = given.setdefault(item, {})
        for name, value in values.items():
            if (record.time, record.id) > latest.get(name, (-1, "", None))[:2]:
                latest[name] = (record.time, record.id, value)


def _extended(catalog: Catalog, new: Collection[str], given: _Given) -> Catalog:
    if not new:
        return catalog
    ordered = sorted(new, key=lambda item: (len(item), item))  # as `prepare` orders items
    items = {item: {name: value for name, (_, _, value) in given.get(item, {}).items()} for item in ordered}
    return catalog.extended(catalog_of_values(items, declarations(catalog.features)))
