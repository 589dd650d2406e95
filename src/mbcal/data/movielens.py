"""MovieLens, in GroupLens' own layouts: `.dat` (1m, 10m; `::`, no header) and `.csv` (20m, 25m, 32m, latest).

Labels are 0..5 and the reward is the label; a half star counts as its floor. Features: genres, and tags where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mbcal.data import files
from mbcal.data.files import Paths
from mbcal.data.log import Labels, Log, csv_sql
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

    def read(self, work: Workspace) -> Log:
        """Describe it for ingestion."""
        paths, tags = files.listed(self.paths), files.listed(self.tags)
        found = files.gather(paths, PATTERNS, work.scratch)
        ratings = files.require(found, "ratings", paths, PATTERNS)
        tag_files = found["tags"]
        if tags:
            tag_files = files.require(files.gather(tags, {"tags": PATTERNS["tags"]}, work.scratch), "tags", tags, PATTERNS)
        rows = " UNION ALL ".join(
            'SELECT userId AS "user", movieId AS item, timestamp AS "time", '
            f"coalesce(floor(try_cast(rating AS DOUBLE))::VARCHAR, rating) AS behaviour FROM ({_scan(file)})"
            for file in (_Release(path, ["userId", "movieId", "rating", "timestamp"], work) for path in ratings)
        )
        movies = [_Release(path, ["movieId", "title", "genres"], work) for path in found["movies"]]
        return Log(
            layout="movielens",
            rows=rows,
            rule=RULE,
            text=True,
            features=_features(movies, tag_files, work),
            titles=_union("SELECT movieId AS item, title", movies),
            time_unit="s",
            options={"features": ["genres"] * bool(movies) + ["tags"] * bool(tag_files)},
        )


class _Release:
    """One file and the columns it has: `.dat` files have a fixed order and no header."""

    def __init__(self, path: Path, columns: list[str], work: Workspace) -> None:
        self.text = files.text(path, work.scratch)
        self.dat = path.suffix == ".dat"
        self.columns = columns if self.dat else self.text.header(",")
        if not self.dat:
            files.require_columns(path, self.columns, columns)


def _scan(release: _Release) -> str:
    if release.dat:
        return csv_sql(release.text, release.columns, delimiter="::", header=False, quoted=False)
    return csv_sql(release.text, release.columns)


def _union(select: str, releases: Sequence[_Release]) -> str | None:
    return " UNION ALL ".join(f"{select} FROM ({_scan(release)})" for release in releases) or None


def _features(movies: Sequence[_Release], tags: Sequence[Path], work: Workspace) -> str | None:
    queries = []
    if movies:
        scans = _union("SELECT movieId AS item, genres", movies)
        genres = "list_filter(string_split(genres, '|'), lambda g: g <> '(no genres listed)')"
        queries.append(f"SELECT item, {genres} AS genres FROM ({scans})")
    if tags:
        scans = " UNION ALL ".join(f"({_tags(path, work)})" for path in tags)
        queries.append(f"""
            SELECT item, list(tag) AS tags
            FROM (SELECT item, tag FROM (SELECT item, lower(trim(tag)) AS tag, sum(n) AS n FROM ({scans}) GROUP BY ALL)
                  WHERE tag <> ''
                  QUALIFY row_number() OVER (PARTITION BY item ORDER BY n DESC, tag) <= {TAGS_PER_MOVIE})
            GROUP BY item""")
    if len(queries) == 2:
        return f"SELECT * FROM ({queries[0]}) FULL JOIN ({queries[1]}) USING (item)"
    return queries[0] if queries else None


def _tags(path: Path, work: Workspace) -> str:
    """Tag assignments, counted one by one (`userId,movieId,tag,timestamp`) or already (`movieId,tag,count`)."""
    columns = ["userId", "movieId", "tag", "timestamp"] if path.suffix == ".dat" else ["movieId", "tag"]
    release = _Release(path, columns, work)
    counted = "try_cast(count AS BIGINT)" if "count" in release.columns else "1"
    return f"SELECT movieId AS item, tag, {counted} AS n FROM ({_scan(release)})"
