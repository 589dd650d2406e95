"""Writing a store: shards of whole users, the catalogue, the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mbcal.data.store_format import SCHEMA, Part, Shard
from mbcal.storage.catalog_io import catalog_table
from mbcal.storage.manifest import file_entry, write_manifest
from mbcal.types import Behaviours, Catalog, Sessions

_ROW_GROUP = 1 << 20


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
        self.files[name] = {"rows": rows, **file_entry(path)}

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


def write_sessions(folder: Path, sessions: Sessions, part: Part = "train") -> Path:
    """Write sessions as a store with one part and without user names, such as for the workers of an engine.

    Every session is written with its own history. Timestamps and propensities are left out.

    Args:
        folder: Where; must not exist.
        sessions: What.
        part: The part they are in.

    Returns:
        The folder.
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
            candidates=None if candidates is None else candidates.reshape(len(sessions), -1),
        ),
    )
    writer.catalog(sessions.catalog)
    options: dict[str, Any] = {"horizon": sessions.horizon, "history": sessions.history_items.shape[1]}
    if candidates is not None and candidates.ndim == 3:
        options["candidates_per_step"] = True
    counts = {"sessions": len(sessions)}
    writer.finish(sessions.behaviour_set, source="sessions", options=options, source_hashes={}, rejected={}, counts=counts)
    return folder
