"""The manifest of an artifact: a JSON file that describes the folder and holds the sha256 of every file in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mbcal.errors import MbcalError
from mbcal.storage.json_text import parse_json
from mbcal.storage.plain_file import read_plain

MAX_MANIFEST = 64 << 20
"""Bytes of a manifest; a larger one is not read."""


def write_manifest(folder: Path, entries: Mapping[str, Any]) -> None:
    """Write `manifest.json`, after all other files: the entries, and a hash over all of them."""
    manifest = {**entries, "content_hash": _content_hash(entries)}
    text = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def file_entry(path: Path) -> dict[str, Any]:
    """Return the manifest's entry for a file: its size and its sha256."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@dataclass(frozen=True)
class ArtifactKind:
    """One kind of artifact: what it is called, and what to tell the user if one is missing or damaged."""

    noun: str
    """The kind, as in its manifest: `store`, `model`."""
    schema: int
    """Version of the format that this code reads and writes."""
    how_to_create: str
    """Advice for a missing one: `make a store with 'mbcal prepare'`."""
    remedy: str
    """Advice for a damaged one: `prepare the store again`."""
    error: type[MbcalError]
    """What is raised."""

    def open(self, path: Path) -> dict[str, Any]:
        """Read and check a manifest. Files are checked to exist; their hashes are checked when they are read.

        Raises:
            MbcalError: Of type `error`, if this is not such an artifact, or it is damaged or of another schema.
        """
        manifest_path = path / "manifest.json"
        if not path.is_dir():
            problem = f"a file, not a {self.noun}" if path.is_file() else "no such folder"
            raise self.error(f"{path}: {problem}; {self.how_to_create}")
        if not manifest_path.is_file():
            raise self.error(f"{path}: not a {self.noun} (no manifest.json); {self.how_to_create}")
        try:
            manifest = parse_json(read_plain(manifest_path, MAX_MANIFEST)[0])
        except OSError as error:
            raise self.error(f"{manifest_path}: cannot be read ({error.strerror}); check its permissions") from error
        except ValueError as error:
            raise self.error(f"{manifest_path}: damaged ({error}); {self.remedy}") from error
        try:
            schema, files, content_hash = manifest["schema"], manifest["files"], manifest["content_hash"]
            kind, expected_hash = manifest.get("kind", "store"), _content_hash(manifest)
            if not all(isinstance(entry["sha256"], str) for entry in files.values()):
                raise TypeError("a hash must be text")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = f"damaged ({type(error).__name__}: {error})"
            raise self.error(f"{manifest_path}: {problem}; {self.remedy}") from error
        if kind != self.noun:
            raise self.error(f"{path}: a {kind}, not a {self.noun}; {self.how_to_create}")
        if schema != self.schema:
            raise self.error(f"{path}: schema {schema}, this mbcal reads schema {self.schema}; {self.remedy}")
        if content_hash != expected_hash:
            raise self.error(f"{manifest_path}: damaged (content hash mismatch); {self.remedy}")
        for name in files:
            if not (path / name).is_file():
                raise self.error(f"{path / name}: missing from the {self.noun}; {self.remedy}")
        return dict(manifest)

    def read(self, path: Path, manifest: Mapping[str, Any], name: str) -> bytes:
        """Return the bytes of one file.

        Args:
            path: The artifact.
            manifest: Its manifest, as `open` returned it.
            name: The file.

        Raises:
            MbcalError: Of type `error`, if the file cannot be read or its hash is wrong.
        """
        try:
            has_size = (path / name).stat().st_size == manifest["files"][name].get("bytes")
            data = (path / name).read_bytes() if has_size else b""  # a file that has grown may be larger than the memory
        except OSError as error:
            raise self.error(f"{path / name}: cannot be read ({error.strerror}); check its permissions") from error
        if not has_size or hashlib.sha256(data).hexdigest() != manifest["files"][name]["sha256"]:
            raise self.error(f"{path / name}: damaged (hash mismatch); {self.remedy}")
        return data


def listed_files(folder: Path, noun: str) -> set[str] | None:
    """Return the names of the files that an artifact of this kind lists; None if the folder is not one."""
    try:
        manifest = parse_json(read_plain(folder / "manifest.json", MAX_MANIFEST)[0])
        is_kind = "content_hash" in manifest and manifest.get("kind", "store") == noun
        return {*manifest["files"], "manifest.json"} if is_kind else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _content_hash(manifest: Mapping[str, Any]) -> str:
    """sha256 of all other entries, which include the hash of every file."""
    entries = {key: value for key, value in manifest.items() if key != "content_hash"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
