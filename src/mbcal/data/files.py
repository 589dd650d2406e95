"""Input files: found by name, pattern or URL and in folders and zips, checked, and text brought into a form DuckDB reads."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import io
import lzma
import os
import re
import shutil
import textwrap
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, cast

import pyarrow.parquet as pq

from mbcal.data.remote import as_url, fetch, shown
from mbcal.errors import InputError, MissingColumnError, OutputError, nearest
from mbcal.storage.manifest import listed_files

Patterns = Mapping[str, Sequence[str]]
"""Role of a file (`ratings`, `movies`) -> the names it may have, as lower-case shell patterns."""
Paths = str | Path | Sequence[str | Path]
"""One path or several: files, folders or zips; patterns (`logs/2026-*.parquet`) and URLs (`s3://bucket/logs`) of them."""
Location = Path | str
"""A path on this machine, or a URL as text."""
LineEnds = Literal["uniform", "mixed", "returns"]
"""Of a text file: all `\\n` or all `\\r\\n`; more than one kind; all `\\r`."""

_CHUNK = 1 << 20
"""Bytes read at a time."""
_PARQUET_MAGIC, _ZIP_MAGIC, _GZIP_MAGIC = b"PAR1", b"PK\x03\x04", b"\x1f\x8b"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    ValueError,
    NotImplementedError,
    RuntimeError,
)
"""What zipfile raises for damaged, encrypted or unsupported archives."""


def as_paths(paths: Paths) -> list[Location]:
    """Return one path or several as a list; URLs stay text, since a Path would lose one of their slashes."""
    listed = [paths] if isinstance(paths, str | Path) else paths
    return [as_url(path) or Path(path) for path in listed]


def find_files(paths: Sequence[Location], patterns: Patterns, scratch: Path) -> dict[str, list[Path]]:
    """Find the files of every role.

    Folders are searched recursively, without hidden files and without stores. Zips are unpacked. A file given by its own
    path, or by a pattern, whose name matches no role takes the first role, since users rename logs. What is on another
    machine is copied.

    Args:
        paths: Folders, zips and files; patterns and URLs of them.
        patterns: The roles, and the names that their files may have.
        scratch: Where zips are unpacked and remote files are copied.

    Returns:
        Role -> files, sorted by name; empty lists for roles without any.

    Raises:
        InputError: If a path does not exist, a file is empty or found twice, or a zip is damaged.
        OutputError: If the disk has no room for the content of a zip.
    """
    found: dict[str, list[Path]] = {role: [] for role in patterns}
    for path in _local_paths(paths, patterns, scratch):
        if path.is_dir():
            for file in _files_below(path):
                if role := _role(file.relative_to(path).as_posix(), patterns):
                    found[role].append(file)
        elif path.is_file() and _is_zip(path):
            for role, file in _unzip(path, patterns, scratch):
                found[role].append(file)
        elif path.is_file():
            found[_role(path.name, patterns) or next(iter(patterns))].append(path)
        else:
            raise InputError(f"{path}: no such file or folder; check the path")
    sorted_files = {role: sorted(files, key=lambda file: (file.name, str(file))) for role, files in found.items()}
    for files in sorted_files.values():
        _require_distinct(files)
    return sorted_files


def _local_paths(paths: Sequence[Location], patterns: Patterns, scratch: Path) -> Iterator[Path]:
    """Yield paths on this machine: patterns are expanded, URLs are copied. An existing file is never a pattern."""
    for path in paths:
        if isinstance(path, Path) and not path.exists() and glob.has_magic(str(path)):
            matching = sorted(glob.glob(str(path), recursive=True))
            if not matching:
                raise InputError(f"{path}: no file matches this pattern; check the path")
            yield from map(Path, matching)
        elif isinstance(path, Path):
            yield path
    if urls := [path for path in paths if isinstance(path, str)]:
        yield from fetch(urls, lambda name: _role(name, patterns) is not None, scratch)


def require_files(found: Mapping[str, list[Path]], role: str, paths: Sequence[Location], patterns: Patterns) -> list[Path]:
    """Return the files of a role; raises InputError if there are none."""
    if not found[role]:
        searched = ", ".join(shown(path) if isinstance(path, str) else str(path) for path in paths)
        folders = [path for path in paths if isinstance(path, Path) and path.is_dir()]
        zips = sorted(str(zipped) for folder in folders for zipped in folder.glob("*.zip"))
        hint = f"; name the zip itself: {zips[0]}" if zips else ""
        raise InputError(f"{searched}: no {role} file found; looked for {' or '.join(patterns[role])}{hint}")
    return found[role]


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, except those of stores."""
    for current, subfolders, names in os.walk(folder):
        if listed_files(Path(current), "store") is not None:
            subfolders.clear()
        else:
            yield from (Path(current) / name for name in names)


def _role(path: str, patterns: Patterns) -> str | None:
    parts = PurePosixPath(path).parts
    name = parts[-1] if parts else ""
    if not name or any(part.startswith((".", "__MACOSX")) for part in parts):
        return None  # left by archivers, desktops and killed runs
    for role, names in patterns.items():
        if any(fnmatch(name.lower(), pattern) for pattern in names):
            return role
    return None


def _require_distinct(files: Sequence[Path]) -> None:
    seen = set()
    for file in files:
        status = file.stat()
        if status.st_size == 0:
            raise InputError(f"{file}: the file is empty; download or export it again")
        if (status.st_dev, status.st_ino) in seen:
            raise InputError(f"{file}: named twice; name it once")
        seen.add((status.st_dev, status.st_ino))


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip" or _first_bytes(path) == _ZIP_MAGIC


def _unzip(path: Path, patterns: Patterns, scratch: Path) -> list[tuple[str, Path]]:
    """Unpack the members that have a role; returns (role, file) pairs."""
    unpacked: list[tuple[str, Path]] = []
    folder = scratch / f"zip-{len(list(scratch.iterdir()))}-{path.name[-100:]}"
    folder.mkdir()
    try:
        with zipfile.ZipFile(path) as archive:
            members = list(_members(archive, path, patterns))
            needed, free = sum(member.file_size for _, member, _ in members), shutil.disk_usage(folder).free
            if needed > free:
                raise OutputError(f"{path}: unpacking needs {needed:,} bytes, the disk has {free:,}; free some space")
            for number, (role, member, name) in enumerate(members):
                target = folder / f"{number}" / name
                target.parent.mkdir()
                with archive.open(member) as packed, target.open("wb") as plain:
                    shutil.copyfileobj(packed, plain, _CHUNK)
                unpacked.append((role, target))
    except _ZIP_ERRORS as error:
        raise InputError(f"{path}: not a readable zip ({error}); download it again") from error
    return unpacked


def _members(archive: zipfile.ZipFile, path: Path, patterns: Patterns) -> Iterator[tuple[str, zipfile.ZipInfo, str]]:
    """Yield (role, member, file name); raises InputError for members that would be written outside the target folder."""
    for member in archive.infolist():
        inside = PurePosixPath(member.filename.replace("\\", "/"))
        if inside.is_absolute() or ".." in inside.parts or re.match("[A-Za-z]:", member.filename):
            raise InputError(f"{path}: refused, its member {member.filename!r} has a path outside the archive")
        if not member.is_dir() and (role := _role(inside.as_posix(), patterns)):
            yield role, member, inside.name


@dataclass(frozen=True)
class TextFile:
    """A text file that DuckDB can read: encoding and compression are known, line ends are uniform."""

    path: Path
    encoding: str
    """`utf-8`, or `latin-1`, which decodes anything."""
    gzipped: bool

    def header(self, delimiter: str) -> list[str]:
        """Return the column names in the first line; raises InputError if it is not valid CSV."""
        with _open(self.path, self.gzipped) as file:
            line = file.readline(_CHUNK).decode(self.encoding).removeprefix("\ufeff")
        try:
            return [name.strip() for name in next(csv.reader(io.StringIO(line), delimiter=delimiter), [])]
        except csv.Error as error:
            problem = f"its first line is not a header ({error})"
            raise InputError(f"{self.path}: {problem}; check that this is the log") from error


def inspect_text(path: Path, scratch: Path) -> TextFile:
    """Read through a text file to find its encoding and line ends.

    Args:
        path: The file, plain or gzipped.
        scratch: Where a copy with uniform line ends is written if the file's own are not.

    Raises:
        InputError: If the file is not text in UTF-8 or latin-1, or cannot be read.
    """
    magic = _first_bytes(path)
    if magic == _PARQUET_MAGIC or magic[:2] in _UTF16_MARKS:
        kind = "Parquet" if magic == _PARQUET_MAGIC else "UTF-16 text"
        raise InputError(f"{path}: this is {kind}, but text in UTF-8 or latin-1 was expected; convert it")
    gzipped = magic[:2] == _GZIP_MAGIC
    try:
        encoding, has_returns = _scan_text(path, gzipped)
        line_ends = _line_ends(path, gzipped) if has_returns else "uniform"
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); download or export it again") from error
    if line_ends == "uniform":
        return TextFile(path, encoding, gzipped)
    return TextFile(_copy_with_newlines(path, gzipped, line_ends, scratch), encoding, gzipped=False)


def _scan_text(path: Path, gzipped: bool) -> tuple[str, bool]:
    """Return the encoding, and whether there is any carriage return."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    encoding, has_returns = "utf-8", False
    with _open(path, gzipped) as file:
        while chunk := file.read(_CHUNK):
            if b"\0" in chunk:
                raise InputError(f"{path}: holds zero bytes, so it is not text; check that this is the log")
            has_returns = has_returns or b"\r" in chunk
            if encoding == "utf-8" and not (chunk.isascii() and decoder.getstate()[0] == b""):
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError:
                    encoding = "latin-1"
    if encoding == "utf-8" and decoder.getstate()[0]:
        encoding = "latin-1"  # the file ends within a character
    return encoding, has_returns


def _line_ends(path: Path, gzipped: bool) -> LineEnds:
    """Classify the line ends of a file that holds carriage returns."""
    newlines = returns = pairs = 0
    last = b""
    with _open(path, gzipped) as file:
        while chunk := file.read(_CHUNK):
            newlines, returns = newlines + chunk.count(b"\n"), returns + chunk.count(b"\r")
            pairs += chunk.count(b"\r\n") + (last + chunk[:1] == b"\r\n")
            last = chunk[-1:]
    if newlines == 0:
        return "returns"
    return "uniform" if newlines == returns == pairs else "mixed"


def _copy_with_newlines(path: Path, gzipped: bool, line_ends: LineEnds, scratch: Path) -> Path:
    r"""Write a copy in which every line ends with `\n`.

    A `\r` without `\n` becomes a newline if all lines of the file end that way, and a space otherwise.
    """
    replacement = b"\n" if line_ends == "returns" else b" "
    folder = scratch / f"newlines-{len(list(scratch.iterdir()))}"
    folder.mkdir()
    target = folder / path.name
    with _open(path, gzipped) as file, target.open("wb") as copy:
        held = b""
        while chunk := file.read(_CHUNK):
            chunk, held = held + chunk, b""
            if chunk.endswith(b"\r"):  # the next chunk may begin with its newline
                chunk, held = chunk[:-1], b"\r"
            copy.write(chunk.replace(b"\r\n", b"\n").replace(b"\r", replacement))
        copy.write(held.replace(b"\r", b"\n"))
    return target


def _open(path: Path, gzipped: bool) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if gzipped else path.open("rb")


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def is_parquet(path: Path) -> bool:
    """Whether a file begins like Parquet, whatever its name."""
    return _first_bytes(path) == _PARQUET_MAGIC


def parquet_columns(path: Path) -> list[str]:
    """Return the column names of a Parquet file; raises InputError if it is not readable."""
    try:
        return list(pq.read_schema(path).names)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise InputError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}); export it again") from error


def require_columns(table: Path | str, present: Sequence[str], required: Iterable[str], others: Sequence[str] = ()) -> None:
    """Raise InputError for the first required column that is missing or present twice.

    Args:
        table: The file or table, for the message.
        present: Its columns.
        required: Columns that it must have.
        others: Names that may be given in place of a column, which a misspelt one may mean.
    """
    for name in required:
        if name not in present:
            listed = textwrap.shorten(", ".join(present) or "none", 300)
            hint = nearest(name, [*present, *others])
            raise MissingColumnError(f"{table}: no column {name!r}; its columns are {listed}.{hint}", name)
        if present.count(name) > 1:
            raise InputError(f"{table}: column {name!r} appears twice; rename one")
