"""From what a user names (folders, zips, files) to plain files on disk, found by pattern and safe to read."""

from __future__ import annotations

import codecs
import csv
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

from mbcal.errors import InputError, OutputError, nearest
from mbcal.storage.manifest import listed_files

Patterns = Mapping[str, Sequence[str]]
"""Role of a file -> the names it may have, as shell patterns (lower case)."""

Paths = str | Path | Sequence[str | Path]
"""What a user may name: one path or several."""

_CHUNK = 1 << 20


def as_paths(paths: Paths) -> list[Path]:
    """One path or several, as a list."""
    return [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]


def find_files(paths: Iterable[Path], patterns: Patterns, scratch: Path) -> dict[str, list[Path]]:
    """Every file with a role, from folders (searched to the bottom), zips (unpacked into `scratch`) and single files.

    Each role's files are sorted by name. A single file whose name fits no role takes the first role: people rename logs.
    Hidden files and folders, and stores that lie within a folder, are passed over.
    """
    found: dict[str, list[Path]] = {role: [] for role in patterns}
    for path in paths:
        if path.is_dir():
            for file in _walk(path):
                if role := _role(file.relative_to(path).as_posix(), patterns):
                    found[role].append(file)
        elif path.is_file() and _looks_like_zip(path):
            for role, file in _unzip(path, patterns, scratch):
                found[role].append(file)
        elif path.is_file():
            found[_role(path.name, patterns) or next(iter(patterns))].append(path)
        else:
            raise InputError(f"{path}: no such file or folder; check the path")
    for role, files in found.items():
        found[role] = sorted(files, key=lambda file: (file.name, str(file)))
        seen = set()
        for file in found[role]:
            facts = file.stat()
            if facts.st_size == 0:
                raise InputError(f"{file}: the file is empty; fetch or export it again")
            if (facts.st_dev, facts.st_ino) in seen:
                raise InputError(f"{file}: named twice; name it once")
            seen.add((facts.st_dev, facts.st_ino))
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """Every file below a folder, but for what lies in stores."""
    for here, folders, names in os.walk(folder):
        if listed_files(Path(here), "store") is not None:
            folders.clear()
        else:
            yield from (Path(here) / name for name in names)


def require_files(found: Mapping[str, list[Path]], role: str, paths: Iterable[Path], patterns: Patterns) -> list[Path]:
    """The files of a role, or one sentence about what was looked for and where."""
    if not found[role]:
        where = ", ".join(map(str, paths))
        zips = sorted(str(zipped) for path in paths if path.is_dir() for zipped in path.glob("*.zip"))
        hint = f"; name the zip itself: {zips[0]}" if zips else ""
        raise InputError(f"{where}: no {role} file found; looked for {' or '.join(patterns[role])}{hint}")
    return found[role]


def _role(path: str, patterns: Patterns) -> str | None:
    parts = PurePosixPath(path).parts
    name = parts[-1] if parts else ""
    if not name or any(part.startswith((".", "__MACOSX")) for part in parts):
        return None  # what archivers, desktops and killed runs leave beside the real files
    for role, names in patterns.items():
        if any(fnmatch(name.lower(), pattern) for pattern in names):
            return role
    return None


def _looks_like_zip(path: Path) -> bool:
    if path.suffix.lower() == ".zip":
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _unzip(path: Path, patterns: Patterns, scratch: Path) -> list[tuple[str, Path]]:
    unpacked: list[tuple[str, Path]] = []
    folder = scratch / f"zip-{len(list(scratch.iterdir()))}-{path.name[-100:]}"
    folder.mkdir()
    try:
        with zipfile.ZipFile(path) as archive:
            wanted = []
            for member in archive.infolist():
                inside = PurePosixPath(member.filename.replace("\\", "/"))
                if inside.is_absolute() or ".." in inside.parts or re.match("[A-Za-z]:", member.filename):
                    raise InputError(f"{path}: refused, its member {member.filename!r} climbs out of the archive")
                if not member.is_dir() and (role := _role(inside.as_posix(), patterns)):
                    wanted.append((role, member, inside.name))
            needed, free = sum(member.file_size for _, member, _ in wanted), shutil.disk_usage(folder).free
            if needed > free:
                raise OutputError(f"{path}: unpacking needs {needed:,} bytes, the disk has {free:,}; free some space")
            for number, (role, member, name) in enumerate(wanted):
                target = folder / f"{number}" / name
                target.parent.mkdir()
                with archive.open(member) as packed, target.open("wb") as plain:
                    shutil.copyfileobj(packed, plain, _CHUNK)
                unpacked.append((role, target))
    except (
        zipfile.BadZipFile,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise InputError(f"{path}: not a readable zip ({error}); fetch it again") from error
    return unpacked


def is_parquet(path: Path) -> bool:
    """Told by its first bytes: names lie."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


@dataclass(frozen=True)
class TextFile:
    """A text file as DuckDB can take it: its encoding and compression known, its line ends all alike."""

    path: Path
    encoding: str  # utf-8, or latin-1, which fits anything
    gzipped: bool

    def header(self, delimiter: str) -> list[str]:
        """Column names of a CSV file."""
        with _open(self.path, self.gzipped) as file:
            line = file.readline(_CHUNK).decode(self.encoding).removeprefix("\ufeff")
        try:
            return [name.strip() for name in next(csv.reader(io.StringIO(line), delimiter=delimiter), [])]
        except csv.Error as error:
            raise InputError(f"{self.path}: its first line is no header ({error}); check that this is the log") from error


def inspect_text(path: Path, scratch: Path) -> TextFile:
    """Look through a text file once; where its line ends are not plain, go on with a mended copy in `scratch`."""
    with path.open("rb") as start:
        magic = start.read(4)
    gzipped = magic[:2] == b"\x1f\x8b"
    if magic == b"PAR1" or magic[:2] in (b"\xff\xfe", b"\xfe\xff"):
        kind = "Parquet" if magic == b"PAR1" else "UTF-16 text"
        raise InputError(f"{path}: this is {kind}, and text in UTF-8 or latin-1 was expected; convert it")
    decoder = codecs.getincrementaldecoder("utf-8")()
    encoding, returns = "utf-8", False
    try:
        with _open(path, gzipped) as file:
            while chunk := file.read(_CHUNK):
                if b"\0" in chunk:
                    raise InputError(f"{path}: holds zero bytes, so it is not text; check that this is the log")
                returns = returns or b"\r" in chunk
                if encoding == "utf-8" and not (chunk.isascii() and decoder.getstate()[0] == b""):
                    try:
                        decoder.decode(chunk)
                    except UnicodeDecodeError:
                        encoding = "latin-1"
        if encoding == "utf-8" and decoder.getstate()[0]:
            encoding = "latin-1"  # it ends within a character
        if returns:
            ends = _line_ends(path, gzipped)
            if ends != "alike":
                return TextFile(_mended(path, gzipped, ends, scratch), encoding, gzipped=False)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); fetch or export it again") from error
    return TextFile(path, encoding, gzipped)


def _line_ends(path: Path, gzipped: bool) -> Literal["alike", "mixed", "returns"]:
    """How lines end in a file that holds returns: all with return and newline, with both kinds, or with returns alone."""
    ends = returns = both = 0
    last = b""
    with _open(path, gzipped) as file:
        while chunk := file.read(_CHUNK):
            ends, returns = ends + chunk.count(b"\n"), returns + chunk.count(b"\r")
            both += chunk.count(b"\r\n") + (last + chunk[:1] == b"\r\n")
            last = chunk[-1:]
    if ends == 0:
        return "returns"
    return "alike" if ends == returns == both else "mixed"


def _mended(path: Path, gzipped: bool, ends: str, scratch: Path) -> Path:
    """A copy in which every line ends with a newline alone; where lines end otherwise, a lone return is a space."""
    lone = b"\n" if ends == "returns" else b" "
    folder = scratch / f"mended-{len(list(scratch.iterdir()))}"
    folder.mkdir()
    target = folder / path.name
    with _open(path, gzipped) as file, target.open("wb") as plain:
        held = b""
        while chunk := file.read(_CHUNK):
            chunk, held = held + chunk, b""
            if chunk.endswith(b"\r"):  # its newline may come with the next chunk
                chunk, held = chunk[:-1], b"\r"
            plain.write(chunk.replace(b"\r\n", b"\n").replace(b"\r", lone))
        plain.write(held.replace(b"\r", b"\n"))
    return target


def _open(path: Path, gzipped: bool) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if gzipped else path.open("rb")


def parquet_columns(path: Path) -> list[str]:
    """Column names of a Parquet file, or one sentence."""
    try:
        return list(pq.read_schema(path).names)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise InputError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}); export it again") from error


def require_columns(path: Path, present: Sequence[str], wanted: Iterable[str]) -> None:
    """One sentence naming the first column that is missing, or there twice."""
    for name in wanted:
        if name not in present:
            listed = textwrap.shorten(", ".join(present) or "none", 300)
            raise InputError(f"{path}: no column {name!r}; the file has {listed}.{nearest(name, present)}")
        if present.count(name) > 1:
            raise InputError(f"{path}: column {name!r} appears twice in the header; rename one")
