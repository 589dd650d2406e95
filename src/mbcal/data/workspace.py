"""A scratch folder beside the output, a DuckDB connection that spills into it, and one rename at the end.

Whatever is built is built under a temporary name on the output's own disk, flushed, and renamed whole: a reader sees
either nothing or everything. (An existing store that is overwritten is moved aside just before; a machine that dies between
the two renames leaves it in the hidden folder.) The scratch folder is removed however the work ends, short of `kill -9`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from mbcal.errors import InputError, MbcalError, OptionError, OutputError

if TYPE_CHECKING:
    import duckdb

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

DUCKDB_SHARE = 0.7
"""Part of a memory limit given to DuckDB; Python, Arrow, blocks being cut and what DuckDB does not count take the rest."""
SMALLEST_LIMIT = 600 * 2**20
"""DuckDB's out-of-core sort needs about 200 MiB for two threads; less than this in all fails late instead of at once."""


def parse_memory(text: str) -> int:
    """`1.5GB`, `800MiB`, `2g` -> bytes (units are powers of 1024)."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if match is None:
        raise OptionError(f"memory-limit: {text!r} is not a size; write 1.5GB or 800MB, for instance")
    size = int(min(float(match[1]), 2.0**62) * _UNITS[match[2]])
    if size < SMALLEST_LIMIT:
        raise OptionError(f"memory-limit: {text} is too little to sort a log; give at least {SMALLEST_LIMIT >> 20}MB")
    return size


class Workspace:
    """`with Workspace(out) as work:` fill `work.build`, then `work.publish()`."""

    def __init__(self, out: Path, memory_limit: str = "1.5GB", overwrite: bool = False) -> None:
        self.given, self.out = str(out), out.resolve()
        self.overwrite = overwrite
        self._memory = int(parse_memory(memory_limit) * DUCKDB_SHARE)
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._refuse_to_replace()

    def _refuse_to_replace(self) -> None:
        if not self.out.exists() or (self.out.is_dir() and not any(self.out.iterdir())):
            return
        listed = listed_in_store(self.out)  # nothing is replaced that holds anything but a store
        ours = listed is not None and {file.name for file in self.out.iterdir()} <= listed
        if not (ours and self.overwrite):
            advice = (
                "add --overwrite to replace it" if ours else "it is no store, so it is not replaced; choose another --out"
            )
            raise OutputError(f"{self.given}: already exists; {advice}")

    def __enter__(self) -> Self:
        self._made = [folder for folder in self.out.parents if not folder.exists()]
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._root = Path(tempfile.mkdtemp(prefix=f".{self.out.name}.partial-", dir=self.out.parent))
        except OSError as error:
            self._remove_parents()
            raise _output_error(self.given, error) from error
        self.scratch, self.build = self._root / "scratch", self._root / "build"
        self.scratch.mkdir()
        self.build.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._connection is not None:
            self._connection.close()
        shutil.rmtree(self._root, ignore_errors=True)
        if error is None:
            return
        self._remove_parents()
        translated = self._translate(error)
        if translated is not error:
            raise translated from error

    def _remove_parents(self) -> None:
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _translate(self, error: BaseException) -> BaseException:
        """What the parts below complain of, in our words; a bug of ours stays as it is and is seen whole."""
        if isinstance(error, MbcalError):  # a file unpacked into scratch goes by the name of its archive
            inside = re.escape(f"{self.scratch}/") + r"(?:zip-\d+-([^/]+)/\d+/|mended-\d+/)"
            plain = re.sub(inside, lambda match: f"{match[1]}: " if match[1] else "", str(error))
            return error if plain == str(error) else type(error)(plain)
        if isinstance(error, OSError):
            named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else self.out
            if self.out.parent in named.absolute().parents or named == self.out:
                return _output_error(self.given, error)
            return InputError(f"{named}: cannot be read ({error.strerror or error}); check the file and its permissions")
        if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb"):
            return error
        text, name = str(error).splitlines()[0], type(error).__name__
        if re.search("no space left|file too large|could not write|disk quota", text, re.IGNORECASE):
            return _output_error(self.given, OSError(errno.ENOSPC, text))
        if name == "OutOfMemoryException":
            return OptionError(
                "memory-limit: too little for this log; raise --memory-limit or free disk space to spill into"
            )
        if name in ("BinderException", "CatalogException", "InternalException", "ParserException"):
            return error
        return InputError(f"the log cannot be read: {text.partition(': ')[2] or text}")

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB, limited in memory, spilling into the scratch folder, and never reaching for the network."""
        if self._connection is None:
            import duckdb

            config: dict[str, str | bool | int | float | list[str]] = {
                "memory_limit": f"{self._memory >> 10}KiB",
                "temp_directory": str(self.scratch / "spill"),
                "threads": max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
            self._connection = duckdb.connect(str(self.scratch / "work.duckdb"), config=config)
            self._connection.execute("SET TimeZone='UTC'; SET enable_progress_bar=false")
        return self._connection

    def publish(self) -> Path:
        """Flush every file and rename the build to its final name."""
        for file in sorted(self.build.rglob("*")):
            _flush(file)
        _flush(self.build)
        replaced = self._root / "replaced"
        if self.overwrite and self.out.exists():
            os.rename(self.out, replaced)
        try:
            os.rename(self.build, self.out)  # an empty folder of that name is replaced, a full one refused by the kernel
        except OSError:
            if replaced.exists():
                os.rename(replaced, self.out)
            raise
        _flush(self.out.parent)
        return self.out


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def listed_in_store(folder: Path) -> set[str] | None:
    """The files of the store in this folder; None when there is none."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        return {*manifest["files"], "manifest.json"} if "content_hash" in manifest else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _output_error(out: str, error: OSError) -> OutputError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(f"{out}: the disk is full; nothing was written, free some space and run again")
    return OutputError(f"{out}: cannot be written ({error.strerror or error}); check the folder and its permissions")
