"""Folders and files that are written atomically: a reader sees the previous one or the complete new one.

A folder is built under a temporary name on the output's own disk, fsynced, and renamed::

    parent/.OUT.partial-XXXX/scratch/    temporary files, removed in any case
    parent/.OUT.partial-XXXX/build/      becomes parent/OUT

A folder that is overwritten is moved aside just before. If the machine dies between the two renames, it is left in the
hidden folder.
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
    """A folder that appears only when complete. If the block fails, everything written is removed.

    ::

        with AtomicFolder(out, "store") as folder:
            ...  # write files to folder.build, temporary ones to folder.scratch
            folder.publish()

    Args:
        out: The final path.
        noun: The kind of artifact, as in its manifest: `store`, `model`.
        overwrite: Replace an artifact of that kind. Folders that hold any other file are never replaced.

    Raises:
        OutputError: If the path exists and may not be replaced, or cannot be written.
    """

    def __init__(self, out: Path, noun: str, overwrite: bool = False) -> None:
        self.given_path, self.out = str(out), out.resolve()
        self.noun, self.overwrite = noun, overwrite
        self._require_replaceable()

    def _require_replaceable(self) -> None:
        if not self.out.exists() or (self.out.is_dir() and not any(self.out.iterdir())):
            return
        listed = listed_files(self.out, self.noun)
        is_artifact = listed is not None and {file.name for file in self.out.iterdir()} <= listed
        if not is_artifact:
            problem = f"it is not a {self.noun}, so it is not replaced"
            raise OutputError(f"{self.given_path}: already exists; {problem}; choose another --out")
        if not self.overwrite:
            raise OutputError(f"{self.given_path}: already exists; add --overwrite to replace it")

    def __enter__(self) -> Self:
        self._new_parents = [folder for folder in self.out.parents if not folder.exists()]
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._root = Path(tempfile.mkdtemp(prefix=f".{self.out.name}.partial-", dir=self.out.parent))
        except OSError as error:
            self._remove_new_parents()
            raise to_output_error(self.given_path, error) from error
        self.scratch, self.build = self._root / "scratch", self._root / "build"
        self.scratch.mkdir()
        self.build.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        if error is None:
            return
        self._remove_new_parents()
        translated = self.translate(error)
        if translated is not error:
            raise translated from error

    def translate(self, error: BaseException) -> BaseException:
        """Return the error to raise instead of one from the block: an OutputError for OSError, else the error itself."""
        return to_output_error(self.given_path, error) if isinstance(error, OSError) else error

    def _remove_new_parents(self) -> None:
        for folder in self._new_parents:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def publish(self) -> Path:
        """Fsync every file and rename the build to its final path, which is returned."""
        for file in sorted(self.build.rglob("*")):
            fsync(file)
        fsync(self.build)
        replaced = self._root / "replaced"
        if self.overwrite and self.out.exists():
            os.rename(self.out, replaced)
        try:
            os.rename(self.build, self.out)  # replaces an empty folder; the kernel refuses one that is not empty
        except OSError:
            if replaced.exists():
                os.rename(replaced, self.out)
            raise
        fsync(self.out.parent)
        return self.out


def write_atomic(path: Path, content: bytes) -> None:
    """Write one file atomically: a reader sees the old content or the new, even after a power failure.

    Raises:
        OutputError: If it cannot be written. The old file stays.
    """
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
    """Return an OutputError that says in one sentence why `out` could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(f"{out}: the disk is full; nothing was written, free some space and run again")
    return OutputError(f"{out}: cannot be written ({error.strerror or error}); check the folder and its permissions")


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
