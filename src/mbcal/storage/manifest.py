"""The manifest of a folder: what it holds, with the hash of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mbcal.errors import MbcalError


def write_manifest(folder: Path, said: Mapping[str, Any]) -> None:
    """The manifest, last: what is said, and a hash over all of it."""
    whole = {**said, "content_hash": _content_hash(said)}
    text = json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def file_entry(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@dataclass(frozen=True)
class ArtifactKind:
    """One kind of folder: what to call it, what to do about a bad one, and how to open it."""

    noun: str
    schema: int
    make: str
    """How one is made: 'make a store with …'."""
    remedy: str
    """What to do about a damaged one."""
    error: type[MbcalError]

    def open(self, path: Path) -> dict[str, Any]:
        """The manifest, checked; the files are checked one by one when they are read."""
        file = path / "manifest.json"
        if not path.is_dir():
            problem = f"a file, not a {self.noun}" if path.is_file() else "no such folder"
            raise self.error(f"{path}: {problem}; {self.make}")
        if not file.is_file():
            raise self.error(f"{path}: not a {self.noun} (no manifest.json); {self.make}")
        try:
            manifest = json.loads(file.read_bytes())
        except OSError as error:
            raise self.error(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
        except ValueError as error:
            raise self.error(f"{file}: damaged ({error}); {self.remedy}") from error
        try:
            schema, files, said = manifest["schema"], manifest["files"], manifest["content_hash"]
            kind = manifest.get("kind", "store")
        except (KeyError, TypeError, AttributeError) as error:
            raise self.error(f"{file}: damaged ({type(error).__name__}: {error}); {self.remedy}") from error
        if kind != self.noun:
            raise self.error(f"{path}: a {kind}, not a {self.noun}; {self.make}")
        if schema != self.schema:
            raise self.error(f"{path}: schema {schema}, this mbcal reads schema {self.schema}; {self.remedy}")
        if said != _content_hash(manifest):
            raise self.error(f"{file}: damaged (its content hash does not fit); {self.remedy}")
        for name in files:
            if not (path / name).is_file():
                raise self.error(f"{path / name}: missing from the {self.noun}; {self.remedy}")
        return dict(manifest)

    def read(self, path: Path, manifest: Mapping[str, Any], name: str) -> bytes:
        """One file, its hash checked."""
        try:
            data = (path / name).read_bytes()
        except OSError as error:
            raise self.error(f"{path / name}: cannot be read ({error.strerror}); check its permissions") from error
        if hashlib.sha256(data).hexdigest() != manifest["files"][name]["sha256"]:
            raise self.error(f"{path / name}: damaged (its hash does not fit); {self.remedy}")
        return data


def listed_files(folder: Path, noun: str) -> set[str] | None:
    """The files that a folder of this kind says it has; None when it is no such folder."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        ours = "content_hash" in manifest and manifest.get("kind", "store") == noun
        return {*manifest["files"], "manifest.json"} if ours else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _content_hash(manifest: Mapping[str, Any]) -> str:
    """Over everything the manifest says, the hash of every file included."""
    said = {key: value for key, value in manifest.items() if key != "content_hash"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
