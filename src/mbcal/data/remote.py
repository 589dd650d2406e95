"""Files that are not on this machine: `s3://`, `gs://`, and every other URL that fsspec knows.

pyarrow reads S3 and Google Cloud Storage itself. Files are copied into the scratch folder, a few megabytes in memory at a
time, and are local from there on: text is inspected, zips are unpacked, the workers of an engine read them like any log.

Credentials and endpoints come from the environment, as for other tools (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS). They are never part of a message or a manifest.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from mbcal.errors import InputError, OptionError, OutputError

_CHUNK = 1 << 24
"""Bytes of one file in memory. Each chunk is a request, which may take a tenth of a second."""
_FILES_AT_A_TIME = 4
_PATTERN = re.compile(r"[*?\[]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")
"""Scheme of a URL. `Path("s3://bucket")` has lost one of its slashes. Letters of drives have one letter."""


@dataclass(frozen=True)
class _RemoteFile:
    filesystem: Any
    """An fsspec file system."""
    path: str
    """Path within it."""
    size: int
    url: str
    """What the user named, for messages."""

    @property
    def name(self) -> str:
        """Name of the file, without a signature after it."""
        return PurePosixPath(self.path.partition("?")[0] if self.url.startswith("http") else self.path).name


def as_url(path: str | Path) -> str | None:
    """Return a path as a URL, or None if it is on this machine."""
    text = str(path)
    match = _URL.match(text)
    if match is None or match[1].lower() == "file" or (isinstance(path, Path) and path.exists()):
        return None
    return f"{match[1].lower()}://{text[match.end() :]}"


def shown(url: str) -> str:
    """Return a URL for a message, without credentials: neither `user:password@` nor a signature after `?`."""
    return re.sub(r"//.*@", "//…@", url.partition("?")[0])  # up to the last @: a password may hold / and @


def fetch(urls: Sequence[str], is_wanted: Callable[[str], bool], scratch: Path) -> list[Path]:
    """Copy the files of URLs into a new folder in `scratch`.

    Args:
        urls: Files, patterns (`s3://bucket/2026-*.parquet`) and folders.
        is_wanted: Whether a file in a folder is needed, by its path below the folder. Files that are named or match a
            pattern are always copied.
        scratch: Where the folder is created.

    Returns:
        The copies, in the order of the URLs; files of a pattern or folder by name.

    Raises:
        InputError: If there is no such file, it is named twice or cannot be read, or a package is missing.
        OptionError: If a URL holds a password.
        OutputError: If the disk has no room.
    """
    files = [file for url in urls for file in _list(url, is_wanted)]
    paths: set[tuple[str, str]] = set()
    for file in files:
        scheme = file.url.partition("://")[0]
        if (scheme, file.path) in paths:
            raise InputError(f"{shown(file.url)}: {file.name} is named twice; name it once")
        paths.add((scheme, file.path))
    folder = scratch / f"remote-{len(list(scratch.iterdir()))}"
    folder.mkdir()
    needed, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(f"{shown(urls[0])}: copying needs {needed:,} bytes, the disk has {free:,}; free some space")
    targets = [folder / f"{number}" / file.name for number, file in enumerate(files)]
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        list(pool.map(_copy, files, targets))
    return targets


def _copy(file: _RemoteFile, target: Path) -> None:
    target.parent.mkdir()
    with target.open("wb") as copy:
        try:
            with file.filesystem.open(file.path, "rb") as source:
                shutil.copyfileobj(source, copy, _CHUNK)
        except (OSError, ValueError) as error:
            raise _unreadable(file.url, error) from error


def _list(url: str, is_wanted: Callable[[str], bool]) -> list[_RemoteFile]:
    """Return the files of one URL."""
    filesystem, path = _filesystem(url)
    try:
        if _PATTERN.search(path) and not url.startswith("http"):  # the web lists nothing, and a query begins with `?`
            matching = filesystem.glob(path, detail=True)
        else:
            matching = {path: filesystem.info(path)}
        sizes = _sizes(matching)
        for folder in sorted(matching.keys() - sizes.keys()):
            below = _sizes(filesystem.find(folder, detail=True))
            sizes |= {name: size for name, size in below.items() if is_wanted(name.removeprefix(folder).strip("/"))}
    except FileNotFoundError as error:
        raise InputError(f"{shown(url)}: no such file or folder; check the address") from error
    except (OSError, ValueError) as error:
        raise _unreadable(url, error) from error
    if not sizes:
        raise InputError(f"{shown(url)}: no file found; check the address")
    return [_RemoteFile(filesystem, name, size, url) for name, size in sorted(sizes.items())]


def _sizes(listing: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return path -> bytes of the files in a listing."""
    return {name: int(entry["size"] or 0) for name, entry in listing.items() if entry["type"] == "file"}


def _filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, by the interface of fsspec, and the path in it."""
    parts = urlsplit(url)
    if "@" in parts.netloc or re.search(r"://[^?]*:[^?]*@", url):
        problem = f"{shown(url)}: a password in a URL ends up in histories and logs"
        raise OptionError(f"{problem}; give it in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    try:
        from fsspec.implementations.arrow import ArrowFSWrapper

        path = url.partition("://")[2].rstrip("/")
        if parts.scheme == "s3":
            return ArrowFSWrapper(_s3(parts.netloc)), path
        if parts.scheme in ("gs", "gcs"):
            from pyarrow.fs import GcsFileSystem

            return ArrowFSWrapper(GcsFileSystem()), path
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(url)
        return filesystem, path
    except (ImportError, ValueError) as error:
        hint = "pip install 'mbcal[http]'" if parts.scheme.startswith("http") else "install the package it names"
        raise InputError(
            f"{shown(url)}: {parts.scheme}:// cannot be read here ({_first_line(url, error)}); {hint}"
        ) from error
    except OSError as error:
        raise _unreadable(url, error) from error


def _s3(bucket: str) -> Any:
    """Return pyarrow's file system for a bucket; unlike other tools it ignores AWS_ENDPOINT_URL by itself."""
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None:
        region = "us-east-1" if endpoint else resolve_s3_region(bucket)
    return S3FileSystem(region=region, endpoint_override=endpoint)


def _unreadable(url: str, error: Exception) -> InputError:
    problem = f"{shown(url)}: cannot be read ({_first_line(url, error)})"
    return InputError(f"{problem}; check the address, and the credentials in the environment")


def _first_line(url: str, error: Exception) -> str:
    """The first line of an error, without what `shown` hides of the URL."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    query = url.partition("?")[2]
    return line.replace(query, "…") if query else line
