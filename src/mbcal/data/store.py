"""Sessions on disk: a folder of Parquet files and a manifest, written atomically and checked when read.

::

    DIR/manifest.json               schema, options, counts, behaviours, source hashes, sha256 of every file, content hash
    DIR/items.parquet               item (, title), one column per feature (, first_seen), in catalogue order
    DIR/users.parquet               user, part (, user:FIELD), in index order; the users of a part are contiguous
    DIR/steps-PART-0000.parquet     every interaction, user by user in time order: item row, behaviour, time (, propensity)
                                    (, context:FIELD); fields are encoded, `storage.field_columns` says how
    DIR/sessions-PART-0000.parquet  user, start, length, history_length (, candidates, history): a session is the steps
                                    [start, start + length), its history the history_length steps before start, or,
                                    where the log's own sessions may overlap, the steps listed in history
    DIR/rejected.parquet            rejected rows, as text, with the reason

Steps are stored once, since histories overlap sessions. A file holds all steps of its users. Files contain no time of
writing and no path, so equal input and options give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mbcal.data.store_format import FIRST_SEEN, PARTS, STORE_KIND, Part, Shard
from mbcal.errors import OptionError, StoreError, nearest
from mbcal.storage.catalog_io import parquet_table, table_catalog
from mbcal.storage.field_columns import CONTEXT_PREFIX, USER_PREFIX, field_rows
from mbcal.types import FIRST_ITEM_ROW, Behaviours, Catalog, SessionFields, Sessions
from mbcal.types.item_life import NEVER, ItemLife

AGENT_FEATURES: Mapping[str, tuple[str, ...]] = {
    "newsfeed": ("category", "type", "source"),
    "kuairand": ("tag", "video_type", "upload_type"),
    "movielens": (),
    "netflix": (),
    "sessions": (),
}
"""Layout -> features that agents use by default: none for ratings, as in the paper. Of other layouts they use all features,
since those were named at `prepare`."""


@dataclass(frozen=True, repr=False)
class Store:
    """A store opened for reading. Every file is checked against its hash when it is read."""

    path: Path
    """Its folder."""
    manifest: Mapping[str, Any]
    """Content of manifest.json."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a folder written by `mbcal prepare`.

        Raises:
            StoreError: If the folder is not a store, or the store is damaged or of another schema.
        """
        path = Path(path)
        return cls(path, STORE_KIND.open(path))

    def __repr__(self) -> str:
        counts = self.manifest["counts"]
        sizes = (
            f"{counts['sessions']:,} sessions of {counts['users']:,} users"
            if "users" in counts
            else f"{counts['sessions']:,} sessions"
        )
        rejected = sum(self.manifest.get("rejected", {}).values())
        lost = f", {rejected:,} rows rejected (rejected.parquet)" if rejected else ""
        return f"<Store {str(self.path)!r}: {sizes}, source {self.manifest['source']}{lost}>"

    def table(self, name: str) -> pa.Table:
        """Read one file; raises StoreError if it is missing or damaged."""
        return parquet_table(STORE_KIND.read(self.path, self.manifest, name))

    def verify(self) -> None:
        """Check every file against its hash; raises StoreError for the first that is missing or damaged."""
        for name in self.manifest["files"]:
            self.table(name)

    @property
    def agent_features(self) -> tuple[str, ...]:
        """Features that agents use by default, fewer than simulators do on purpose."""
        features = self.catalog.features
        return tuple(name for name in AGENT_FEATURES.get(self.manifest["source"], tuple(features)) if name in features)

    @property
    def content_hash(self) -> str:
        """Hash of everything in the store."""
        return str(self.manifest["content_hash"])

    @property
    def horizon(self) -> int:
        """Most steps in a session, T."""
        return int(self.manifest["options"]["horizon"])

    @property
    def history(self) -> int:
        """Most steps in a history, H."""
        return int(self.manifest["options"]["history"])

    @cached_property
    def behaviours(self) -> Behaviours:
        """The behaviours: names, rewards, cut points, and which are terminal."""
        return Behaviours.from_dict(self.manifest["behaviours"])

    @cached_property
    def catalog(self) -> Catalog:
        """The items and their features, and when they can be shown, if the store keeps that."""
        table = self.table("items.parquet")
        catalog = table_catalog(table)
        if FIRST_SEEN not in table.column_names:
            return catalog
        first_seen = np.full(catalog.n_rows, NEVER)
        first_seen[FIRST_ITEM_ROW:] = table[FIRST_SEEN].to_numpy()
        return replace(catalog, life=ItemLife(first_seen, self.manifest["options"].get("alive")))

    @cached_property
    def users(self) -> tuple[str, ...]:
        """Names of the users, by index."""
        return tuple(self.table("users.parquet")["user"].to_pylist())

    @cached_property
    def fields(self) -> SessionFields:
        """Fields of users and steps, with the statistics of the train part."""
        return SessionFields.from_record(self.manifest.get("fields"))

    @cached_property
    def _user_features(self) -> NDArray[np.float32]:
        """(users, U) encoded fields of all users."""
        return field_rows(self.fields.user, self.table("users.parquet"), USER_PREFIX)

    def shards(self, part: Part) -> Iterator[Shard]:
        """Iterate over the shards of a part, one in memory at a time."""
        return (self._shard(name) for name, _ in self._session_counts(part))

    def _session_counts(self, part: Part) -> list[tuple[str, int]]:
        """Return the step files of a part, in order, each with its number of sessions."""
        if part not in PARTS:
            raise OptionError(f"part {part!r} is unknown; parts are {', '.join(PARTS)}.{nearest(part, PARTS)}")
        files = self.manifest["files"]
        names = [name for name in sorted(files) if name.startswith(f"steps-{part}-")]
        return [(name, int(files[name.replace("steps", "sessions")]["rows"])) for name in names]

    def _shard(self, name: str) -> Shard:
        steps, sessions = self.table(name), self.table(name.replace("steps", "sessions"))
        fields, user_features = self.fields, None
        if len(fields.user):
            in_sessions = f"{USER_PREFIX}{fields.user.names[0]}" in sessions.column_names  # as `write_sessions` has them
            user_features = (
                field_rows(fields.user, sessions, USER_PREFIX)
                if in_sessions
                else self._user_features[_numpy(sessions["user"])]
            )
        return Shard(
            items=_numpy(steps["item"]),
            behaviours=_numpy(steps["behaviour"]),
            timestamps=_numpy(steps["time"]) if "time" in steps.column_names else None,
            propensities=_numpy(steps["propensity"]) if "propensity" in steps.column_names else None,
            user=_numpy(sessions["user"]),
            start=_numpy(sessions["start"]),
            length=_numpy(sessions["length"]),
            history_length=_numpy(sessions["history_length"]),
            candidates=self._candidates(sessions),
            history=_rectangle(sessions, "history"),
            context=field_rows(fields.context, steps, CONTEXT_PREFIX) if len(fields.context) else None,
            user_features=user_features,
        )

    def _candidates(self, sessions: pa.Table) -> NDArray[np.int32] | None:
        """Return candidates (N, C), or (N, T, C) if each step has its own; None if there are none."""
        candidates: NDArray[np.int32] | None = _rectangle(sessions, "candidates")
        if candidates is not None and self.manifest["options"].get("candidates_per_step"):
            return candidates.reshape(len(candidates), self.horizon, -1)
        return candidates

    def n_sessions(self, part: Part) -> int:
        """Return the number of sessions of a part."""
        return sum(count for _, count in self._session_counts(part))

    def sessions(self, part: Part, start: int = 0, stop: int | None = None) -> Sessions:
        """Read the sessions of a part, padded to the store's horizon.

        Args:
            part: `simulator`, `train` or `test`.
            start: The first session to read.
            stop: The session to stop before; None reads to the end. Only the shards that hold these sessions are read.

        Returns:
            The sessions. Their `origin` is the store's content hash.

        Raises:
            OptionError: If there is no such part.
            StoreError: If the part has no sessions in that range, or a file is damaged.
        """
        blocks, before = [], 0
        for name, count in self._session_counts(part):
            begin, end = max(start - before, 0), count if stop is None else min(stop - before, count)
            if begin < end:
                shard = self._shard(name)
                widths = (self.horizon, self.history)
                blocks.append(shard.to_sessions(self.catalog, self.behaviours, *widths, self.fields)[begin:end])
            before += count
        if not blocks:
            raise StoreError(f"{self.path}: no sessions for part {part!r}; prepare with more users or another --split")
        return replace(Sessions.concat(blocks), origin=self.manifest["content_hash"])

    def session_users(self, part: Part) -> NDArray[np.int32]:
        """Return the user of every session of a part, (N,), without reading its steps."""
        users = [_numpy(self.table(name.replace("steps", "sessions"))["user"]) for name, _ in self._session_counts(part)]
        return np.concatenate(users) if users else np.zeros(0, np.int32)

    def worker_sessions(self, part: Part, rank: int, size: int) -> Sessions:
        """Read the share of one worker: about as many sessions for each, consecutive, and all sessions of a user together.

        Args:
            part: `simulator`, `train` or `test`.
            rank: Number of the worker, from 0.
            size: Number of workers.
        """
        total = self.n_sessions(part)
        first, last = (self._user_edge(part, total * number // size) for number in (rank, rank + 1))
        return self.sessions(part, first, last) if first < last else self.sessions(part, 0, 1)[:0]

    def _user_edge(self, part: Part, at: int) -> int:
        """Return the first session from `at` on whose user differs from that of the session before it."""
        before = 0
        for name, count in self._session_counts(part):
            if before < at < before + count:  # a user is never in two shards
                users = _numpy(self.table(name.replace("steps", "sessions"))["user"])[at - before - 1 :]
                return at + int(np.append(users[1:] != users[0], True).argmax())
            before += count
        return at


def _rectangle(table: pa.Table, name: str) -> Any:
    """Return a column of fixed-size lists as an array (N, size); None if there is no such column."""
    if name not in table.column_names:
        return None
    lists = table[name].combine_chunks()
    return np.array(lists.flatten().to_numpy()).reshape(len(lists), lists.type.list_size)


def _numpy(column: pa.ChunkedArray) -> Any:
    """Return a writable copy, so that torch can share its memory."""
    return np.array(column.to_numpy())
