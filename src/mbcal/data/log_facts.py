"""What a store tells about its log over time and by user: dates, heavy users, new items, session length by outcome.

One pass over the shards, one in memory at a time; beside it, arrays of the size of the catalogue.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mbcal.data.clicks import only_reranks
from mbcal.data.rejection import UNKNOWN_LABEL
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Part, Shard
from mbcal.types import FIRST_ITEM_ROW, Behaviours

DAY = 86_400_000_000
"""Microseconds in a day."""
DAYS = 47_482
"""Days from 1970 to 2099: times outside are rejected by ingestion."""
PLAUSIBLE = 788_918_400_000_000
"""1995-01-01 in microseconds. A log that begins before was probably read in the wrong unit of time."""
HEAVY_SHARE = 0.05
"""A user with a larger share of the sessions of a part is warned about, unless the part has few users."""
HEAVY_SESSIONS = 20
"""With fewer sessions a user is an ordinary one of a small log."""
SEVERAL_SHARE = 0.05
"""Further behaviours, as a share of the items of sessions, that there may be without a warning."""
TOP_USERS = 3
"""Users listed for each part."""


def unknown_labels(store: Store) -> list[str]:
    """Return the labels of rows that were rejected because no reward names them, the most frequent first."""
    counts: Counter[str] = Counter()
    with pq.ParquetFile(store.path / "rejected.parquet") as file:
        for batch in file.iter_batches(columns=["behaviour", "reason"]):
            rejected = batch.filter(pc.equal(batch["reason"], UNKNOWN_LABEL))
            for entry in rejected["behaviour"].value_counts().to_pylist():
                counts[entry["values"]] += entry["counts"]
    return sorted(counts, key=lambda label: (-counts[label], label))


class LogFacts:
    """Facts about a log, collected shard by shard.

    Args:
        n_rows: Rows of the catalogue, R.
        behaviours: Behaviours of the log.
    """

    def __init__(self, n_rows: int, behaviours: Behaviours) -> None:
        self.behaviours = behaviours
        self.first, self.last = np.iinfo(np.int64).max, -1
        self.first_seen = np.full(n_rows, np.iinfo(np.int64).max)
        """(R,) time of the first step with each row; the largest int64 for rows without a step."""
        self.first_day_steps = np.zeros(n_rows, np.int64)
        """(R,) steps with each row on the day on which it was first seen."""
        self.steps_by_day = np.zeros(DAYS, np.int64)
        self.ends = np.zeros(len(behaviours), np.int64)
        """(A,) sessions whose last behaviour is each."""
        self.end_lengths = np.zeros(len(behaviours), np.int64)
        """(A,) steps of those sessions."""
        self.items_of_sessions = self.further_behaviours = 0
        """Items of all sessions, and further behaviours that were met on them in the same session."""
        self.top_users: dict[Part, list[tuple[int, int, int]]] = {part: [] for part in PARTS}
        """Part -> (sessions, steps, user) of the heaviest users, heaviest first."""

    @classmethod
    def of(cls, store: Store) -> LogFacts:
        """Collect the facts of a store."""
        facts = cls(store.catalog.n_rows, store.behaviours)
        for part in PARTS:
            for shard in store.shards(part):
                facts.add(part, shard)
        return facts

    def add(self, part: Part, shard: Shard) -> None:
        """Add the steps and sessions of some users. All sessions of a user must be in one shard."""
        if shard.timestamps is not None and len(shard.timestamps):
            self._add_times(shard.items, shard.timestamps)
        if not len(shard.start):
            return
        self._add_behaviours(shard)
        last = shard.behaviours[shard.start + shard.length - 1]
        self.ends += np.bincount(last, minlength=len(self.ends))
        self.end_lengths += np.bincount(last, shard.length, len(self.ends)).astype(np.int64)
        users, place = np.unique(shard.user, return_inverse=True)
        sessions, steps = np.bincount(place), np.bincount(place, shard.length).astype(np.int64)
        heaviest = np.lexsort((users, -steps, -sessions))[:TOP_USERS]
        listed = zip(sessions[heaviest].tolist(), steps[heaviest].tolist(), users[heaviest].tolist(), strict=True)
        heavy = sorted([*self.top_users[part], *listed], key=lambda entry: (-entry[0], -entry[1], entry[2]))
        self.top_users[part] = heavy[:TOP_USERS]

    def _add_behaviours(self, shard: Shard) -> None:
        """Count the items of each session, and the behaviours beyond one on each."""
        session = np.repeat(np.arange(len(shard.start)), shard.length)
        steps = np.repeat(shard.start - np.cumsum(shard.length) + shard.length, shard.length) + np.arange(len(session))
        item = session * len(self.first_seen) + shard.items[steps]
        met = np.unique(item * len(self.behaviours) + shard.behaviours[steps])  # one number for session, item and behaviour
        n_items = len(np.unique(met // len(self.behaviours)))
        self.items_of_sessions += n_items
        self.further_behaviours += len(met) - n_items

    def _add_times(self, items: NDArray[np.int32], times: NDArray[np.int64]) -> None:
        self.first, self.last = min(self.first, int(times.min())), max(self.last, int(times.max()))
        day = times // DAY
        self.steps_by_day += np.bincount(day, minlength=DAYS)
        first_here = np.full_like(self.first_seen, np.iinfo(np.int64).max)
        np.minimum.at(first_here, items, times)
        on_first_day = np.bincount(items[day == first_here[items] // DAY], minlength=len(first_here))
        earlier, same = (compare(first_here // DAY, self.first_seen // DAY) for compare in (np.less, np.equal))
        self.first_day_steps = np.where(earlier, on_first_day, self.first_day_steps + np.where(same, on_first_day, 0))
        self.first_seen = np.minimum(self.first_seen, first_here)

    def times(self) -> dict[str, str] | None:
        """Return the first and last time as ISO text; None if the store has no times."""
        return None if self.last < 0 else {"first": iso_time(self.first), "last": iso_time(self.last)}

    def new_items(self) -> list[dict[str, Any]]:
        """Return for each day with steps: its date, steps, items first seen on it, and the share of its steps on these."""
        seen = np.flatnonzero(self.first_seen[FIRST_ITEM_ROW:] < np.iinfo(np.int64).max) + FIRST_ITEM_ROW
        day = self.first_seen[seen] // DAY
        new = np.bincount(day, minlength=DAYS)
        new_steps = np.bincount(day, self.first_day_steps[seen], DAYS)
        return [
            {
                "day": iso_time(int(number) * DAY)[:10],
                "steps": int(self.steps_by_day[number]),
                "new_items": int(new[number]),
                "share": float(new_steps[number] / self.steps_by_day[number]),
            }
            for number in np.flatnonzero(self.steps_by_day)
        ]

    def outcomes(self) -> list[dict[str, Any]]:
        """Return for each behaviour that ends sessions: its name, how many end with it, and their mean length."""
        return [
            {"behaviour": name, "sessions": sessions, "mean_length": steps / sessions}
            for name, sessions, steps in zip(
                self.behaviours.names, self.ends.tolist(), self.end_lengths.tolist(), strict=True
            )
            if sessions
        ]

    def heaviest_users(self, store: Store) -> dict[str, list[dict[str, Any]]]:
        """Return for each part with sessions its heaviest users: name, sessions, steps, and share of its sessions."""
        names = store.table("users.parquet")["user"]
        return {
            part: [
                {
                    "user": names[user].as_py(),
                    "sessions": sessions,
                    "steps": steps,
                    "share": sessions / store.n_sessions(part),
                }
                for sessions, steps, user in users
            ]
            for part, users in self.top_users.items()
            if users
        }

    def warnings(self, store: Store) -> list[str]:
        """Return what is probably wrong with the log or how it was read, one sentence each."""
        found = []
        if self.last >= 0 and (sentence := early_start(self.first)):
            found.append(sentence)
        for part, users in self.heaviest_users(store).items():
            n_users = max(int(store.manifest["counts"]["parts"][part].get("users", 1)), 1)
            if n_users > 1 and users[0]["share"] > max(HEAVY_SHARE, 2 / n_users) and users[0]["sessions"] >= HEAVY_SESSIONS:
                found.append(
                    f"User {users[0]['user']!r} has {users[0]['share']:.0%} of the sessions of part {part}; "
                    "prepare again with --max-per-user, or leave out rows of machines."
                )
        if self.further_behaviours > SEVERAL_SHARE * self.items_of_sessions:
            found.append(
                f"{self.items_of_sessions:,} items of sessions have {self.further_behaviours:,} further behaviours there, "
                "each a step of its own. If these are reports on one impression (shown, clicked, bought), keep the last row "
                "of each item in a visit (docs/data.md)."
            )
        if conflicts := store.manifest["counts"].get("item_conflicts", 0):
            found.append(
                f"{conflicts:,} items have several rows in the item table that contradict each other; the smallest value "
                "was taken: keep one row per item."
            )
        if sentence := only_reranks(store.manifest):
            found.append(sentence)
        return found


def early_start(first: int | None) -> str | None:
    """Return a sentence if a log's first step, in microseconds since 1970, was probably read in the wrong unit of time."""
    if first is None or first >= PLAUSIBLE:
        return None
    return (
        f"The first step is of {iso_time(first)[:10]}, before 1995: times were probably read in the wrong unit; "
        "prepare again with --time-unit or --time-format."
    )


def first_time(store: Store) -> int | None:
    """Return the time of a store's first step by the statistics of its files; no row is read. None without times."""
    first = None
    for name in (name for name in store.manifest["files"] if name.startswith("steps-")):
        metadata = pq.read_metadata(store.path / name)
        if "time" not in metadata.schema.names:
            return None
        column = metadata.schema.names.index("time")
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(column).statistics
            if statistics is not None and statistics.has_min_max:
                first = int(statistics.min) if first is None else min(first, int(statistics.min))
    return first


def iso_time(time: int) -> str:
    """Return microseconds since 1970 as ISO text, in whole seconds."""
    return datetime.fromtimestamp(time // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
