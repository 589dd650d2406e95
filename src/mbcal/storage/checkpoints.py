"""The latest state of a fit on disk, so that a fit that was killed resumes to the identical result."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mbcal.errors import ModelError, TrainingError
from mbcal.storage.artifacts import CHECKPOINT_KIND, Artifact, write_artifact
from mbcal.storage.manifest import listed_files

Arrays = dict[str, NDArray[Any]]


class Checkpoints:
    """A folder with the latest state of a fit. A new state is complete on disk before the previous one is removed.

    A fit has stages, one per network. Each has a record (plain values: epoch, batch, losses) and arrays (weights).

    Args:
        folder: Where states are written, in subfolders numbered from 000000.
        settings: What the fit was asked to do. A folder with checkpoints of other settings is refused.
        every: Seconds between checkpoints (`due`).

    Raises:
        TrainingError: If the folder holds checkpoints of other settings or data.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], every: float = 30.0) -> None:
        self.folder, self.every = Path(folder), every
        self.settings = json.loads(json.dumps(settings))  # as a manifest returns them
        self.latest: Path | None = None
        self._records: dict[str, Any] = {}
        self._arrays: dict[str, Arrays] = {}
        self._saved_at = time.monotonic()
        self._next_number = 0
        for path in sorted(self.folder.glob("[0-9]" * 6), reverse=True):
            self._next_number = max(self._next_number, int(path.name) + 1)
            try:
                self._open(path)
                break
            except ModelError:  # the machine died while this one was being written; the one before it is complete
                continue

    def _open(self, path: Path) -> None:
        artifact = Artifact.open(path, CHECKPOINT_KIND)
        if artifact.manifest["settings"] != self.settings:
            problem = f"{self.folder}: holds checkpoints of a fit with other settings or data"
            raise TrainingError(f"{problem}; run the same command as then to resume it, or remove the folder")
        self._arrays = {Path(name).stem: artifact.arrays(Path(name).stem) for name in artifact.manifest["files"]}
        self._records, self.latest = artifact.manifest["stages"], path

    @property
    def number(self) -> int:
        """Number of the checkpoint to resume from, counted from 1; 0 if there is none."""
        return int(self.latest.name) + 1 if self.latest else 0

    def stage(self, name: str) -> tuple[dict[str, Any] | None, Arrays]:
        """Return the record and the arrays of a stage; (None, {}) if it was not saved yet."""
        return self._records.get(name), self._arrays.get(name, {})

    def due(self) -> bool:
        """Whether `every` seconds have passed since the last checkpoint."""
        return time.monotonic() - self._saved_at > self.every

    def save(self, name: str, record: Mapping[str, Any], arrays: Arrays) -> None:
        """Write the state of one stage beside those of the stages before it.

        Args:
            name: The stage.
            record: Its plain values, as JSON can hold them.
            arrays: Its arrays by name.

        Raises:
            OutputError: If the disk is full or the folder cannot be written. The previous checkpoint stays.
        """
        self._records[name], self._arrays[name] = dict(record), arrays
        path = self.folder / f"{self._next_number:06d}"
        write_artifact(path, CHECKPOINT_KIND, {"settings": self.settings, "stages": self._records}, self._arrays)
        self._remove_all_but(path)
        self.latest, self._next_number, self._saved_at = path, self._next_number + 1, time.monotonic()

    def remove(self) -> None:
        """Remove all checkpoints: the fit is over and its result is safe elsewhere."""
        self._remove_all_but(None)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _remove_all_but(self, kept: Path | None) -> None:
        """Remove checkpoints and half-written ones. Other files in the folder stay."""
        for old in self.folder.glob("[0-9]" * 6):
            if old != kept and listed_files(old, CHECKPOINT_KIND.noun) is not None:
                shutil.rmtree(old, ignore_errors=True)
        for partial in self.folder.glob(f".{'[0-9]' * 6}.partial-*"):
            shutil.rmtree(partial, ignore_errors=True)


def checkpoint_folder(out: Path) -> Path:
    """Where a fit keeps its state until it is done: beside its result, hidden."""
    return out.resolve().parent / f".{out.name}.checkpoint"
