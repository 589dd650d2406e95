"""Statistics of a store, for `mbcal describe`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mbcal.data.store import Store
from mbcal.data.store_format import PARTS
from mbcal.metrics import gini
from mbcal.types import FIRST_ITEM_ROW, Catalog

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
    rewards = np.asarray(behaviours.rewards)
    shown = np.zeros(catalog.n_rows, np.int64)
    lengths = np.zeros(store.horizon + 1, np.int64)
    by_step, reached = np.zeros(store.horizon), np.zeros(store.horizon, np.int64)
    totals = dict.fromkeys(PARTS, 0.0)
    for part in PARTS:
        for shard in store.shards(part):
            shown += np.bincount(shard.items, minlength=catalog.n_rows)
            lengths += np.bincount(shard.length, minlength=store.horizon + 1)
            reward = rewards[shard.behaviours]
            for step in range(store.horizon):  # not padded, since a store may have a long horizon and short sessions
                steps = shard.start[shard.length > step] + step
                total = float(reward[steps].sum())
                by_step[step] += total
                reached[step] += len(steps)
                totals[part] += total
    labels = np.asarray(counts["labels"])
    return {
        "source": store.manifest["source"],
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
        "reward_by_step": [float(total / n) if n else None for total, n in zip(by_step, reached, strict=True)],
        "lengths": {str(length): int(n) for length, n in enumerate(lengths) if n},
        "parts": {
            part: {**entry, "reward_per_session": totals[part] / entry["sessions"] if entry["sessions"] else None}
            for part, entry in counts["parts"].items()
        },
        "popularity": _popularity(shown[FIRST_ITEM_ROW:], catalog),
        "features": {
            name: {
                "values": len(feature.vocabulary),
                "multi": feature.offsets is not None,
                "items_without": sum(not feature.values(row) for row in range(FIRST_ITEM_ROW, catalog.n_rows)),
            }
            for name, feature in catalog.features.items()
        },
        "rejected": store.manifest["rejected"],
        "options": store.manifest["options"],
        "source_hashes": store.manifest["source_hashes"],
        "content_hash": store.manifest["content_hash"],
    }


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
