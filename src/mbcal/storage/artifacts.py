"""Models, simulators and checkpoints on disk: safetensors for arrays, Parquet for the catalogue, JSON for the rest.

::

    MODEL/manifest.json            kind, schema, entries of the model, sha256 of every file
    MODEL/items.parquet            the catalogue it was fitted on, as in a store
    MODEL/weights.safetensors      its networks
    MODEL/optimiser.safetensors    the state of Adam, so that a warm start continues exactly
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mbcal.errors import ModelError
from mbcal.storage.atomic import AtomicFolder
from mbcal.storage.catalog_io import catalog_table, names_catalog, parquet_table, table_catalog
from mbcal.storage.manifest import ArtifactKind, file_entry, write_manifest
from mbcal.types import Behaviours, Catalog
from mbcal.version import __version__

SCHEMA = 1
"""Version of the format of models, simulators and checkpoints."""

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
    entries: Mapping[str, Any],
    files: Mapping[str, Arrays],
    catalog: Catalog | None = None,
    overwrite: bool = False,
    extra: Mapping[str, bytes] | None = None,
) -> Path:
    """Write an artifact atomically.

    Args:
        out: The folder.
        kind: What it is.
        entries: The artifact's own entries in the manifest, as JSON can hold them.
        files: Arrays by file, each written as `NAME.safetensors`.
        catalog: Written as `items.parquet`.
        overwrite: Replace an artifact of the same kind.
        extra: Other files by full name, as bytes.

    Returns:
        The folder's absolute path.

    Raises:
        OutputError: If the folder exists or cannot be written.
    """
    from safetensors.numpy import save

    with AtomicFolder(Path(out), kind.noun, overwrite) as folder:
        for name, arrays in files.items():
            data = save({key: np.asarray(array, order="C") for key, array in arrays.items()})
            (folder.build / f"{name}.safetensors").write_bytes(data)
        if catalog is not None:
            pq.write_table(catalog_table(catalog), folder.build / "items.parquet", compression="zstd")
        for name, data in (extra or {}).items():
            (folder.build / name).write_bytes(data)
        listed = {file.name: file_entry(file) for file in sorted(folder.build.iterdir())}
        header = {"kind": kind.noun, "schema": kind.schema, "mbcal": __version__}
        write_manifest(folder.build, {**header, **entries, "files": listed})
        return folder.publish()


class Artifact:
    """An artifact opened for reading. Every file is checked against its hash when it is read.

    Args:
        path: The folder.
        kind: What it is.
        manifest: Its manifest, as `kind.open` returned it.
    """

    def __init__(self, path: Path, kind: ArtifactKind, manifest: Mapping[str, Any]) -> None:
        self.path, self.kind, self.manifest = path, kind, manifest

    @classmethod
    def open(cls, path: str | Path, kind: ArtifactKind) -> Self:
        """Open a folder; raises ModelError if it is not an artifact of this kind, or is damaged."""
        return cls(Path(path), kind, kind.open(Path(path)))

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of `NAME.safetensors`; raises ModelError if it is missing or damaged."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays: dict[str, NDArray[Any]] = load(self.kind.read(self.path, self.manifest, f"{name}.safetensors"))
        except (KeyError, SafetensorError) as error:
            raise self.damage_error(f"{name}.safetensors: {error}") from error
        return arrays

    def damage_error(self, problem: str) -> ModelError:
        """Return the error to raise for content that is not valid."""
        return ModelError(f"{self.path}: damaged ({problem}); {self.kind.remedy}")

    @property
    def catalog(self) -> Catalog:
        """The catalogue with all features."""
        return table_catalog(parquet_table(self.items_file))

    @property
    def names(self) -> Catalog:
        """The catalogue without features: enough for scoring, and several times faster to load."""
        return names_catalog(self.items_file)

    @property
    def items_file(self) -> bytes:
        """The content of `items.parquet`."""
        return self.kind.read(self.path, self.manifest, "items.parquet")

    @property
    def behaviours(self) -> Behaviours:
        return Behaviours.from_dict(self.manifest["behaviours"])
