"""What is in a store, counted: the page an owner of a log looks at before believing anything above it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mbcal.data.store import PARTS, Store
from mbcal.types import SPECIAL, Catalog

TOP = 10


def describe(store: Store) -> dict[str, Any]:
    """Counts, histograms and hashes, as plain values that JSON can hold."""
    counts, catalog, behaviours = store.manifest["counts"], store.catalog, store.behaviours
    rewards = np.asarray(behaviours.rewards)
    shown = np.zeros(catalog.rows, np.int64)
    lengths = np.zeros(store.horizon + 1, np.int64)
    by_step, reached = np.zeros(store.horizon), np.zeros(store.horizon, np.int64)
    totals: dict[str, list[np.ndarray[Any, Any]]] = {part: [] for part in PARTS}
    for part in PARTS:
        for shard in store.shards(part):
            shown += np.bincount(shard.items, minlength=catalog.rows)
            sessions = shard.dense(catalog, behaviours, store.horizon, store.history)
            lengths += np.bincount(sessions.length, minlength=store.horizon + 1)
            by_step += sessions.rewards.sum(0, dtype=np.float64)
            reached += sessions.mask.sum(0)
            totals[part].append(sessions.rewards.sum(1, dtype=np.float64))
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
        "parts": {part: {**counts["parts"][part], **_reward(totals[part])} for part in PARTS},
        "popularity": _popularity(shown[SPECIAL:], catalog),
        "features": {
            name: {
                "values": len(feature.vocabulary),
                "multi": feature.offsets is not None,
                "items_without": sum(not feature.values(row) for row in range(SPECIAL, catalog.rows)),
            }
            for name, feature in catalog.features.items()
        },
        "rejected": store.manifest["rejected"],
        "options": store.manifest["options"],
        "source_hashes": store.manifest["source_hashes"],
        "content_hash": store.manifest["content_hash"],
    }


def _reward(totals: list[np.ndarray[Any, Any]]) -> dict[str, float | None]:
    if not totals:
        return {"reward_per_session": None}
    return {"reward_per_session": float(np.concatenate(totals).mean())}


def _popularity(shown: np.ndarray[Any, Any], catalog: Catalog) -> dict[str, Any]:
    """Who is shown how often. `gini` is 0 when all items are shown alike and nears 1 when one has everything; `half` is the
    least number of items that make half of all steps."""
    rising = np.sort(shown)
    total, n = int(rising.sum()), len(rising)
    gini = float(2 * np.sum(np.arange(1, n + 1) * rising) / (n * total) - (n + 1) / n)
    order = np.lexsort((np.arange(n), -shown))
    return {
        "top": [
            {"item": catalog.items[k], "title": catalog.title(k + SPECIAL), "count": int(shown[k])}
            for k in order[:TOP].tolist()
        ],
        "median": float(np.median(shown)),
        "gini": gini,
        "half": int(np.searchsorted(np.cumsum(rising[::-1]), total / 2) + 1),
    }
