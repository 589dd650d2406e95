"""Versions of models on disk: publish, open, go live, roll back.

::

    REGISTRY/current.json            which version is live, and which were before it
    REGISTRY/versions/v000001/       a model as 'mbcal fit' writes it, and beside it
        scorer.safetensors           what it ranks by, as plain arrays (and which items the model has met)
        verification.safetensors     a few sessions and the scores they must get

A version is a model folder with two more files, so `mbcal.load` reads it for a warm start. It is written once, whole, and
never changed. Only `publish` needs torch. A reader needs no lock: the pointer is one small file that is replaced by rename.
Writers take turns by a lock that ends with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import MbcalError, ModelError, OptionError, OutputError, nearest
from mbcal.registry.verification import case_problem, score_difference, verification_cases, verification_scores
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.scorer_io import scorer_from_arrays, scorer_to_arrays
from mbcal.scoring.scorers import Scorer
from mbcal.storage.artifacts import MODEL_KIND, SCHEMA, Artifact, write_artifact
from mbcal.storage.atomic import to_output_error, write_atomic
from mbcal.storage.manifest import ArtifactKind
from mbcal.types import Behaviours, Catalog

if TYPE_CHECKING:
    from mbcal.agents import Agent

VERSION_SCHEMA = 1
VERSION_KIND = ArtifactKind(
    "model",
    SCHEMA,
    "publish a model with 'mbcal registry publish'",
    "publish the model again, or roll back to a whole version",
    ModelError,
)
_NAME = re.compile(r"v\d{6,}")
_MODEL_FILES = ("weights.safetensors", "optimiser.safetensors", "items.parquet")
"""Files of a version that are its model's."""


@dataclass(frozen=True, eq=False, repr=False)
class Version:
    """One version opened and verified: what a service ranks with."""

    name: str
    path: Path
    manifest: Mapping[str, Any]
    scorer: Scorer
    catalog: Catalog
    """Names and titles of items; without features, which are in the tables."""
    behaviours: Behaviours
    horizon: int
    history: int
    seen: NDArray[np.bool_]
    """(rows,) which items the model has met."""
    parent: str | None
    """The version that was live when this one was published."""
    metrics: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<Version {self.name}: {self.manifest['agent']}, {len(self.catalog):,} items>"


@dataclass(frozen=True)
class _Pointer:
    """What `current.json` says."""

    current: str | None = None
    before: tuple[str, ...] = ()
    """The versions that were live before, oldest first: where `rollback` goes."""
    newest: int = 0
    """The highest number a removed version may have had: none is given twice."""


class Registry:
    """A folder of versions, of which one is live."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<Registry {str(self.path)!r}: {len(self.versions())} versions, live {self.current() or 'none'}>"

    def versions(self) -> list[str]:
        """All whole versions, oldest first."""
        try:
            names = [entry.name for entry in self._versions.iterdir() if _NAME.fullmatch(entry.name)]
        except OSError:
            return []
        return sorted((name for name in names if (self._versions / name / "manifest.json").is_file()), key=_number)

    def current(self) -> str | None:
        """The live version; None as long as there is none."""
        return self._pointer().current

    def previous_versions(self) -> list[str]:
        """The versions that were live before the current one, oldest first."""
        return list(self._pointer().before)

    def manifest(self, name: str | None = None) -> dict[str, Any]:
        """What a version (the live one if not named) says of itself; its files are not read."""
        path = self._folder(name)
        said = VERSION_KIND.open(path)
        schema = said["version"].get("schema") if isinstance(said.get("version"), dict) else None
        if schema != VERSION_SCHEMA:
            problem = "a model, not a version" if schema is None else f"a version of schema {schema}, not {VERSION_SCHEMA}"
            raise ModelError(f"{path}: {problem}; {VERSION_KIND.remedy}")
        return said

    def open(self, name: str | None = None) -> Version:
        """A version (the live one if not named), verified: hashes, shapes, finite numbers, and the golden scores."""
        wanted = self.current() if name is None else name
        try:
            return self._open(wanted)
        except ModelError:
            if name is None and self.current() != wanted:  # replaced and removed while it was read
                return self.open()
            raise

    def _open(self, name: str | None) -> Version:
        path = self._folder(name)
        opened = Artifact(path, VERSION_KIND, self.manifest(path.name))
        try:
            return _verified(opened)
        except ModelError as error:
            if str(path) in str(error):
                raise
            raise opened.damage_error(str(error)) from error
        except (LookupError, TypeError, ValueError, AttributeError, OSError, MbcalError) as error:  # another program's
            raise opened.damage_error(f"{type(error).__name__}: {error}") from error

    def publish(
        self,
        model: str | Path | Agent,
        *,
        metrics: Mapping[str, Any] | None = None,
        activate: bool = True,
    ) -> str:
        """Make a model the next version.

        The scorer without torch must score the verification cases as the agent itself does, or nothing is written.

        Args:
            model: A model folder, or a fitted agent. An agent of one's own class is published as an object.
            metrics: Plain values kept with the version.
            activate: Make it the live version at once.

        Returns:
            The version's name, such as `v000003`.

        Raises:
            ModelError: If the model is damaged, or ranks differently without torch.
            OutputError: If the registry cannot be written.
        """
        from mbcal.agents import Agent

        checked_metrics = _checked_metrics(metrics or {})
        self._refuse_other_folders()
        if not isinstance(model, Agent):
            return self._publish(Artifact.open(model, MODEL_KIND), None, checked_metrics, activate)
        with tempfile.TemporaryDirectory(prefix="mbcal-") as folder:
            saved = Artifact.open(model.save(Path(folder) / "model"), MODEL_KIND)
            return self._publish(saved, type(model), checked_metrics, activate)

    def _publish(self, source: Artifact, kind: type[Agent] | None, metrics: dict[str, Any], activate: bool) -> str:
        scorer, scorer_arrays, verification = _prepare_version(source, kind)
        manifest = {key: value for key, value in source.manifest.items() if key not in _REWRITTEN}
        model_files = {name: MODEL_KIND.read(source.path, source.manifest, name) for name in _MODEL_FILES}
        with self._turn():
            name = f"v{self._highest() + 1:06d}"
            manifest["version"] = {
                "schema": VERSION_SCHEMA,
                "scorer": scorer,
                "parent": self._pointer().current,
                "metrics": metrics,
                "published": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            files = {"scorer": scorer_arrays, "verification": verification}
            write_artifact(self._versions / name, VERSION_KIND, manifest, files, extra=model_files)
            self.open(name)
            if activate:
                self._go_live(name)
        return name

    def activate(self, name: str) -> None:
        """Make a version live; one that does not verify is refused."""
        with self._turn():
            self.open(name)
            self._go_live(name)

    def rollback(self) -> str:
        """Make the version live that was before the current one; its name."""
        with self._turn():
            pointer = self._pointer()
            if not pointer.before:
                rule = (
                    f"{self.path}: no version was live before {pointer.current or 'now'}, so there is none to roll back to"
                )
                raise ModelError(f"{rule}; choose one with 'mbcal registry activate'")
            *before, name = pointer.before
            self.open(name)
            self._point(_Pointer(name, tuple(before), pointer.newest))
        return name

    def gc(self, keep: int) -> list[str]:
        """Remove versions older than the live one, but for the last `keep` that were live before it; those removed.

        Versions newer than the live one stay: they may be about to go live. What killed publishers left goes too.
        """
        if keep < 0:
            raise OptionError(f"keep: must be 0 or more, got {keep}")
        if not self._versions.is_dir():
            return []
        with self._turn():
            pointer = self._pointer()
            before = pointer.before[len(pointer.before) - min(keep, len(pointer.before)) :]
            needed = {pointer.current, *before}
            removed = [name for name in self.versions() if name not in needed and _number(name) < _number(pointer.current)]
            if removed or before != pointer.before:
                self._point(_Pointer(pointer.current, before, self._highest()))  # first: it never names what is gone
            with _writing(self.path):
                for name in removed:  # gone whole: a reader sees all of it or nothing
                    os.rename(self._versions / name, self._versions / f".{name}.partial-removed")
                for left in self._versions.glob(".v*.partial-*"):
                    shutil.rmtree(left)
                for left in self.path.glob(".current.json.partial-*"):
                    left.unlink()
        return removed

    @property
    def _versions(self) -> Path:
        return self.path / "versions"

    def _folder(self, name: str | None) -> Path:
        """Where a version lies, or in one sentence why it is not there."""
        name = self.current() if name is None else name
        if name is None:
            raise ModelError(f"{self.path}: no version is live; {VERSION_KIND.how_to_create}")
        if not _NAME.fullmatch(name) or not (self._versions / name).is_dir():
            known = self.versions()
            listed = f"known are {', '.join(known[-5:])}" if known else "there are none"
            raise ModelError(f"{self.path}: has no version {name!r}; {listed}.{nearest(name, known)}")
        return self._versions / name

    def _refuse_other_folders(self) -> None:
        taken = any(self.path.iterdir()) if self.path.is_dir() else self.path.exists()
        if taken and not self._versions.is_dir():
            raise OutputError(f"{self.path}: already exists and is no registry; choose another folder")

    def _highest(self) -> int:
        names = [entry.name for entry in self._versions.iterdir() if _NAME.fullmatch(entry.name)]
        return max([self._pointer().newest, *map(_number, names)])

    def _pointer(self) -> _Pointer:
        file = self.path / "current.json"
        try:
            said = json.loads(file.read_bytes())
            pointer = _Pointer(said["current"], tuple(said["before"]), said["newest"])
            if not all(_NAME.fullmatch(name) for name in (*pointer.before, pointer.current or "v000000")):
                raise ValueError("it names no versions")
            if not isinstance(pointer.newest, int):
                raise TypeError("newest must be a number")
        except (FileNotFoundError, NotADirectoryError):
            return _Pointer()
        except OSError as error:
            raise ModelError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(
                f"{file}: damaged ({error}); remove it and run 'mbcal registry activate' to choose one"
            ) from error
        return pointer

    def _go_live(self, name: str) -> None:
        pointer = self._pointer()
        if pointer.current != name:
            before = pointer.before if pointer.current is None else (*pointer.before, pointer.current)
            self._point(_Pointer(name, before, pointer.newest))

    def _point(self, pointer: _Pointer) -> None:
        said = {"current": pointer.current, "before": pointer.before, "newest": pointer.newest}
        write_atomic(self.path / "current.json", (json.dumps(said, indent=2) + "\n").encode())

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One writer at a time; the lock goes with its process, however that ends."""
        with _writing(self.path):
            self._versions.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)


_REWRITTEN = ("kind", "schema", "mbcal", "files", "content_hash", "version")
"""What a manifest says anew of every folder."""


def _prepare_version(source: Artifact, kind: type[Agent] | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A model's scorer as JSON and arrays, and verification cases with the scores of the agent itself."""
    import torch

    from mbcal.agents import load

    agent = load(source.path, "cpu") if kind is None else kind.load(source.path, "cpu")
    rows, behaviours = agent.domain.catalog.n_rows, len(agent.domain.behaviours)
    scorer, files = scorer_to_arrays(to_numpy(agent.fitted_scorer))
    cases = verification_cases(rows, behaviours, agent.domain.n_users, agent.domain.history)
    with torch.no_grad():
        answers = verification_scores(agent.fitted_scorer, cases, torch.from_numpy)
    try:
        plain = scorer_from_arrays(scorer, files, rows, behaviours)
    except ModelError as error:
        raise ModelError(f"{source.path}: {error}; fit the model again") from error
    difference = score_difference(answers, verification_scores(plain, cases))
    if difference:
        raise ModelError(f"{source.path}: ranks otherwise without torch ({difference}), so it is not published")
    return scorer, {**files, "seen": agent.seen()}, {**cases, **{f"answers/{name}": said for name, said in answers.items()}}


def _verified(opened: Artifact) -> Version:
    """The version in a folder; ModelError for what does not fit."""
    said, about = opened.manifest, opened.manifest["version"]
    for name in _MODEL_FILES:
        VERSION_KIND.read(opened.path, said, name)
    catalog, behaviours = opened.names, opened.behaviours
    files, golden = opened.arrays("scorer"), opened.arrays("verification")
    seen = files.pop("seen", None)
    if seen is None or seen.dtype != bool or seen.shape != (catalog.n_rows,):
        raise ModelError(f"scorer: 'seen' must hold {catalog.n_rows} truths, one an item row")
    scorer = scorer_from_arrays(about["scorer"], files, catalog.n_rows, len(behaviours))
    problem = case_problem(golden, catalog.n_rows, len(behaviours))
    if not problem:
        wanted = {name.removeprefix("answers/"): array for name, array in golden.items() if name.startswith("answers/")}
        problem = score_difference(wanted, verification_scores(scorer, golden))
    if problem:
        raise ModelError(f"its golden cases do not come out: {problem}")
    return Version(
        name=opened.path.name,
        path=opened.path,
        manifest=said,
        scorer=scorer,
        catalog=catalog,
        behaviours=behaviours,
        horizon=int(said["horizon"]),
        history=int(said["history"]),
        seen=seen,
        parent=about["parent"],
        metrics=dict(about["metrics"]),
    )


def _checked_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(json.dumps(dict(metrics), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"metrics: must be names with finite numbers, texts or lists of them ({error})") from error
    return kept


def _number(name: str | None) -> int:
    return int(name[1:]) if name else 0


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A disk's refusal in our words."""
    try:
        yield
    except OSError as error:
        raise to_output_error(str(path), error) from error
