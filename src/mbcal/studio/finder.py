"""Find artifacts under a folder, by the files that make them one. Links are not followed, hidden folders not entered."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mbcal.data.store_format import STORE_KIND
from mbcal.errors import InputError, MbcalError
from mbcal.registry.pointer import POINTER_NAME, read_pointer
from mbcal.registry.registry import Registry
from mbcal.storage.artifacts import MODEL_KIND, SIMULATOR_KIND
from mbcal.storage.manifest import MAX_MANIFEST, ArtifactKind

MAX_FOLDERS = 20_000
"""Folders looked into; the rest is left out, and the list says so."""
MAX_DEPTH = 8
KINDS: Mapping[str, ArtifactKind] = {"store": STORE_KIND, "model": MODEL_KIND, "simulator": SIMULATOR_KIND}
"""Artifacts with a manifest, by what it says they are."""
_SEGMENT = re.compile(r"segment-[0-9]{6,}\.log")


@dataclass(frozen=True)
class Found:
    """One artifact."""

    path: str
    """Relative to the folder that was searched; `.` for the folder itself."""
    kind: str
    """store, model, simulator, run, registry or decision log."""
    summary: str
    """What it holds, in a few words."""
    bytes: int | None
    """Size on disk, as its manifest or its files say."""
    changed: float | None
    """When it was written, in seconds since 1970."""
    problem: str | None = None
    """Why it cannot be read; its files are checked against their hashes when they are."""
    run: str | None = None
    """Path of the run it is part of."""
    content: str | None = None
    """Content hash of a store, or of the data a model was fitted on."""


@dataclass(frozen=True)
class Findings:
    """What is under a folder."""

    artifacts: list[Found]
    complete: bool
    """False if there were more than `MAX_FOLDERS` folders."""

    def to_dict(self) -> dict[str, Any]:
        return {"artifacts": [asdict(found) for found in self.artifacts], "complete": self.complete}


def find(root: Path) -> Findings:
    """Search a folder for artifacts.

    Args:
        root: The folder.

    Returns:
        The artifacts in the order of their paths. Models and simulators of a run are listed after it.
    """
    artifacts: list[Found] = []
    for looked, (folder, names, run) in enumerate(_folders(root, None, 0)):
        if looked >= MAX_FOLDERS:
            return Findings(artifacts, False)
        found = _recognise(root, folder, names, run)
        if found is not None:
            artifacts.append(found)
    return Findings(artifacts, True)


def resolve(root: Path, path: str, *kinds: str) -> Path:
    """Return the folder of an artifact.

    Args:
        root: The folder that was searched.
        path: The artifact's path in it.
        kinds: What it must be one of; none for any.

    Raises:
        InputError: If there is no such artifact of these kinds under the folder, or it holds a link.
    """
    wanted = " or ".join(kinds) or "artifact"
    parts = Path(path).parts
    if Path(path).is_absolute() or ".." in parts or "\0" in path or any(part.startswith(".") for part in parts):
        raise InputError(f"{path}: not the path of a {wanted} in this folder")
    folder = root
    try:
        for part in parts:
            folder /= part
            if folder.is_symlink() or not folder.is_dir():
                raise InputError(f"{path}: no such folder; reload the list")
    except OSError as error:  # such as a name that is too long
        raise InputError(f"{path[:200]}: cannot be looked for ({error.strerror}); reload the list") from error
    found = _recognise(root, folder, _names(folder)[0], None)
    if found is None or (kinds and found.kind not in kinds):
        raise InputError(f"{path}: not a {wanted}")
    if found.problem is not None:
        raise InputError(found.problem)
    return folder


def _folders(
    folder: Path, run: str | None, depth: int, root: Path | None = None
) -> Iterator[tuple[Path, set[str], str | None]]:
    """Yield folders with the names of their files, parents first; within an artifact other than a run, no further."""
    root = root or folder
    files, folders = _names(folder)
    yield folder, files, run
    if depth >= MAX_DEPTH or _kind_of(folder, files) in (*KINDS, "registry", "decision log", "other"):
        return
    if _kind_of(folder, files) == "run":
        run, folders = (
            folder.relative_to(root).as_posix(),
            [name for name in folders if name in ("data", "models", "simulators")],
        )
    for name in folders:
        yield from _folders(folder / name, run, depth + 1, root)


def _names(folder: Path) -> tuple[set[str], list[str]]:
    """Names of the plain files, and of the folders, in a folder; no links and nothing hidden."""
    files, folders = set(), []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.add(entry.name)
    except OSError:
        return set(), []
    return files, sorted(folders)


def _kind_of(folder: Path, files: set[str]) -> str | None:
    """What a folder is, by its files: a key of KINDS, run, registry, decision log, `other` artifact; None if it is none."""
    if {"run.json", "settings.json"} <= files:
        return "run"
    if "manifest.json" in files:
        kind = _manifest_kind(folder / "manifest.json")
        return kind if kind in KINDS else "other" if kind is not None else None
    if POINTER_NAME in files and (folder / "versions").is_dir() and not (folder / "versions").is_symlink():
        return "registry"
    return "decision log" if any(_SEGMENT.fullmatch(name) for name in files) else None


def _manifest_kind(file: Path) -> str | None:
    """The kind a manifest names; None if it is not a manifest of mbcal."""
    try:
        if file.stat().st_size > MAX_MANIFEST:
            return None
        manifest = json.loads(file.read_bytes())
        return str(manifest.get("kind", "store")) if {"files", "schema"} <= manifest.keys() else None
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        names = file.parent.name, {path.name for path in file.parent.glob("*.parquet")}
        return "store" if "users.parquet" in names[1] else "model" if "items.parquet" in names[1] else None


def _recognise(root: Path, folder: Path, files: set[str], run: str | None) -> Found | None:
    kind = _kind_of(folder, files)
    if kind is None or kind == "other":
        return None
    path = folder.relative_to(root).as_posix()
    try:
        link = _first_link(folder)
        if link is not None:
            raise InputError(f"{path}: holds a link ({link}); links are not followed")
        summary, size, content = _describe(folder, kind, files)
        return Found(path, kind, summary, size, _changed(folder, kind), None, run, content)
    except (MbcalError, OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        text = str(error) if isinstance(error, MbcalError) else f"{path}: damaged ({type(error).__name__}: {error})"
        return Found(path, kind, "", None, _changed(folder, kind), text.replace(f"{root}{os.sep}", ""), run)


def _describe(folder: Path, kind: str, files: set[str]) -> tuple[str, int, str | None]:
    """What an artifact holds in a few words, its size, and its content hash."""
    if kind in KINDS:
        manifest = KINDS[kind].open(folder)
        size = sum(int(entry["bytes"]) for entry in manifest["files"].values())
        provenance = manifest.get("provenance") or {}
        if kind == "store":
            counts = manifest["counts"]
            people = f" of {counts['users']:,} users" if "users" in counts else ""
            return f"{manifest['source']}: {counts['sessions']:,} sessions{people}", size, manifest["content_hash"]
        if kind == "model":
            return f"{manifest['agent']}", size, provenance.get("data")
        return f"{manifest['config']['family']} simulator", size, provenance.get("data")
    size = _folder_bytes(folder)
    if kind == "run":
        settings = json.loads((folder / "settings.json").read_bytes())
        done = sum(1 for _ in folder.glob("cells/*/*/seed-*/manifest.json"))
        return f"{settings['data']}: {', '.join(settings['agents'])}; {done} results", size, None
    if kind == "registry":
        versions, live = Registry(folder).versions(), read_pointer(folder).current
        return f"{len(versions)} version{'s' * (len(versions) != 1)}, {live or 'none'} live", size, None
    count = sum(1 for name in files if _SEGMENT.fullmatch(name))
    return f"{count} segment{'s' * (count != 1)}", size, None


def _changed(folder: Path, kind: str) -> float | None:
    names = {
        "run": ("run.json", "metrics.jsonl"),
        "registry": (POINTER_NAME,),
        "decision log": tuple(filter(_SEGMENT.fullmatch, _names(folder)[0])),
    }
    times = [os.stat(folder / name).st_mtime for name in names.get(kind, ("manifest.json",)) if (folder / name).exists()]
    return max(times, default=None)


def _first_link(folder: Path) -> str | None:
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(parent, name)):
                return os.path.relpath(os.path.join(parent, name), folder)
    return None


def _folder_bytes(folder: Path) -> int:
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, files in os.walk(folder) for name in files)
