"""Whether users of a store leave with some behaviour: what `mbcal prepare` suggests for `--ends`."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np

from mbcal.data.clicks import NONE
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS

MIN_LAST = 0.95
"""Share of a label's occurrences that must be last steps for it to be suggested."""
MIN_COUNT = 30
"""Occurrences below which nothing is suggested."""
MIN_LIFT = 2.0
"""How many times more often than the average behaviour it must be a last step."""


def suggest_ends(store: Store) -> list[str]:
    """Return a sentence for every label with which users seem to leave, by the first shard of the store.

    The users of a shard are a random sample. A store whose behaviours are levels of a number, or which declares terminal
    behaviours, needs no suggestion. Sampled negatives, which always come before a row of the log, are not counted.
    """
    if store.behaviours.terminal or store.behaviours.cuts:
        return []
    shard = next(islice(chain.from_iterable(store.shards(part) for part in PARTS if store.n_sessions(part)), 1), None)
    if shard is None:
        return []
    names = store.behaviours.names
    total = np.bincount(shard.behaviours, minlength=len(names))
    last = np.bincount(shard.behaviours[shard.start + shard.length - 1], minlength=len(names))
    if store.manifest["counts"].get("negatives"):
        total[store.behaviours.index(NONE)] = 0
    usual = last.sum() / max(total.sum(), 1)
    share = last / np.maximum(total, 1)
    found = np.flatnonzero((total >= MIN_COUNT) & (share >= MIN_LAST) & (share >= MIN_LIFT * usual))
    return [
        f"{share[code]:.0%} of the {names[code]!r} steps end their session; if users leave with it, prepare with "
        f"--ends {names[code]}"
        for code in found.tolist()
    ]
