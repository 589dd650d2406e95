"""Models on disk: safetensors for numbers, Parquet for the catalogue, JSON for the rest; written whole, no pickle.

::

    MODEL/manifest.json            kind, schema, what the model says of itself, sha256 of every file
    MODEL/items.parquet            the catalogue it was fitted on, as in a store
    MODEL/weights.safetensors      its networks
    MODEL/optimiser.safetensors    where Adam stands, so that a warm start goes on exactly as if nothing had happened
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mbcal.errors import ModelError
from mbcal.storage.atomic import AtomicFolder
from mbcal.storage.catalog_io import catalog_table, parquet_table, table_catalog
from mbcal.storage.manifest import ArtifactKind, file_entry, write_manifest
from mbcal.types import Behaviours, Catalog
from mbcal.version import __version__

SCHEMA = 1

MODEL_KIND = ArtifactKind("model", SCHEMA, "make a model with 'mbcal fit'", "fit the model again", ModelError)
SIMULATOR_KIND = ArtifactKind(
    "simulator", SCHEMA, "make a simulator with 'mbcal simulator'", "fit the simulator again", ModelError
)
CHECKPOINT_KIND = ArtifactKind(
    "checkpoint", SCHEMA, "a fit writes checkpoints", "remove it and start the fit again", ModelError
)

Arrays = Mapping[str, NDArray[Any]]


def write_artifact(
    out: str | Path,
    kind: ArtifactKind,
    said: Mapping[str, Any],
    files: Mapping[str, Arrays],
    catalog: Catalog | None = None,
    overwrite: bool = False,
    extra: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a folder of this kind; `files` maps names to the arrays within, `extra` to bytes as they are."""
    from safetensors.numpy import save

    with AtomicFolder(Path(out), kind.noun, overwrite) as folder:
        for name, arrays in files.items():
            (folder.build / f"{name}.safetensors").write_bytes(
                save({key: np.asarray(array, order="C") for key, array in arrays.items()})
            )
        if catalog is not None:
            pq.write_table(catalog_table(catalog), folder.build / "items.parquet", compression="zstd")
        for name, data in (extra or {}).items():
            (folder.build / name).write_bytes(data)
        listed = {file.name: file_entry(file) for file in sorted(folder.build.iterdir())}
        whole = {"kind": kind.noun, "schema": kind.schema, "mbcal": __version__, **said, "files": listed}
        write_manifest(folder.build, whole)
        return folder.publish()


class Artifact:
    """Such a folder opened for reading; every file is checked against its hash when it is read."""

    def __init__(self, path: Path, kind: ArtifactKind, manifest: Mapping[str, Any]) -> None:
        self.path, self.kind, self.manifest = path, kind, manifest

    @classmethod
    def open(cls, path: str | Path, kind: ArtifactKind) -> Self:
        return cls(Path(path), kind, kind.open(Path(path)))

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of one safetensors file."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            loaded: dict[str, NDArray[Any]] = load(self.kind.read(self.path, self.manifest, f"{name}.safetensors"))
        except (KeyError, SafetensorError) as error:
            raise self.damage_error(f"{name}.safetensors: {error}") from error
        return loaded

    def damage_error(self, what: str) -> ModelError:
        """The error to raise for content that does not fit."""
        return ModelError(f"{self.path}: damaged ({what}); {self.kind.remedy}")

    @property
    def catalog(self) -> Catalog:
        return table_catalog(self._items)

    @property
    def names(self) -> Catalog:
        """The catalogue without features, which only those need who learn: several times cheaper to make."""
        return table_catalog(self._items, features=False)

    @property
    def _items(self) -> pa.Table:
        return parquet_table(self.kind.read(self.path, self.manifest, "items.parquet"))

    @property
    def behaviours(self) -> Behaviours:
        said = self.manifest["behaviours"]
        return Behaviours(tuple(said["names"]), tuple(said["rewards"]), tuple(said["cuts"]))
