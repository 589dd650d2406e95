"""Writing a store: shards, the catalogue and the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mbcal.data.store_format import SCHEMA, Part, Shard
from mbcal.storage.catalog_io import catalog_table
from mbcal.storage.field_columns import CONTEXT_PREFIX, USER_PREFIX, field_columns
from mbcal.storage.manifest import file_entry, write_manifest
from mbcal.types import NO_FIELDS, Behaviours, Catalog, SessionFields, Sessions

_ROW_GROUP = 1 << 20
"""Rows in a row group."""


class StoreWriter:
    """Writes the files of a store into a folder; `finish` writes the manifest, which makes it a store.

    Args:
        folder: An empty folder.
        fields: Fields of users and steps.
    """

    def __init__(self, folder: Path, fields: SessionFields = NO_FIELDS) -> None:
        self.folder, self.fields = folder, fields
        self.files: dict[str, dict[str, Any]] = {}
        """File name -> entry in the manifest. Add entries here for files that were put into the folder otherwise."""

    def table(self, name: str, table: pa.Table, deltas: Sequence[str] = ()) -> None:
        """Write a Parquet file.

        Args:
            name: File name.
            table: Content.
            deltas: Columns to store as differences.
        """
        self.stream(name, table.schema, table.to_batches(), deltas)

    def stream(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], deltas: Sequence[str] = ()) -> None:
        """Write a Parquet file from batches, at most one row group in memory.

        Row groups do not depend on the size of the batches, so equal rows give equal bytes.

        Args:
            name: File name.
            schema: Schema of all batches.
            batches: Content.
            deltas: Columns to store as differences.
        """
        path, rows, pending = self.folder / name, 0, pa.Table.from_batches([], schema)
        encoding: dict[str, Any] = {
            "use_dictionary": [column for column in schema.names if column not in deltas],
            "column_encoding": dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        }
        with pq.ParquetWriter(path, schema, compression="zstd", **encoding) as writer:
            for batch in batches:
                rows += batch.num_rows
                pending = pa.concat_tables([pending, pa.Table.from_batches([batch], schema)])
                while pending.num_rows >= _ROW_GROUP:
                    writer.write_table(pending.slice(0, _ROW_GROUP), _ROW_GROUP)
                    pending = pending.slice(_ROW_GROUP)
            if pending.num_rows or rows == 0:
                writer.write_table(pending, _ROW_GROUP)
        self.files[name] = {"rows": rows, **file_entry(path)}

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file that was written."""
        return str(self.files[name]["sha256"])

    def shard(self, part: Part, number: int, shard: Shard) -> None:
        """Write the two files of a shard, the `number`-th of its part."""
        steps: dict[str, Any] = {"item": shard.items, "behaviour": shard.behaviours}
        if shard.timestamps is not None:
            steps["time"] = shard.timestamps
        if shard.propensities is not None:
            steps["propensity"] = shard.propensities
        if shard.context is not None:
            steps |= field_columns(self.fields.context, shard.context, CONTEXT_PREFIX)
        sessions: dict[str, Any] = {
            "user": shard.user,
            "start": shard.start,
            "length": shard.length,
            "history_length": shard.history_length,
        }
        for name, array in (("candidates", shard.candidates), ("history", shard.history)):
            if array is not None and array.shape[1]:
                sessions[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
        if shard.user_features is not None:
            sessions |= field_columns(self.fields.user, shard.user_features, USER_PREFIX)
        # measured on real logs: differences are the smallest and fastest encoding of these
        deltas = [column for column in ("behaviour", "time") if column in steps]
        self.table(f"steps-{part}-{number:04d}.parquet", pa.table(steps), deltas)
        self.table(f"sessions-{part}-{number:04d}.parquet", pa.table(sessions), ["user", "start"])

    def catalog(self, catalog: Catalog) -> None:
        """Write the items and their features."""
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
        """Write the manifest, after all other files.

        Args:
            behaviours: Names, rewards and cut points.
            source: Layout of the log.
            options: Options with which the store was prepared.
            source_hashes: Hashes of the log and the item table.
            rejected: Reason -> rows.
            counts: Numbers of users, items, sessions and so on.
        """
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "source": source,
            "options": options,
            "source_hashes": source_hashes,
            "rejected": rejected,
            "counts": counts,
            "behaviours": behaviours.as_dict(),
            "files": self.files,
        }
        if self.fields:
            manifest["fields"] = self.fields.record()
        write_manifest(self.folder, manifest)


def write_sessions(folder: Path, sessions: Sessions, part: Part = "train") -> Path:
    """Write sessions as a store with one part and without user names, such as for the workers of an engine.

    Every session is written with its own history. Timestamps and propensities are left out.

    Args:
        folder: Folder to create; must not exist.
        sessions: N sessions.
        part: The part they are written to.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True)
    valid = np.concatenate([sessions.history_mask, sessions.mask], 1)  # (N, H + T)

    def steps(history: Any, later: Any) -> Any:
        return np.concatenate([history, later], 1)[valid]

    ends = np.cumsum(sessions.history_length + sessions.length, dtype=np.int64)
    candidates, context = sessions.candidates, sessions.context
    if context is not None:  # steps of histories have none
        unknown = np.zeros((*sessions.history_items.shape, context.shape[2]), np.float32)
        context = steps(unknown, context)
    writer = StoreWriter(folder, sessions.fields)
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
            candidates=None if candidates is None else candidates.reshape(len(sessions), -1),
            context=context,
            user_features=sessions.user_features,
        ),
    )
    writer.catalog(sessions.catalog)
    options: dict[str, Any] = {"horizon": sessions.horizon, "history": sessions.history_items.shape[1]}
    if candidates is not None and candidates.ndim == 3:
        options["candidates_per_step"] = True
    counts = {"sessions": len(sessions)}
    writer.finish(sessions.behaviour_set, source="sessions", options=options, source_hashes={}, rejected={}, counts=counts)
    return folder
