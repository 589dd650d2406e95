"""MIND, the Microsoft News Dataset: `behaviors.tsv` (impressions with clicks) and `news.tsv` (categories, titles, entities).

::

    impression   user     time                    history     impressions
    1            U13740   11/11/2019 9:05:58 AM   N55189 …    N55689-1 N35729-0

An impression is a list of news that a user was shown at one time. Each becomes a session: its news are the steps, in the
order of the list, with the behaviour `click` or `skip`. So the news of an impression are the candidates of the decision, and
re-ranking them is the task that MIND was published for. Steps of an impression are a microsecond apart, to keep their order.
The history of a user's first impression, which has no times, becomes clicks just before it: part of histories, no session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mbcal.data import files
from mbcal.data.behaviour_rules import Labels
from mbcal.data.cutting import HISTORY_SESSION
from mbcal.data.files import Paths
from mbcal.data.source import ITEM_KEY, LogDescription, LogFile
from mbcal.data.sql import csv_sql, sql_identifier, sql_string
from mbcal.data.workspace import Workspace

WHERE = """\
MIND is published by Microsoft at https://msnews.github.io (MINDsmall_train.zip, MINDsmall_dev.zip, MINDlarge_train.zip, …).
Terms: Microsoft Research License, for research, not commercial; cite Wu et al. (ACL 2020).
Download one or more, then:  mbcal prepare mind MINDsmall_train.zip MINDsmall_dev.zip --out DIR"""

PATTERNS = {"behaviors": ["behaviors*.tsv"], "news": ["news*.tsv"]}
RULE = Labels({"skip": 0.0, "click": 1.0})
COLUMNS = ("impression", "user_id", "time", "history", "impressions")
NEWS_COLUMNS = ("news_id", "category", "subcategory", "title", "abstract", "url", "title_entities", "abstract_entities")
READ_COLUMNS = ("news_id", "title", "category", "subcategory", "title_entities")
"""Columns of news.tsv that are needed."""
FEATURES = {
    "category": "nullif(category, '')",
    "subcategory": "nullif(subcategory, '')",
    "entities": """list_distinct(regexp_extract_all(title_entities, '"WikidataId": *"([^"]+)"', 1))""",
}
TIME = f'try_strptime("time", {sql_string("%m/%d/%Y %I:%M:%S %p")})'
"""Time of an impression; NULL if it is in another form."""
HISTORY_COLUMNS = (
    'user_id AS "user", item, stamp - to_microseconds(place) AS "time", \'click\' AS behaviour, '
    f"{sql_string(HISTORY_SESSION)} AS session"
)


@dataclass(frozen=True)
class Mind:
    """A part of MIND, or several: train, dev. Impressions without clicks marked, as in the test part, are rejected."""

    paths: Paths
    """Folders, zips or single files."""
    rule: Labels = field(default=RULE)
    """Rewards of `skip` and `click`."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            InputError: If there are no impressions, or a file cannot be read.
        """
        paths = files.as_paths(self.paths)
        found = files.find_files(paths, PATTERNS, work.scratch)
        logs = files.require_files(found, "behaviors", paths, PATTERNS)
        news = [_tsv(path, NEWS_COLUMNS, READ_COLUMNS, work, "item") for path in found["news"]]
        key = f"news_id AS {sql_identifier(ITEM_KEY)}"
        features = ", ".join(f"{sql} AS {sql_identifier(feature)}" for feature, sql in FEATURES.items())
        return LogDescription(
            layout="mind",
            files=(
                *(LogFile(path, _columns_sql(), _impressions_sql(path, work)) for path in logs),
                LogFile(logs[0], HISTORY_COLUMNS, _histories_sql(logs, work)),
            ),
            rule=self.rule,
            features_sql=" UNION ALL ".join(f"SELECT {key}, {features} FROM ({table})" for table in news) or None,
            titles_sql=" UNION ALL ".join(f"SELECT {key}, title FROM ({table})" for table in news) or None,
            options={"features": list(FEATURES) if news else []},
        )


def _columns_sql() -> str:
    """What to select of one news of an impression, an entry such as `N55689-1`."""
    is_marked = "ends_with(entry, '-0') OR ends_with(entry, '-1')"
    behaviour = "CASE WHEN ends_with(entry, '-1') THEN 'click' WHEN ends_with(entry, '-0') THEN 'skip' END"
    # ids begin anew in every file, so a session is known by its time as well
    session = "impression || ' ' || \"time\""
    stamp = f"{TIME} + to_microseconds(place)"
    unreadable = "CASE WHEN \"time\" <> '' THEN 'infinity'::TIMESTAMP END"
    return (
        f'user_id AS "user", CASE WHEN {is_marked} THEN left(entry, -2) ELSE entry END AS item, '
        f'coalesce({stamp}, {unreadable}) AS "time", {behaviour} AS behaviour, {session} AS session'
    )


def _impressions_sql(path: Path, work: Workspace) -> str:
    """Return a subquery with a row for every news of every impression: entry and its place in the list."""
    rows = _tsv(path, COLUMNS, ("impression", "user_id", "time", "impressions"), work, "log")
    entries = f"SELECT * EXCLUDE (impressions), string_split(trim(coalesce(impressions, '')), ' ') AS entries FROM ({rows})"
    return (
        f"(SELECT * EXCLUDE (entries), unnest(entries) AS entry, generate_subscripts(entries, 1) AS place FROM ({entries}))"
    )


def _histories_sql(paths: Sequence[Path], work: Workspace) -> str:
    """Return a subquery with a row for every click in the history of each user's first impression, the last at place 1."""
    columns = ("impression", "user_id", "time", "history")
    # malformed lines are collected where impressions are read, and not a second time here
    rows = " UNION ALL ".join(_tsv(path, COLUMNS, columns, work, "history") for path in paths)
    stamped = f"SELECT user_id, impression, trim(coalesce(history, '')) AS history, {TIME} AS stamp FROM ({rows})"
    first = (
        "SELECT user_id, arg_min(history, (stamp, impression)) AS history, min(stamp) AS stamp "
        f"FROM ({stamped}) WHERE stamp IS NOT NULL AND user_id <> '' GROUP BY user_id"
    )
    lists = f"SELECT user_id, stamp, list_reverse(string_split(history, ' ')) AS items FROM ({first}) WHERE history <> ''"
    return f"(SELECT user_id, stamp, unnest(items) AS item, generate_subscripts(items, 1) AS place FROM ({lists}))"


def _tsv(path: Path, header: tuple[str, ...], columns: tuple[str, ...], work: Workspace, rejects: str) -> str:
    """Return a SELECT of some columns of a file without header; titles hold quotes that mean nothing."""
    text = files.inspect_text(path, work.scratch)
    return csv_sql(text, header, columns, delimiter="\t", has_header=False, quoted=False, rejects=rejects)
