"""Versions of models on disk: publish, open, activate, roll back, try as a canary, remove.

::

    REGISTRY/current.json            which version is live, which is the canary, which were live before (see `pointer`)
    REGISTRY/versions/v000001/       a model as 'mbcal fit' writes it, plus two files (see `version`)
    REGISTRY/.lock                   held by the process that changes the registry

`mbcal.load` reads a version as a model, for a warm start. A version is written atomically and never changed. Readers need
no lock, since the pointer is replaced by a rename. Writers take turns by a lock (`lock`). Only `publish` needs torch.

A caller whose decision is about the registry of some time ago (an update, a canary's watcher) gives its pointer as
`expected`: if a version went live or a canary began or ended in the meantime, nothing changes and ConflictError is raised.
An operator's word wins.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbcal.errors import ConflictError, ModelError, OptionError, OutputError, nearest
from mbcal.registry.lock import locked
from mbcal.registry.pointer import POINTER_NAME, Pointer, is_version_name, read_pointer, version_number, write_pointer
from mbcal.registry.publication import checked_metrics, prepare_version
from mbcal.registry.version import VERSION_KIND, Version, open_version, read_version_manifest

if TYPE_CHECKING:
    from mbcal.agents import Agent


class Registry:
    """A folder of versions, of which at most one is live and at most one other is the canary.

    Args:
        path: The registry's folder. `publish` creates it if absent.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<Registry {str(self.path)!r}: {len(self.versions())} versions, live {self.current() or 'none'}>"

    def versions(self) -> list[str]:
        """Return the names of all complete versions, oldest first."""
        try:
            names = [entry.name for entry in self._versions.iterdir() if is_version_name(entry.name)]
        except OSError:
            return []
        return sorted((name for name in names if (self._versions / name / "manifest.json").is_file()), key=version_number)

    def current(self) -> str | None:
        """Return the name of the live version; None if there is none."""
        return self.pointer().current

    def canary(self) -> str | None:
        """Return the name of the canary, the version that gets a share of users; None if there is none."""
        return self.pointer().canary

    def pointer(self) -> Pointer:
        """Return the live version, the canary and the versions before, all as of one moment."""
        return read_pointer(self.path)

    def previous_versions(self) -> list[str]:
        """Return the versions that were live before the current one, oldest first."""
        return list(self.pointer().before)

    def manifest(self, name: str | None = None) -> dict[str, Any]:
        """Read the manifest of a version. Its other files are not read.

        Args:
            name: The version; by default the live one.

        Raises:
            ModelError: If there is no such version, or its manifest is damaged.
        """
        return read_version_manifest(self._version_path(name))

    def open(self, name: str | None = None) -> Version:
        """Open a version and verify it: hashes, shapes, finite numbers, and the scores of the verification cases.

        Args:
            name: The version; by default the live one.

        Raises:
            ModelError: If there is no such version, or anything in it is damaged.
        """
        requested = self.current() if name is None else name
        try:
            return open_version(self._version_path(requested))
        except ModelError:
            if name is None and self.current() != requested:  # it was replaced and removed while it was read
                return self.open()
            raise

    def publish(
        self,
        model: str | Path | Agent,
        *,
        metrics: Mapping[str, Any] | None = None,
        activate: bool | None = None,
        canary: bool = False,
        expected: Pointer | None = None,
        on_written: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Make a model the next version.

        Nothing is written unless the model scores the verification cases without torch as the agent itself does.

        Args:
            model: A model folder, or a fitted agent. An agent of your own class must be given as an object.
            metrics: Plain values kept with the version.
            activate: Whether to make it the live version. A canary ends with that. None: only if no version is live yet.
            canary: Whether to make it the canary in the same step, if it is not activated.
            expected: Publish only if live version and canary are still those of this pointer; None publishes in any case.
            on_written: Is given the name of the written version, not live nor canary yet. If it raises, or the version
                cannot be made live or the canary, it is removed again.

        Returns:
            The version's name, such as `v000003`.

        Raises:
            ConflictError: If the registry is not as expected, or has a canary already; nothing is written.
            ModelError: If the model is damaged, or ranks differently without torch.
            OptionError: If metrics are not plain values.
            OutputError: If the registry cannot be written, or the folder holds something else.
        """
        metrics = checked_metrics(metrics or {})
        self._refuse_other_folders()
        self._require_unchanged(self.pointer(), expected)
        content = prepare_version(model)
        with locked(self.path):
            pointer = self._require_unchanged(self.pointer(), expected)
            if activate is None:
                activate = pointer.current is None
            if canary and not activate:
                self._require_trial(pointer)
            name = f"v{self._highest_number() + 1:06d}"
            content.write(self._versions / name, pointer.current, metrics)
            try:
                self.open(name)
                on_written(name)
                if activate or canary:
                    write_pointer(self.path, pointer.activated(name) if activate else self._with_canary(pointer, name))
            except BaseException:
                self._take_back(pointer, name)
                raise
        return name

    def _take_back(self, pointer: Pointer, name: str) -> None:
        """Remove a version that nobody was given; its number is not used again, since `on_written` may have named it."""
        try:
            is_named = self.pointer() != pointer
        except ModelError:
            is_named = True  # perhaps
        if is_named:
            return
        with contextlib.suppress(OutputError):  # a disk that is full: the number is used again
            write_pointer(self.path, replace(pointer, newest=max(pointer.newest, version_number(name))))
        removed = self._versions / f".{name}.partial-removed"  # renamed first: a reader sees a complete version or none
        with contextlib.suppress(OSError):
            os.rename(self._versions / name, removed)
        shutil.rmtree(removed, ignore_errors=True)

    def activate(self, name: str, *, expected: Pointer | None = None) -> None:
        """Make a version live. A canary ends: it was compared with the version live until now.

        Args:
            name: The version.
            expected: Activate only if live version and canary are still those of this pointer; None activates in any case.

        Raises:
            ConflictError: If the registry is not as expected; the live version stays.
            ModelError: If there is no such version, or it is damaged; the live version stays.
            OutputError: If the registry cannot be written.
        """
        with locked(self.path):
            pointer = self._require_unchanged(self.pointer(), expected)
            self.open(name)
            self._replace(pointer, pointer.activated(name))

    def rollback(self) -> str:
        """Make the version live that was live before the current one. A canary ends.

        Returns:
            Its name.

        Raises:
            ModelError: If there is none, or it is damaged; the live version stays.
            OutputError: If the registry cannot be written.
        """
        with locked(self.path):
            pointer = self.pointer()
            if not pointer.before:
                problem = f"{self.path}: no version was live before {pointer.current or 'now'}"
                raise ModelError(f"{problem}; choose one with 'mbcal registry activate'")
            restored = pointer.rolled_back()
            self.open(restored.current)
            write_pointer(self.path, restored)
        return str(restored.current)

    def start_canary(self, name: str, *, expected: Pointer | None = None) -> None:
        """Make a version the canary: servers started with a share for canaries give it that share of users.

        Where requests name no user, it is that share of sessions.

        Args:
            name: The version. If it is the canary already, nothing changes.
            expected: Start only if live version and canary are still those of this pointer; None starts in any case.

        Raises:
            ConflictError: If the registry is not as expected, or another version is the canary.
            ModelError: If there is no such version, it is damaged, it is the live one, none is live, or its behaviours have
                other rewards than those of the live one.
            OutputError: If the registry cannot be written.
        """
        with locked(self.path):
            pointer = self._require_unchanged(self.pointer(), expected)
            self._replace(pointer, self._with_canary(pointer, name))

    def promote_canary(self, name: str | None = None, *, expected: Pointer | None = None) -> str:
        """Make the canary live. The version it replaces is kept for `rollback`.

        Args:
            name: Promote only if this version is still the canary; None promotes any.
            expected: Promote only if live version and canary are still those of this pointer; None promotes in any case.

        Returns:
            The name of the version that is live now.

        Raises:
            ConflictError: If the registry is not as expected, or another version is the canary.
            ModelError: If there is no canary, or it is damaged; the live version stays.
            OutputError: If the registry cannot be written.
        """
        with locked(self.path):
            pointer = self._require_unchanged(self.pointer(), expected)
            promoted = self._require_canary(pointer, name)
            self.open(promoted)
            write_pointer(self.path, pointer.activated(promoted))
        return promoted

    def withdraw_canary(
        self, name: str | None = None, *, reason: str = "by hand", expected: Pointer | None = None, wait: bool = True
    ) -> str:
        """End the canary; the live version serves all sessions again. The withdrawn version is not removed.

        Args:
            name: Withdraw only if this version is still the canary; None withdraws any.
            reason: Kept with the version's name and listed by 'mbcal registry list'.
            expected: Withdraw only if live version and canary, and its trial, are still those of this pointer.
            wait: Whether to wait for another process that changes the registry.

        Returns:
            The name of the withdrawn version.

        Raises:
            ConflictError: If the registry is not as expected, or another version is the canary.
            ModelError: If there is no canary.
            OutputError: If the registry cannot be written; RegistryBusyError if another process changes it.
        """
        with locked(self.path, wait):
            pointer = self._require_unchanged(self.pointer(), expected)
            withdrawn = self._require_canary(pointer, name)
            write_pointer(self.path, pointer.without_canary(reason))
        return withdrawn

    def gc(self, keep: int) -> list[str]:
        """Remove versions older than the live one, and what killed processes left.

        Versions newer than the live one stay, since they may be activated later; so does the canary.

        Args:
            keep: How many of the versions that were live before to keep, for `rollback`.

        Returns:
            The names of the removed versions.

        Raises:
            OptionError: If keep is negative.
            OutputError: If the registry cannot be written.
        """
        if keep < 0:
            raise OptionError(f"keep: must be 0 or more, got {keep}")
        if not self._versions.is_dir():
            return []
        with locked(self.path):
            pointer = self.pointer()
            before = pointer.before[len(pointer.before) - min(keep, len(pointer.before)) :]
            live_number = version_number(pointer.current)
            needed = {pointer.current, pointer.canary, *before}
            removed = [name for name in self.versions() if name not in needed and version_number(name) < live_number]
            if removed or before != pointer.before:  # the pointer first, so that it never names a removed version
                withdrawn = {name: reason for name, reason in pointer.withdrawn.items() if name not in removed}
                newest = self._highest_number()
                write_pointer(self.path, replace(pointer, before=before, newest=newest, withdrawn=withdrawn))
            for name in removed:  # renamed first: a reader sees a complete version or none
                os.rename(self._versions / name, self._versions / f".{name}.partial-removed")
            for leftover in self._versions.glob(".v*.partial-*"):
                shutil.rmtree(leftover)
            for leftover in self.path.glob(f".{POINTER_NAME}.partial-*"):
                leftover.unlink()
        return removed

    @property
    def _versions(self) -> Path:
        return self.path / "versions"

    def _version_path(self, name: str | None) -> Path:
        """Return the folder of a version (by default the live one); raises ModelError if there is none."""
        name = self.current() if name is None else name
        if name is None:
            raise ModelError(f"{self.path}: no version is live; {VERSION_KIND.how_to_create}")
        if not is_version_name(name) or not (self._versions / name).is_dir():
            known = self.versions()
            listed = f"known are {', '.join(known[-5:])}" if known else "there are none"
            raise ModelError(f"{self.path}: has no version {name!r}; {listed}.{nearest(name, known)}")
        return self._versions / name

    def _refuse_other_folders(self) -> None:
        is_taken = any(self.path.iterdir()) if self.path.is_dir() else self.path.exists()
        if is_taken and not self._versions.is_dir():
            raise OutputError(f"{self.path}: already exists and is not a registry; choose another folder")

    def _highest_number(self) -> int:
        """Highest number of any version, complete or not, existing or removed."""
        names = [entry.name for entry in self._versions.iterdir() if is_version_name(entry.name)]
        return max([self.pointer().newest, *map(version_number, names)])

    def _require_unchanged(self, pointer: Pointer, expected: Pointer | None) -> Pointer:
        """Return the pointer; raises ConflictError if a version went live, or a canary began or ended, since the other."""
        if expected is not None and (change := pointer.change_since(expected)) is not None:
            raise ConflictError(f"{self.path}: {change}")
        return pointer

    def _with_canary(self, pointer: Pointer, name: str) -> Pointer:
        """Return the pointer with this version as its canary; raises if it cannot be that."""
        if pointer.canary == name:
            return pointer
        self._require_trial(pointer, name)
        if self.open(name).behaviours != self.open(pointer.current).behaviours:
            problem = f"{name} has other behaviours or rewards than {pointer.current}"
            raise ModelError(f"{self.path}: {problem}; their rewards cannot be compared, activate it by hand")
        return pointer.with_canary(name, time.time_ns() // 1000)

    def _require_trial(self, pointer: Pointer, name: str | None = None) -> None:
        """Raise if there is a canary already, or no other version is live."""
        if pointer.canary is not None:
            raise ConflictError(f"{self.path}: {pointer.canary} is the canary; withdraw or promote it first")
        if pointer.current in (None, name):
            problem = f"{name} is live already" if pointer.current else "no version is live to compare a canary with"
            raise ModelError(f"{self.path}: {problem}; activate a version with 'mbcal registry activate'")

    def _require_canary(self, pointer: Pointer, name: str | None) -> str:
        """Return the name of the canary; raises if there is none, or another one than the given."""
        if pointer.canary is None:
            raise ModelError(f"{self.path}: there is no canary; start one with 'mbcal registry canary VERSION'")
        if name is not None and pointer.canary != name:
            raise ConflictError(f"{self.path}: {pointer.canary} is the canary instead of {name}; it stays")
        return pointer.canary

    def _replace(self, pointer: Pointer, changed: Pointer) -> None:
        if changed != pointer:
            write_pointer(self.path, changed)
