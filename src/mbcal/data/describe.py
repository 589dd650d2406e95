"""Statistics of a store, for `mbcal describe`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.data.clicks import negative_rate
from mbcal.data.log_facts import LogFacts, iso_time
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Part
from mbcal.metrics import gini
from mbcal.types import FIRST_ITEM_ROW, Catalog, Field, Fields

TOP = 10
"""Items listed as the most popular."""


def describe(store: Store) -> dict[str, Any]:
    """Compute counts, histograms and hashes of a store.

    Every file is read and checked.

    Returns:
        Values that JSON can hold.

    Raises:
        StoreError: If a file is missing or damaged.
    """
    for name in ("users.parquet", "rejected.parquet"):
        store.table(name)
    counts, catalog, behaviours = store.manifest["counts"], store.catalog, store.behaviours
    facts = LogFacts(catalog.n_rows, behaviours)
    rewards, totals = np.asarray(behaviours.rewards), _count_steps(store, facts)
    labels = np.asarray(counts["labels"])
    return {
        "source": store.manifest["source"],
        "times": facts.times(),
        "time_cuts": [iso_time(cut) for cut in store.manifest["options"].get("time_cuts") or ()],
        "negatives": {"rows": counts["negatives"], "rate": negative_rate(store.manifest)} if "negatives" in counts else None,
        "rows": counts["rows"],
        "rows_read": counts["rows_read"],
        "users": counts["users"],
        "items": counts["items"],
        "sessions": counts["sessions"],
        "full_sessions": counts["full_sessions"],
        "short_windows": counts["short_windows"],
        "ties": counts["ties"],
        "horizon": store.horizon,
        "history": store.history,
        "behaviours": [
            {"name": name, "reward": reward, "count": count, "share": count / max(counts["rows"], 1)}
            for name, reward, count in zip(behaviours.names, behaviours.rewards, labels.tolist(), strict=True)
        ],
        "reward_per_step": float(labels @ rewards / max(labels.sum(), 1)),
        "reward_by_step": [
            float(total / n) if n else None for total, n in zip(totals.reward_by_step, totals.sessions_by_step, strict=True)
        ],
        "lengths": {str(length): int(n) for length, n in enumerate(totals.lengths) if n},
        "parts": {
            part: {
                **entry,
                "session_steps": totals.steps_by_part[part],
                "reward_per_session": totals.reward_by_part[part] / entry["sessions"] if entry["sessions"] else None,
            }
            for part, entry in counts["parts"].items()
        },
        "length_by_outcome": facts.outcomes(),
        "heaviest_users": facts.heaviest_users(store),
        "new_items": facts.new_items(),
        "popularity": _popularity(totals.shown[FIRST_ITEM_ROW:], catalog),
        "features": {name: feature.summary() for name, feature in catalog.features.items()},
        "fields": {name: [_field_summary(one) for one in fields] for name, fields in _fields(store).items()},
        "item_conflicts": counts.get("item_conflicts", 0),
        "warnings": facts.warnings(store),
        "rejected": store.manifest["rejected"],
        "options": store.manifest["options"],
        "source_hashes": store.manifest["source_hashes"],
        "content_hash": store.manifest["content_hash"],
    }


@dataclass(frozen=True)
class _Totals:
    """Sums over all sessions of a store with horizon T."""

    shown: NDArray[np.int64]
    """(R,) how often each catalogue row was shown."""
    lengths: NDArray[np.int64]
    """(T + 1,) sessions of each length."""
    reward_by_step: NDArray[np.float64]
    """(T,)"""
    sessions_by_step: NDArray[np.int64]
    """(T,) sessions that reach each step."""
    reward_by_part: dict[Part, float]
    steps_by_part: dict[Part, int]
    """Steps in sessions; others of the part are only in histories, or in windows that are too short."""


def _count_steps(store: Store, facts: LogFacts) -> _Totals:
    """Sum over all shards, and show them to `facts`."""
    rewards, n_rows, horizon = np.asarray(store.behaviours.rewards), store.catalog.n_rows, store.horizon
    shown, lengths = np.zeros(n_rows, np.int64), np.zeros(horizon + 1, np.int64)
    reward_by_step, sessions_by_step = np.zeros(horizon), np.zeros(horizon, np.int64)
    reward_by_part, steps_by_part = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
    for part in PARTS:
        for shard in store.shards(part):
            facts.add(part, shard)
            steps_by_part[part] += int(shard.length.sum())
            shown += np.bincount(shard.items, minlength=n_rows)
            lengths += np.bincount(shard.length, minlength=horizon + 1)
            reward = rewards[shard.behaviours]
            for step in range(horizon):  # not padded, since a store may have a long horizon and short sessions
                steps = shard.start[shard.length > step] + step
                total = float(reward[steps].sum())
                reward_by_step[step] += total
                sessions_by_step[step] += len(steps)
                reward_by_part[part] += total
    return _Totals(shown, lengths, reward_by_step, sessions_by_step, reward_by_part, steps_by_part)


def _popularity(shown: np.ndarray[Any, Any], catalog: Catalog) -> dict[str, Any]:
    """Summarise how often items (I,) were shown.

    `gini` is 0 if all items are shown equally often and approaches 1 if one gets all steps. `half` is the smallest number of
    items that make up half of all steps.
    """
    ascending = np.sort(shown)
    total, n = int(ascending.sum()), len(ascending)
    order = np.lexsort((np.arange(n), -shown))
    return {
        "top": [
            {"item": catalog.items[index], "title": catalog.title_of(index + FIRST_ITEM_ROW), "count": int(shown[index])}
            for index in order[:TOP].tolist()
        ],
        "median": float(np.median(shown)),
        "gini": gini(shown),
        "half": int(np.searchsorted(np.cumsum(ascending[::-1]), total / 2) + 1),
    }


def _fields(store: Store) -> dict[str, Fields]:
    """The fields of users and of steps, where there are any."""
    return {name: fields for name, fields in (("user", store.fields.user), ("context", store.fields.context)) if len(fields)}


def _field_summary(field: Field) -> dict[str, Any]:
    summary: dict[str, Any] = {"name": field.name, "kind": field.kind}
    if field.kind == "category":
        return {**summary, "values": len(field.vocabulary), "examples": list(field.vocabulary[:5])}
    if field.kind == "number":
        return {**summary, "mean": field.mean, "deviation": field.deviation}
    return {**summary, "length": field.length}
