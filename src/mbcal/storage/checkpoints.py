"""The latest state of a fit on disk, so that one that was killed goes on to the identical result."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import ModelError, TrainingError
from mbcal.storage.artifacts import CHECKPOINT_KIND, Artifact, write_artifact
from mbcal.storage.manifest import listed_files


@dataclass
class Position:
    """Where a run stands; with weights and optimiser, all there is to know."""

    epoch: int = 0
    batch: int = 0
    """The next batch of the epoch."""
    total: float = 0.0
    count: float = 0.0
    """Loss summed over the epoch's steps so far."""
    best: float = float("inf")
    waited: int = 0
    """Epochs since the best."""
    done: bool = False
    curve: list[dict[str, float]] = field(default_factory=list)
    """One entry an epoch: loss in training, and held out."""


class Checkpoints:
    """A folder with the latest state of a fit. A new state is complete on disk before the one it replaces is removed."""

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], every: float = 30.0) -> None:
        self.folder, self.every = Path(folder), every
        self.settings = json.loads(json.dumps(settings))  # as the manifest will give them back
        self._saved = time.monotonic()
        self.latest: Path | None = None
        self._files: dict[str, dict[str, NDArray[Any]]] = {}
        self._said: dict[str, Any] = {}
        self._next = 0
        for path in sorted(self.folder.glob("[0-9]" * 6), reverse=True):
            self._next = max(self._next, int(path.name) + 1)
            try:
                self._open(path)
                break
            except ModelError:  # the machine died while this one was being written; the one before it is whole
                continue

    def _open(self, path: Path) -> None:
        bundle = Artifact.open(path, CHECKPOINT_KIND)
        if bundle.manifest["settings"] != self.settings:
            rule = f"{self.folder}: holds checkpoints of a fit with other settings or data"
            raise TrainingError(f"{rule}; give the same command as then to go on with it, or remove the folder")
        self._files = {Path(name).stem: bundle.arrays(Path(name).stem) for name in bundle.manifest["files"]}
        self._said, self.latest = bundle.manifest["stages"], path

    @property
    def number(self) -> int:
        """Of the checkpoint to go on from, counted from 1; 0 where there is none."""
        return int(self.latest.name) + 1 if self.latest else 0

    def stage(self, name: str) -> tuple[dict[str, Any] | None, dict[str, NDArray[Any]]]:
        """What is known of a stage of the fit: its position, its arrays."""
        return self._said.get(name), self._files.get(name, {})

    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() - self._saved > self.every

    def save(self, name: str, position: Position, arrays: dict[str, NDArray[Any]]) -> None:
        """Keep the state of a stage beside those of the stages before it."""
        said = asdict(position)
        said["best"] = None if np.isinf(position.best) else position.best
        self._said[name], self._files[name] = said, arrays
        path = self.folder / f"{self._next:06d}"
        write_artifact(path, CHECKPOINT_KIND, {"settings": self.settings, "stages": self._said}, self._files)
        self._remove_all_but(path)
        self.latest, self._next, self._saved = path, self._next + 1, time.monotonic()

    def _remove_all_but(self, kept: Path | None) -> None:
        """Our own folders alone: whatever else lies here is not ours to remove."""
        for old in self.folder.glob("[0-9]" * 6):
            if old != kept and listed_files(old, CHECKPOINT_KIND.noun) is not None:
                shutil.rmtree(old, ignore_errors=True)
        for torn in self.folder.glob(f".{'[0-9]' * 6}.partial-*"):  # what a kill in the middle of writing leaves
            shutil.rmtree(torn, ignore_errors=True)

    def remove(self) -> None:
        """The fit is over and its result is safe elsewhere."""
        self._remove_all_but(None)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
