"""Folders that appear whole and are read with suspicion: stores, models, simulators, checkpoints.

A folder is built under a temporary name on the output's own disk, flushed, and renamed: a reader sees either nothing or
everything. (An existing one that is overwritten is moved aside just before; a machine that dies between the two renames
leaves it in the hidden folder.) Its `manifest.json` holds the sha256 of every file and of itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from mbcal.errors import OutputError
from mbcal.storage.manifest import listed_files


class AtomicFolder:
    """`with AtomicFolder(out) as folder:` fill `folder.build`, then `folder.publish()`. Nothing is left of a failure."""

    def __init__(self, out: Path, noun: str, overwrite: bool = False) -> None:
        self.given, self.out = str(out), out.resolve()
        self.noun, self.overwrite = noun, overwrite
        self._refuse_to_replace()

    def _refuse_to_replace(self) -> None:
        if not self.out.exists() or (self.out.is_dir() and not any(self.out.iterdir())):
            return
        listed = listed_files(self.out, self.noun)  # nothing is replaced that holds anything else
        ours = listed is not None and {file.name for file in self.out.iterdir()} <= listed
        if not (ours and self.overwrite):
            other = f"it is no {self.noun}, so it is not replaced; choose another --out"
            raise OutputError(f"{self.given}: already exists; {'add --overwrite to replace it' if ours else other}")

    def __enter__(self) -> Self:
        self._made = [folder for folder in self.out.parents if not folder.exists()]
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._root = Path(tempfile.mkdtemp(prefix=f".{self.out.name}.partial-", dir=self.out.parent))
        except OSError as error:
            self._remove_parents()
            raise to_output_error(self.given, error) from error
        self.scratch, self.build = self._root / "scratch", self._root / "build"
        self.scratch.mkdir()
        self.build.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        if error is None:
            return
        self._remove_parents()
        translated = self.translate(error)
        if translated is not error:
            raise translated from error

    def translate(self, error: BaseException) -> BaseException:
        """What went wrong, in our words; a bug of ours stays as it is and is seen whole."""
        return to_output_error(self.given, error) if isinstance(error, OSError) else error

    def _remove_parents(self) -> None:
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def publish(self) -> Path:
        """Flush every file and rename the build to its final name."""
        for file in sorted(self.build.rglob("*")):
            fsync(file)
        fsync(self.build)
        replaced = self._root / "replaced"
        if self.overwrite and self.out.exists():
            os.rename(self.out, replaced)
        try:
            os.rename(self.build, self.out)  # an empty folder of that name is replaced, a full one refused by the kernel
        except OSError:
            if replaced.exists():
                os.rename(replaced, self.out)
            raise
        fsync(self.out.parent)
        return self.out


def write_atomic(path: Path, content: bytes) -> None:
    """One file, whole or not at all: a reader sees the old one or the new one, even if the power fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        temporary.write_bytes(content)
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise to_output_error(str(path), error) from error


def to_output_error(out: str, error: OSError) -> OutputError:
    """Why something could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(f"{out}: the disk is full; nothing was written, free some space and run again")
    return OutputError(f"{out}: cannot be written ({error.strerror or error}); check the folder and its permissions")


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
