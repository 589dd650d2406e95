"""Sessions on disk: a folder of Parquet and a manifest, written whole and read with suspicion.

::

    DIR/manifest.json               schema, options, counts, behaviours, source hashes, sha256 of every file, content hash
    DIR/items.parquet               item (, title), and one column a feature, in catalogue order
    DIR/users.parquet               user, part, in index order; a part's users are contiguous
    DIR/steps-PART-0000.parquet     every interaction, user by user in time order: item row, behaviour, time, (propensity)
    DIR/sessions-PART-0000.parquet  user, start, length, history_length (, candidates, history): a session is the steps
                                    [start, start + length), its history the history_length steps before start, or,
                                    where the log's own sessions may overlap, the steps named in history
    DIR/rejected.parquet            rows set aside, as text, with the reason

Steps are stored once: histories overlap sessions, so pointing beats copying. Files hold whole users, are cut by counted
rows and carry no clock and no path, so equal input and options give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mbcal.errors import OptionError, StoreError, nearest
from mbcal.folder import Kind, entry, write_manifest
from mbcal.types import SPECIAL, Behaviours, Catalog, Feature, Sessions

SCHEMA = 1
"""Raised whenever a store written before can no longer be read as it was."""

KIND = Kind("store", SCHEMA, "make a store with 'mbcal prepare'", "prepare the store again", StoreError)

Part = Literal["simulator", "train", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Who a user is for: fitting the simulator, training agents, or testing. Never two of them."""

AGENT_FEATURES = {"newsfeed": ("category", "type", "source"), "kuairand": ("tag", "video_type", "upload_type")}
"""By kind of store; elsewhere agents go by ids alone, as in the paper."""

_ROW_GROUP = 1 << 20


@dataclass(frozen=True)
class Shard:
    """Some whole users of one part: their steps, and the sessions that point into them."""

    items: NDArray[np.int32]  # (S,)
    behaviours: NDArray[np.uint8]  # (S,)
    timestamps: NDArray[np.int64] | None  # (S,)
    propensities: NDArray[np.float32] | None  # (S,)
    user: NDArray[np.int32]  # (N,)
    start: NDArray[np.int64]  # (N,)
    length: NDArray[np.int32]  # (N,)
    history_length: NDArray[np.int32]  # (N,)
    candidates: NDArray[np.int32] | None = None  # (N, C)
    history: NDArray[np.int64] | None = None  # (N, H): steps of each history, where they do not just precede it

    def dense(self, catalog: Catalog, behaviours: Behaviours, horizon: int, history: int) -> Sessions:
        """Pad to rectangles."""
        steps, mask = _window(self.start, self.length, horizon)
        before, history_mask = _window(self.start - self.history_length, self.history_length, history)
        if self.history is not None:
            before = self.history

        def pick(column: NDArray[Any], index: NDArray[np.int64], valid: NDArray[np.bool_]) -> Any:
            taken = column[np.minimum(index, max(len(column) - 1, 0))]
            taken[~valid] = 0
            return taken

        return Sessions(
            catalog=catalog,
            behaviour_set=behaviours,
            items=pick(self.items, steps, mask),
            behaviours=pick(self.behaviours, steps, mask),
            length=self.length,
            user=self.user,
            history_items=pick(self.items, before, history_mask),
            history_behaviours=pick(self.behaviours, before, history_mask),
            history_length=self.history_length,
            candidates=self.candidates,
            propensities=None if self.propensities is None else pick(self.propensities, steps, mask),
            timestamps=None if self.timestamps is None else pick(self.timestamps, steps, mask),
        )


def _window(start: NDArray[np.int64], length: NDArray[np.int32], width: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(N, width) step numbers from each start, and which of them lie within the length."""
    return start[:, None] + np.arange(width), np.arange(width) < length[:, None]


class StoreWriter:
    """Fills a folder with the files of a store; `finish` writes the manifest that makes it one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}
        """What the manifest will say of each; what was written elsewhere and put into the folder is added here."""

    def table(self, name: str, table: pa.Table, deltas: Sequence[str] = ()) -> None:
        """One Parquet file, remembered with its hash; the columns named are stored as differences."""
        self.stream(name, table.schema, table.to_batches(), deltas)

    def stream(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], deltas: Sequence[str] = ()) -> None:
        """The same from batches, of which no more than a row group is in memory; where they end does not show."""
        path, rows, waiting = self.folder / name, 0, pa.Table.from_batches([], schema)
        encoding: dict[str, Any] = {
            "use_dictionary": [column for column in schema.names if column not in deltas],
            "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        }
        with pq.ParquetWriter(path, schema, compression="zstd", **encoding) as writer:
            for batch in batches:
                rows += batch.num_rows
                waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch], schema)])
                while waiting.num_rows >= _ROW_GROUP:
                    writer.write_table(waiting.slice(0, _ROW_GROUP), _ROW_GROUP)
                    waiting = waiting.slice(_ROW_GROUP)
            if waiting.num_rows or rows == 0:
                writer.write_table(waiting, _ROW_GROUP)
        self.files[name] = {"rows": rows, **entry(path)}

    def digest(self, name: str) -> str:
        """sha256 of a file already written."""
        return str(self.files[name]["sha256"])

    def shard(self, part: Part, number: int, shard: Shard) -> None:
        """The two files of one shard, the `number`-th of its part."""
        steps: dict[str, NDArray[Any]] = {"item": shard.items, "behaviour": shard.behaviours}
        if shard.timestamps is not None:
            steps["time"] = shard.timestamps
        if shard.propensities is not None:
            steps["propensity"] = shard.propensities
        sessions: dict[str, Any] = {
            "user": shard.user,
            "start": shard.start,
            "length": shard.length,
            "history_length": shard.history_length,
        }
        for name, array in (("candidates", shard.candidates), ("history", shard.history)):
            if array is not None and array.shape[1]:
                sessions[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        # as measured on real logs: small codes and times shrink most, and fastest, as differences
        deltas = [column for column in ("behaviour", "time") if column in steps]
        self.table(f"steps-{part}-{number:04d}.parquet", pa.table(steps), deltas)
        self.table(f"sessions-{part}-{number:04d}.parquet", pa.table(sessions), ["user", "start"])

    def catalog(self, catalog: Catalog) -> None:
        """The items and their features, as text."""
        self.table("items.parquet", catalog_table(catalog))

    def finish(
        self,
        behaviours: Behaviours,
        *,
        source: str,
        options: Mapping[str, Any],
        source_hashes: Mapping[str, str],
        rejected: Mapping[str, int],
        counts: Mapping[str, Any],
    ) -> None:
        """The manifest, last."""
        whole: dict[str, Any] = {
            "schema": SCHEMA,
            "source": source,
            "options": options,
            "source_hashes": source_hashes,
            "rejected": rejected,
            "counts": counts,
            "behaviours": {"names": behaviours.names, "rewards": behaviours.rewards, "cuts": behaviours.cuts},
            "files": self.files,
        }
        write_manifest(self.folder, whole)


@dataclass(frozen=True)
class Store:
    """A store opened for reading; every file is checked against its hash when it is read."""

    path: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a folder written by `mbcal prepare`."""
        path = Path(path)
        return cls(path, KIND.open(path))

    def table(self, name: str) -> pa.Table:
        """One file of the store, its hash checked."""
        data = KIND.read(self.path, self.manifest, name)
        return parquet_table(data)

    def verify(self) -> None:
        """Check every file against its hash."""
        for name in self.manifest["files"]:
            self.table(name)

    @property
    def agent_features(self) -> tuple[str, ...]:
        """What agents see of an item beside its id unless told otherwise: less than simulators do, on purpose."""
        usual = AGENT_FEATURES.get(self.manifest["source"], ())
        return tuple(name for name in usual if name in self.catalog.features)

    @property
    def horizon(self) -> int:
        return int(self.manifest["options"]["horizon"])

    @property
    def history(self) -> int:
        return int(self.manifest["options"]["history"])

    @cached_property
    def behaviours(self) -> Behaviours:
        said = self.manifest["behaviours"]
        return Behaviours(tuple(said["names"]), tuple(said["rewards"]), tuple(said["cuts"]))

    @cached_property
    def catalog(self) -> Catalog:
        return table_catalog(self.table("items.parquet"))

    @cached_property
    def users(self) -> tuple[str, ...]:
        """Names of the users, by index."""
        return tuple(self.table("users.parquet")["user"].to_pylist())

    def shards(self, part: Part) -> Iterator[Shard]:
        """The shards of a part, one in memory at a time."""
        return (self._shard(name) for name, _ in self._counted(part))

    def _counted(self, part: Part) -> list[tuple[str, int]]:
        """The files of a part's steps, in order, and how many sessions point into each."""
        if part not in PARTS:
            raise OptionError(f"part {part!r} is unknown; parts are {', '.join(PARTS)}.{nearest(part, PARTS)}")
        files = self.manifest["files"]
        names = [name for name in sorted(files) if name.startswith(f"steps-{part}-")]
        return [(name, int(files[name.replace("steps", "sessions")]["rows"])) for name in names]

    def _shard(self, name: str) -> Shard:
        steps, sessions = self.table(name), self.table(name.replace("steps", "sessions"))
        return Shard(
            items=_numpy(steps["item"]),
            behaviours=_numpy(steps["behaviour"]),
            timestamps=_numpy(steps["time"]) if "time" in steps.column_names else None,
            propensities=_numpy(steps["propensity"]) if "propensity" in steps.column_names else None,
            user=_numpy(sessions["user"]),
            start=_numpy(sessions["start"]),
            length=_numpy(sessions["length"]),
            history_length=_numpy(sessions["history_length"]),
            candidates=_rectangle(sessions, "candidates"),
            history=_rectangle(sessions, "history"),
        )

    def count(self, part: Part) -> int:
        """Sessions of a part."""
        return sum(count for _, count in self._counted(part))

    def sessions(self, part: Part, first: int = 0, last: int | None = None) -> Sessions:
        """Sessions of a part, padded to the store's horizon: all, or those from `first` to before `last`, of which only the
        shards that hold them are read."""
        dense, before = [], 0
        for name, count in self._counted(part):
            begin, end = max(first - before, 0), count if last is None else min(last - before, count)
            if begin < end:
                dense.append(self._shard(name).dense(self.catalog, self.behaviours, self.horizon, self.history)[begin:end])
            before += count
        if not dense:
            raise StoreError(f"{self.path}: no sessions for part {part!r}; prepare with more users or another --split")
        return replace(Sessions.concat(dense), origin=self.manifest["content_hash"])

    def share(self, part: Part, rank: int, size: int) -> Sessions:
        """What one of `size` workers holds of a part: about as many sessions each, in order, no user with two of them."""
        total = self.count(part)
        first, last = (self._user_edge(part, total * number // size) for number in (rank, rank + 1))
        return self.sessions(part, first, last) if first < last else self.sessions(part, 0, 1)[:0]

    def _user_edge(self, part: Part, at: int) -> int:
        """The first session from `at` on that is another user's than the one before; users are whole within a shard."""
        before = 0
        for name, count in self._counted(part):
            if before < at < before + count:
                users = _numpy(self.table(name.replace("steps", "sessions"))["user"])[at - before - 1 :]
                return at + int(np.append(users[1:] != users[0], True).argmax())
            before += count
        return at


def write_sessions(folder: Path, sessions: Sessions, part: Part = "train") -> Path:
    """Sessions as a store with one part and no names of users, for whoever reads stores: each with a history of its own.

    Candidates are kept where a session had one set of them.
    """
    folder.mkdir(parents=True)
    both = np.concatenate([sessions.history_mask, sessions.mask], 1)  # (N, H + T), and so the steps, session by session

    def steps(history: Any, later: Any) -> Any:
        return np.concatenate([history, later], 1)[both]

    ends = np.cumsum(sessions.history_length + sessions.length, dtype=np.int64)
    candidates = sessions.candidates
    writer = StoreWriter(folder)
    writer.shard(
        part,
        0,
        Shard(
            items=steps(sessions.history_items, sessions.items),
            behaviours=steps(sessions.history_behaviours, sessions.behaviours),
            timestamps=None,
            propensities=None,
            user=sessions.user,
            start=ends - sessions.length,
            length=sessions.length,
            history_length=sessions.history_length,
            candidates=candidates if candidates is not None and candidates.ndim == 2 else None,
        ),
    )
    writer.catalog(sessions.catalog)
    options = {"horizon": sessions.horizon, "history": sessions.history_items.shape[1]}
    counts = {"sessions": len(sessions)}
    writer.finish(sessions.behaviour_set, source="sessions", options=options, source_hashes={}, rejected={}, counts=counts)
    return folder


def parquet_table(data: bytes) -> pa.Table:
    """A Parquet file in memory as a table."""
    # without Arrow's thread pool: a process that ends soon after it was woken aborts now and then (pyarrow 26)
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def catalog_table(catalog: Catalog) -> pa.Table:
    """Items, titles and features as text, in catalogue order."""
    rows = range(SPECIAL, catalog.rows)
    columns: dict[str, Any] = {"item": pa.array(catalog.items, pa.string())}
    if catalog.titles:
        columns["title"] = pa.array(catalog.titles, pa.string())
    for name, feature in catalog.features.items():
        if feature.offsets is None:
            columns[f"feature:{name}"] = pa.array([(*feature.values(row), None)[0] for row in rows], pa.string())
        else:
            columns[f"feature:{name}"] = pa.array([list(feature.values(row)) for row in rows], pa.list_(pa.string()))
    return pa.table(columns)


def table_catalog(table: pa.Table, features: bool = True) -> Catalog:
    """The catalogue such a table was made of, with or without what describes its items."""
    described = {}
    for column in table.column_names if features else ():
        if column.startswith("feature:"):
            name, values = column.removeprefix("feature:"), table[column].to_pylist()
            many = pa.types.is_list(table.schema.field(column).type)
            described[name] = Feature.multi(name, [row or () for row in values]) if many else Feature.single(name, values)
    titles = table["title"].to_pylist() if "title" in table.column_names else ()
    return Catalog(tuple(table["item"].to_pylist()), described, tuple(titles))


def _rectangle(table: pa.Table, name: str) -> Any:
    """A column of lists, all equally long, as an array; None where there is none."""
    if name not in table.column_names:
        return None
    lists = table[name].combine_chunks()
    return np.array(lists.flatten().to_numpy()).reshape(len(lists), lists.type.list_size)


def _numpy(column: pa.ChunkedArray) -> Any:
    """A writable array of its own, so that torch can share its memory."""
    return np.array(column.to_numpy())
