"""The Netflix Prize log: `combined_data_*.txt`, the original `mv_*.txt`, or a Parquet of the same columns.

The text layouts name a movie once (`1234:`) above its ratings (`user,rating,date`). They are flattened, chunk by chunk, into
lines that all name the movie, for DuckDB to read. Labels are 0..5 and the reward is the label. Times are days: the order
within a day is a seeded shuffle (see `SessionConfig.seed`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from mbcal.data import files
from mbcal.data.files import Paths
from mbcal.data.readers.movielens import RULE
from mbcal.data.source import ITEM_KEY, LogDescription, LogFile
from mbcal.data.sql import csv_sql, parquet_sql, sql_identifier
from mbcal.data.workspace import Workspace
from mbcal.errors import InputError

WHERE = """\
The Netflix Prize log was withdrawn by Netflix; copies of its published files (combined_data_1.txt … combined_data_4.txt or
training_set/mv_*.txt, and movie_titles.csv) are available at https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data
and https://archive.org/details/nf_prize_dataset.tar. Terms: research only, not commercial, no redistribution.
Download it, then:  mbcal prepare netflix FOLDER_OR_ZIP --out DIR"""

PATTERNS = {
    "ratings": ["combined_data_*.txt", "mv_*.txt", "ratings*.parquet"],
    "titles": ["movie_titles.csv", "movie_titles.txt"],
}
COLUMNS = ("customer_id", "movie_id", "rating", "date")
_CHUNK = 1 << 24
_HEADER = re.compile(rb"^[ \t]*(\d+)[ \t]*:[ \t]*\r?\n", re.MULTILINE)


@dataclass(frozen=True)
class Netflix:
    """The Netflix Prize log."""

    paths: Paths
    """A folder, a zip or single files."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            InputError: If there are no ratings, or a file is in another layout.
        """
        paths = files.as_paths(self.paths)
        found = files.find_files(paths, PATTERNS, work.scratch)
        ratings = files.require_files(found, "ratings", paths, PATTERNS)
        is_table = {path: files.is_parquet(path) for path in ratings}
        tables, texts = ([path for path in ratings if is_table[path] is kind] for kind in (True, False))
        cast = "::VARCHAR" if texts else ""  # numbers stay numbers if all files are Parquet
        roles = zip(COLUMNS, ("user", "item", "behaviour", "time"), strict=True)
        columns_sql = ", ".join(f"{column}{cast} AS {sql_identifier(role)}" for column, role in roles)
        log_files = []
        for path in tables:
            files.require_columns(path, files.parquet_columns(path), COLUMNS)
            log_files.append(LogFile(path, columns_sql, parquet_sql(path), is_parquet=True))
        if texts:
            flat = work.scratch / "netflix.csv"
            with flat.open("wb") as out:
                for path in texts:
                    with path.open("rb") as file:
                        flatten(file, out, path)
            header = ["movie_id", "customer_id", "rating", "date"]
            flat_sql = csv_sql(files.inspect_text(flat, work.scratch), header, COLUMNS, has_header=False, quoted=False)
            log_files.append(LogFile(flat, columns_sql, f"({flat_sql})"))
        titles = None
        if found["titles"]:
            work.connection.register("movie_titles", read_titles(found["titles"], work.scratch))
            titles = "SELECT * FROM movie_titles"
        return LogDescription(layout="netflix", files=tuple(log_files), rule=RULE, titles_sql=titles)


def read_titles(paths: Iterable[Path], scratch: Path) -> pa.Table:
    """Read lines `id,year,title`, in which the title is not quoted and may contain commas.

    Args:
        paths: The files.
        scratch: For a copy if line ends are mixed.

    Returns:
        Columns ITEM_KEY and `title`. Malformed lines are skipped.
    """
    texts = [path.read_text(files.inspect_text(path, scratch).encoding) for path in paths]
    lines = [line.split(",", 2) for text in texts for line in text.split("\n")]  # a title may contain other line breaks
    valid = [parts for parts in lines if len(parts) == 3]
    return pa.table({ITEM_KEY: [parts[0].strip() for parts in valid], "title": [parts[2].strip() for parts in valid]})


def flatten(file: BinaryIO, out: BinaryIO, path: Path) -> None:
    r"""Rewrite `7:\n11,3,2005-01-02\n` as `7,11,3,2005-01-02\n`, one chunk in memory at a time.

    Args:
        file: Text in the Netflix layout.
        out: Receives the flat lines.
        path: Name of the file, for messages.

    Raises:
        InputError: If there is a rating before the first movie.
    """
    movie: bytes | None = None
    for chunk in _lines(file):
        position = 0
        for header in _HEADER.finditer(chunk):
            _emit(chunk[position : header.start()], movie, out, path)
            movie, position = header[1], header.end()
        _emit(chunk[position:], movie, out, path)


def _lines(file: BinaryIO) -> Iterable[bytes]:
    """Yield chunks of whole lines."""
    rest = b""
    while chunk := file.read(_CHUNK):
        lines, newline, rest = (rest + chunk).rpartition(b"\n")
        yield lines + newline
    if rest:
        yield rest + b"\n"


def _emit(ratings: bytes, movie: bytes | None, out: BinaryIO, path: Path) -> None:
    ratings = ratings.strip(b"\r\n")
    if not ratings:
        return
    if movie is None:
        raise InputError(f"{path}: no 'movie:' line before the first rating; this is not the Netflix layout")
    out.write(movie + b"," + ratings.replace(b"\n", b"\n" + movie + b",") + b"\n")
