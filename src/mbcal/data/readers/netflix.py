"""The Netflix Prize log: `combined_data_*.txt`, the original `mv_*.txt`, or a Parquet of the same columns.

The text layouts name a movie once (`1234:`) above its ratings (`user,rating,date`); they are flattened into lines that
name it each time, chunk by chunk, and DuckDB reads those. Labels 0..5, reward = label. Time is by day: the order within a
day is a seeded shuffle (see `SessionConfig.seed`).
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
training_set/mv_*.txt, and movie_titles.csv) are kept at https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data
and https://archive.org/details/nf_prize_dataset.tar. Terms: research only, not commercial, not to be passed on.
Fetch it, then:  mbcal prepare netflix FOLDER_OR_ZIP --out DIR"""

PATTERNS = {
    "ratings": ["combined_data_*.txt", "mv_*.txt", "ratings*.parquet"],
    "titles": ["movie_titles.csv", "movie_titles.txt"],
}
COLUMNS = ("customer_id", "movie_id", "rating", "date")
_CHUNK = 1 << 24
_HEADER = re.compile(rb"^[ \t]*(\d+)[ \t]*:[ \t]*\r?\n", re.MULTILINE)


@dataclass(frozen=True)
class Netflix:
    """The log: a folder, a zip or single files."""

    paths: Paths

    def read(self, work: Workspace) -> LogDescription:
        """Describe it for ingestion."""
        paths = files.as_paths(self.paths)
        found = files.find_files(paths, PATTERNS, work.scratch)
        ratings = files.require_files(found, "ratings", paths, PATTERNS)
        tables: list[Path] = []
        texts: list[Path] = []
        for path in ratings:
            (tables if files.is_parquet(path) else texts).append(path)
        kind = "::VARCHAR" if texts else ""  # numbers stay numbers where every file has them
        ours = zip(COLUMNS, ("user", "item", "behaviour", "time"), strict=True)
        picked = ", ".join(f"{theirs}{kind} AS {sql_identifier(our)}" for theirs, our in ours)
        pieces = []
        for path in tables:
            files.require_columns(path, files.parquet_columns(path), COLUMNS)
            pieces.append(LogFile(path, picked, parquet_sql(path), is_parquet=True))
        if texts:
            flat = work.scratch / "netflix.csv"
            with flat.open("wb") as out:
                for path in texts:
                    with path.open("rb") as file:
                        flatten(file, out, path)
            header = ["movie_id", "customer_id", "rating", "date"]
            scan = csv_sql(files.inspect_text(flat, work.scratch), header, COLUMNS, has_header=False, quoted=False)
            pieces.append(LogFile(flat, picked, f"({scan})"))
        titles = None
        if found["titles"]:
            work.connection.register("movie_titles", read_titles(found["titles"], work.scratch))
            titles = "SELECT * FROM movie_titles"
        return LogDescription(layout="netflix", files=tuple(pieces), rule=RULE, titles_sql=titles)


def read_titles(paths: Iterable[Path], scratch: Path) -> pa.Table:
    """`id,year,title`, the title unquoted and free to hold commas."""
    texts = [path.read_text(files.inspect_text(path, scratch).encoding) for path in paths]
    split = [line.split(",", 2) for text in texts for line in text.split("\n")]  # other line breaks may stand in a title
    whole = [parts for parts in split if len(parts) == 3]
    return pa.table({ITEM_KEY: [parts[0].strip() for parts in whole], "title": [parts[2].strip() for parts in whole]})


def flatten(file: BinaryIO, out: BinaryIO, path: Path) -> None:
    """`7:\\n11,3,2005-01-02\\n` -> `7,11,3,2005-01-02\\n`, a chunk in memory at a time."""
    movie: bytes | None = None
    for chunk in _lines(file):
        position = 0
        for header in _HEADER.finditer(chunk):
            _emit(chunk[position : header.start()], movie, out, path)
            movie, position = header[1], header.end()
        _emit(chunk[position:], movie, out, path)


def _lines(file: BinaryIO) -> Iterable[bytes]:
    """Chunks that end with a line."""
    rest = b""
    while chunk := file.read(_CHUNK):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        yield whole + newline
    if rest:
        yield rest + b"\n"


def _emit(ratings: bytes, movie: bytes | None, out: BinaryIO, path: Path) -> None:
    ratings = ratings.strip(b"\r\n")
    if not ratings:
        return
    if movie is None:
        raise InputError(f"{path}: no 'movie:' line before the first rating; this is not the Netflix layout")
    out.write(movie + b"," + ratings.replace(b"\n", b"\n" + movie + b",") + b"\n")
