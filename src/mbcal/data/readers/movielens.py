"""MovieLens, in the layouts of GroupLens: `.dat` (1m, 10m; `::`, no header) and `.csv` (20m, 25m, 32m, latest).

Labels are 0..5 and the reward is the label; half stars are rounded down. Features are genres, and tags if there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mbcal.data import files
from mbcal.data.behaviour_rules import Labels
from mbcal.data.files import Paths
from mbcal.data.source import ITEM_KEY, LogDescription, LogFile
from mbcal.data.sql import csv_sql, sql_identifier
from mbcal.data.workspace import Workspace

WHERE = """\
MovieLens is published by GroupLens at https://grouplens.org/datasets/movielens/ (ml-1m.zip, ml-10m.zip, ml-20m.zip,
ml-25m.zip, ml-latest-small.zip). Terms: for research, not for commercial use without permission; cite Harper and Konstan
(2015). 1m, 10m and latest may not be redistributed without permission; 20m and 25m may be, under the same terms.
Download one, then:  mbcal prepare movielens ml-20m.zip --out DIR"""

PATTERNS = {
    "ratings": ["ratings.csv", "ratings.dat"],
    "movies": ["movies.csv", "movies.dat"],
    "tags": ["tags.csv", "tags.dat"],
}
RULE = Labels({str(stars): float(stars) for stars in range(6)})
"""Stars are the labels and the rewards."""
TAGS_PER_MOVIE = 20
"""A movie keeps its most frequent tags: popular movies have hundreds, most of them assigned once."""


@dataclass(frozen=True)
class MovieLens:
    """A release of MovieLens."""

    paths: Paths
    """A folder, a zip or single files."""
    tags: Paths = ()
    """Tags from elsewhere, for releases without any (ml-1m)."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            InputError: If there are no ratings, or a file cannot be read or lacks a column.
        """
        paths, tags = files.as_paths(self.paths), files.as_paths(self.tags)
        found = files.find_files(paths, PATTERNS, work.scratch)
        ratings = files.require_files(found, "ratings", paths, PATTERNS)
        tag_files = found["tags"]
        if tags:
            tag_files = files.require_files(
                files.find_files(tags, {"tags": PATTERNS["tags"]}, work.scratch), "tags", tags, PATTERNS
            )
        stars = "CASE WHEN try_cast(rating AS DOUBLE) BETWEEN 0 AND 5 THEN floor(rating::DOUBLE)::VARCHAR ELSE rating END"
        rating_files = [_Release(path, ["userId", "movieId", "rating", "timestamp"], work, "log") for path in ratings]
        columns_sql = f'userId AS "user", movieId AS item, timestamp AS "time", {stars} AS behaviour'
        movies = [_Release(path, ["movieId", "title", "genres"], work, "item") for path in found["movies"]]
        return LogDescription(
            layout="movielens",
            files=tuple(LogFile(release.text.path, columns_sql, f"({_csv(release)})") for release in rating_files),
            rule=RULE,
            features_sql=_features(movies, tag_files, work),
            titles_sql=_union(f"SELECT movieId AS {sql_identifier(ITEM_KEY)}, title", movies),
            time_unit="s",
            options={"features": ["genres"] * bool(movies) + ["tags"] * bool(tag_files)},
        )


class _Release:
    """One file and the columns to read; `.dat` files have a fixed order of columns and no header."""

    def __init__(self, path: Path, columns: list[str], work: Workspace, rejects: str) -> None:
        self.text = files.inspect_text(path, work.scratch)
        self.is_dat = path.suffix.lower() == ".dat"
        self.header = columns if self.is_dat else self.text.header(",")
        files.require_columns(path, self.header, columns)
        self.columns, self.rejects = columns, rejects


def _csv(release: _Release) -> str:
    return csv_sql(
        release.text,
        release.header,
        release.columns,
        delimiter="::" if release.is_dat else ",",
        has_header=not release.is_dat,
        quoted=not release.is_dat,
        rejects=release.rejects,
    )


def _union(select: str, releases: Sequence[_Release]) -> str | None:
    return " UNION ALL ".join(f"{select} FROM ({_csv(release)})" for release in releases) or None


def _features(movies: Sequence[_Release], tags: Sequence[Path], work: Workspace) -> str | None:
    queries, key = [], sql_identifier(ITEM_KEY)
    if movies:
        movie_sql = _union(f"SELECT movieId AS {key}, genres", movies)
        genres = "list_filter(string_split(genres, '|'), lambda g: g <> '(no genres listed)')"
        queries.append(f"SELECT {key}, {genres} AS genres FROM ({movie_sql})")
    if tags:
        tag_sql = " UNION ALL ".join(f"({_tags(path, work)})" for path in tags)
        queries.append(f"""
            SELECT {key}, list(tag) AS tags
            FROM (SELECT {key}, tag
                  FROM (SELECT {key}, lower(trim(tag)) AS tag, sum(n) AS n FROM ({tag_sql}) GROUP BY ALL)
                  WHERE tag <> ''
                  QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY n DESC, tag) <= {TAGS_PER_MOVIE})
            GROUP BY {key}""")
    if len(queries) == 2:
        return f"SELECT * FROM ({queries[0]}) FULL JOIN ({queries[1]}) USING ({key})"
    return queries[0] if queries else None


def _tags(path: Path, work: Workspace) -> str:
    """Return a SELECT of ITEM_KEY, tag and n.

    A file has one line per assignment (`userId,movieId,tag,timestamp`) or counts (`movieId,tag,count`).
    """
    if path.suffix.lower() == ".dat":
        release = _Release(path, ["userId", "movieId", "tag", "timestamp"], work, "item")
    else:
        counts = ["count"] if "count" in files.inspect_text(path, work.scratch).header(",") else []
        release = _Release(path, ["movieId", "tag", *counts], work, "item")
    count = "try_cast(count AS BIGINT)" if "count" in release.columns else "1"
    return f"SELECT movieId AS {sql_identifier(ITEM_KEY)}, tag, {count} AS n FROM ({_csv(release)})"
