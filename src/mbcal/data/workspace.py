"""The folder in which a store is built, with a DuckDB connection and a scratch folder.

The scratch folder is beside the output and is removed when the work ends, unless the process is killed.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from mbcal.errors import InputError, MbcalError, OptionError
from mbcal.storage.atomic import AtomicFolder, to_output_error

if TYPE_CHECKING:
    import duckdb

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}

DUCKDB_SHARE = 0.7
"""Share of the memory limit for DuckDB; Python, Arrow, blocks being cut and what DuckDB does not count use the rest."""
SMALLEST_LIMIT = 600 * 2**20
"""Smallest memory limit: DuckDB's out-of-core sort needs about 200 MiB for two threads, and would fail late with less."""


def parse_memory(text: str) -> int:
    """Parse `1.5GB`, `800MiB` or `2g` into bytes; units are powers of 1024.

    Raises:
        OptionError: If the text is not a size, or too small.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if match is None:
        raise OptionError(f"memory-limit: {text!r} is not a size; write 1.5GB or 800MB, for instance")
    size = int(min(float(match[1]), 2.0**62) * _UNITS[match[2]])
    if size < SMALLEST_LIMIT:
        raise OptionError(f"memory-limit: {text} is too little to sort a log; give at least {SMALLEST_LIMIT >> 20}MB")
    return size


class Workspace(AtomicFolder):
    """Folder in which a store is built: `with Workspace(out) as work:` fill `work.build`, then `work.publish()`.

    Args:
        out: Where the store will be.
        memory_limit: Memory of the whole process, such as `1.5GB`.
        overwrite: Replace an existing store.
    """

    def __init__(self, out: Path, memory_limit: str = "1.5GB", overwrite: bool = False) -> None:
        super().__init__(out, "store", overwrite)
        self._limit = parse_memory(memory_limit)
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._connection is not None:
            self._connection.close()
        super().__exit__(kind, error, trace)

    def translate(self, error: BaseException) -> BaseException:
        """Return an error in plain words: names of inputs instead of scratch files, and MbcalError for those of DuckDB."""
        if isinstance(error, MbcalError):
            scratch = re.escape(f"{self.scratch}/")
            text = re.sub(rf"{scratch}frame-\d+/frame\.parquet", "the data frame", str(error))
            unpacked = rf"{scratch}(?:zip-\d+-([^/]+)/\d+/|newlines-\d+/|remote-\d+/\d+/)"
            text = re.sub(unpacked, lambda match: f"{match[1]}: " if match[1] else "", text)
            return error if text == str(error) else type(error)(text)
        if isinstance(error, OSError):
            path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else self.out
            if self.out.parent in path.absolute().parents or path == self.out:
                return to_output_error(self.given_path, error)
            return InputError(f"{path}: cannot be read ({error.strerror or error}); check the file and its permissions")
        if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb"):
            return error
        text, name = str(error).splitlines()[0], type(error).__name__
        if re.search("no space left|file too large|could not write|disk quota", text, re.IGNORECASE):
            return to_output_error(self.given_path, OSError(errno.ENOSPC, text))
        if name == "OutOfMemoryException":
            return OptionError(
                "memory-limit: too little for this log; raise --memory-limit or free disk space to spill into"
            )
        if name in ("BinderException", "CatalogException", "InternalException", "ParserException"):
            return error
        return InputError(f"the log cannot be read: {text.partition(': ')[2] or text}")

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """DuckDB on all cores, spilling into the scratch folder; opened on first use."""
        if self._connection is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            self._connection = connect_duckdb(self.scratch, self._limit, cores)
        return self._connection

    def worker_memory(self, workers: int) -> int:
        """Return the bytes for each of several workers: a share of the limit, but at least `SMALLEST_LIMIT`."""
        return max(self._limit // workers, SMALLEST_LIMIT)


def connect_duckdb(folder: Path, limit: int, threads: int) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB database that never uses the network.

    Args:
        folder: Holds the database and spilled data.
        limit: Bytes of memory of the whole process; DuckDB gets `DUCKDB_SHARE` of it.
        threads: Number of threads.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{int(limit * DUCKDB_SHARE) >> 10}KiB",
        "temp_directory": str(folder / "spill"),
        "threads": threads,
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(str(folder / "work.duckdb"), config=config)
    connection.execute("SET TimeZone='UTC'; SET enable_progress_bar=false")
    return connection
