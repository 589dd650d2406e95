"""A log that continues another: `prepare --like STORE` keeps the store's item rows, vocabularies and behaviours.

New items, new values of categories and new labels are appended, so that a model of the store can learn on from the new log
(`fit --from`). Users are not carried over: their part depends on their name alone.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from mbcal.data.behaviour_rules import BehaviourRule, Labels, Levels, Quantiles
from mbcal.data.clicks import is_extended
from mbcal.data.source import LogDescription
from mbcal.data.store import Store
from mbcal.errors import OptionError
from mbcal.storage.catalog_io import catalog_table, table_catalog
from mbcal.types import FIRST_ITEM_ROW, Behaviours, Catalog, FeatureKind
from mbcal.types.item_life import NEVER


def continued_log(log: LogDescription, store: Store) -> LogDescription:
    """Return the description of a log with the behaviours of a store.

    Raises:
        OptionError: If the log's behaviours contradict the store's.
    """
    return replace(
        log, rule=_continued_rule(log.rule, store.behaviours), options={**log.options, "like": store.content_hash}
    )


def known_items(store: Store | None) -> pa.Table:
    """Return the items of a store: columns `name`, `position` and `known_us`, when it was first seen (null if unknown)."""
    catalog = Catalog(()) if store is None else store.catalog
    count = len(catalog)
    times = pa.nulls(count, pa.int64())
    if catalog.life is not None:
        first_seen = catalog.life.first_seen[FIRST_ITEM_ROW:]
        times = pa.array(first_seen, pa.int64(), mask=first_seen == NEVER)
    positions = pa.array(range(count), pa.int64())
    return pa.table({"name": pa.array(catalog.items, pa.string()), "position": positions, "known_us": times})


def first_seen_sql() -> str:
    """Return an expression for the first time of an item, in its log or in the store that it continues."""
    return f"coalesce(least(first_us, known_us), {NEVER})"


def continued_catalog(table: pa.Table, store: Store) -> pa.Table:
    """Return the catalogue of a store, extended by that of a new log.

    Args:
        table: The new log's items, with features; those of the store come first.
        store: The store it continues.

    Raises:
        InputError: If a feature is of another kind than in the store, or its vectors of another length.
    """
    return catalog_table(store.catalog.extended(table_catalog(table)))


def known_kinds(store: Store) -> dict[str, FeatureKind]:
    """Return the kinds of a store's features."""
    return {name: feature.kind for name, feature in store.catalog.features.items()}


def _continued_rule(rule: BehaviourRule, known: Behaviours) -> BehaviourRule:
    if isinstance(rule, Labels):
        if known.cuts:
            raise OptionError("like: behaviours of that store are levels of a number; give levels, not labels")
        for name, reward in zip(known.names, known.rewards, strict=True):
            if rule.rewards.get(name, reward) != reward:
                problem = f"like: the reward of {name!r} is {reward:g} in that store"
                raise OptionError(f"{problem}, here {rule.rewards[name]:g}; give the same")
        return Labels({**dict(zip(known.names, known.rewards, strict=True)), **rule.rewards})
    if not known.cuts:
        if not isinstance(rule, Quantiles) and is_extended(rule.behaviours(), known):
            return rule
        raise OptionError("like: behaviours of that store are labels; give a reward for each label, not levels")
    if isinstance(rule, Levels) and rule.behaviours() != known:
        raise OptionError(f"like: the levels of that store are {', '.join(known.names)}; give the same levels and rewards")
    return Levels(known.cuts, known.rewards)
