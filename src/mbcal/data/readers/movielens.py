"""MovieLens, in GroupLens' own layouts: `.dat` (1m, 10m; `::`, no header) and `.csv` (20m, 25m, 32m, latest).

Labels are 0..5 and the reward is the label; a half star counts as its floor. Features: genres, and tags where there are any.
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
MovieLens is offered by GroupLens at https://grouplens.org/datasets/movielens/ (ml-1m.zip, ml-10m.zip, ml-20m.zip,
ml-25m.zip, ml-latest-small.zip). Terms: for research, not for commercial use without permission; cite Harper and Konstan
(2015). 1m, 10m and latest may not be passed on without permission; 20m and 25m may be, under the same terms.
Fetch one, then:  mbcal prepare movielens ml-20m.zip --out DIR"""

PATTERNS = {
    "ratings": ["ratings.csv", "ratings.dat"],
    "movies": ["movies.csv", "movies.dat"],
    "tags": ["tags.csv", "tags.dat"],
}
RULE = Labels({str(stars): float(stars) for stars in range(6)})
TAGS_PER_MOVIE = 20
"""The tags most often given to a movie that are kept: popular movies carry hundreds, mostly given once."""


@dataclass(frozen=True)
class MovieLens:
    """A release: a folder, a zip or single files, and tags from elsewhere (ml-1m has none of its own)."""

    paths: Paths
    tags: Paths = ()

    def read(self, work: Workspace) -> LogDescription:
        """Describe it for ingestion."""
        paths, tags = files.as_paths(self.paths), files.as_paths(self.tags)
        found = files.find_files(paths, PATTERNS, work.scratch)
        ratings = files.require_files(found, "ratings", paths, PATTERNS)
        tag_files = found["tags"]
        if tags:
            tag_files = files.require_files(
                files.find_files(tags, {"tags": PATTERNS["tags"]}, work.scratch), "tags", tags, PATTERNS
            )
        whole = "CASE WHEN try_cast(rating AS DOUBLE) BETWEEN 0 AND 5 THEN floor(rating::DOUBLE)::VARCHAR ELSE rating END"
        rated = [_Release(path, ["userId", "movieId", "rating", "timestamp"], work, "log") for path in ratings]
        picked = f'userId AS "user", movieId AS item, timestamp AS "time", {whole} AS behaviour'
        movies = [_Release(path, ["movieId", "title", "genres"], work, "item") for path in found["movies"]]
        return LogDescription(
            layout="movielens",
            files=tuple(LogFile(release.text.path, picked, f"({_scan(release)})") for release in rated),
            rule=RULE,
            features_sql=_features(movies, tag_files, work),
            titles_sql=_union(f"SELECT movieId AS {sql_identifier(ITEM_KEY)}, title", movies),
            time_unit="s",
            options={"features": ["genres"] * bool(movies) + ["tags"] * bool(tag_files)},
        )


class _Release:
    """One file and the columns wanted of it: `.dat` files have a fixed order and no header."""

    def __init__(self, path: Path, wanted: list[str], work: Workspace, rejects: str) -> None:
        self.text = files.inspect_text(path, work.scratch)
        self.dat = path.suffix.lower() == ".dat"
        self.header = wanted if self.dat else self.text.header(",")
        files.require_columns(path, self.header, wanted)
        self.wanted, self.rejects = wanted, rejects


def _scan(release: _Release) -> str:
    return csv_sql(
        release.text,
        release.header,
        release.wanted,
        delimiter="::" if release.dat else ",",
        has_header=not release.dat,
        quoted=not release.dat,
        rejects=release.rejects,
    )


def _union(select: str, releases: Sequence[_Release]) -> str | None:
    return " UNION ALL ".join(f"{select} FROM ({_scan(release)})" for release in releases) or None


def _features(movies: Sequence[_Release], tags: Sequence[Path], work: Workspace) -> str | None:
    queries, key = [], sql_identifier(ITEM_KEY)
    if movies:
        scans = _union(f"SELECT movieId AS {key}, genres", movies)
        genres = "list_filter(string_split(genres, '|'), lambda g: g <> '(no genres listed)')"
        queries.append(f"SELECT {key}, {genres} AS genres FROM ({scans})")
    if tags:
        scans = " UNION ALL ".join(f"({_tags(path, work)})" for path in tags)
        queries.append(f"""
            SELECT {key}, list(tag) AS tags
            FROM (SELECT {key}, tag
                  FROM (SELECT {key}, lower(trim(tag)) AS tag, sum(n) AS n FROM ({scans}) GROUP BY ALL)
                  WHERE tag <> ''
                  QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY n DESC, tag) <= {TAGS_PER_MOVIE})
            GROUP BY {key}""")
    if len(queries) == 2:
        return f"SELECT * FROM ({queries[0]}) FULL JOIN ({queries[1]}) USING ({key})"
    return queries[0] if queries else None


def _tags(path: Path, work: Workspace) -> str:
    """Tag assignments, counted one by one (`userId,movieId,tag,timestamp`) or already (`movieId,tag,count`)."""
    if path.suffix.lower() == ".dat":
        release = _Release(path, ["userId", "movieId", "tag", "timestamp"], work, "item")
    else:
        counts = ["count"] if "count" in files.inspect_text(path, work.scratch).header(",") else []
        release = _Release(path, ["movieId", "tag", *counts], work, "item")
    counted = "try_cast(count AS BIGINT)" if "count" in release.wanted else "1"
    return f"SELECT movieId AS {sql_identifier(ITEM_KEY)}, tag, {counted} AS n FROM ({_scan(release)})"
