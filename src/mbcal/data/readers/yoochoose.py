"""Yoochoose, the log of the RecSys Challenge 2015: sessions of a shop, as clicks and buys, without users.

::

    yoochoose-clicks.dat   session,time,item,category
    yoochoose-buys.dat     session,time,item,price,quantity

Every event is a step, with the behaviour `click` or `buy`. Users are not recognised from one session to the next, so
each session is a user.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mbcal.data import files
from mbcal.data.behaviour_rules import Labels
from mbcal.data.files import Paths
from mbcal.data.source import ITEM_KEY, LogDescription, LogFile
from mbcal.data.sql import csv_sql, sql_identifier
from mbcal.data.workspace import Workspace

WHERE = """\
Yoochoose was published for the RecSys Challenge 2015; copies of its files (yoochoose-clicks.dat, yoochoose-buys.dat) are
available at https://www.kaggle.com/datasets/chadgostopp/recsys-challenge-2015. Terms: CC BY-NC-ND 4.0.
Download and unpack it, then:  mbcal prepare yoochoose FOLDER --out DIR"""

PATTERNS = {"clicks": ["yoochoose-clicks*.dat*"], "buys": ["yoochoose-buys*.dat*"]}
RULE = Labels({"click": 1.0, "buy": 5.0})
COLUMNS = {
    "clicks": ("session", "time", "item", "category"),
    "buys": ("session", "time", "item", "price", "quantity"),
}
CATEGORIES = 12
"""Numbers up to it are categories, longer ones brands; `0` is missing and `S` a special offer."""


@dataclass(frozen=True)
class Yoochoose:
    """The log of Yoochoose: clicks, and buys if there are any.

    In a folder or zip the test file is not read. Give its path as well to include it.
    """

    paths: Paths
    """A folder, a zip or single files."""
    rule: Labels = field(default=RULE)
    """Rewards of `click` and `buy`."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            InputError: If there are no clicks, or a file cannot be read.
        """
        paths = files.as_paths(self.paths)
        found = files.find_files(paths, PATTERNS, work.scratch)
        files.require_files(found, "clicks", paths, PATTERNS)
        log_files, clicks = [], []
        for role, behaviour in (("clicks", "click"), ("buys", "buy")):
            columns_sql = f'session AS "user", item, "time", \'{behaviour}\' AS behaviour'
            for path in found[role]:
                text, header = files.inspect_text(path, work.scratch), COLUMNS[role]
                rows = csv_sql(text, header, ("session", "time", "item"), has_header=False, quoted=False)
                log_files.append(LogFile(path, columns_sql, f"({rows})"))
                if role == "clicks":
                    clicks.append(csv_sql(text, header, ("item", "category"), has_header=False, quoted=False))
        return LogDescription(
            layout="yoochoose",
            files=tuple(log_files),
            rule=self.rule,
            features_sql=_features_sql(clicks),
            options={"features": ["category", "brand"]},
        )


def _features_sql(clicks: list[str]) -> str:
    """Return a SELECT of the categories and brands under which each item was clicked."""
    pairs = f"SELECT DISTINCT item, category FROM ({' UNION ALL '.join(clicks)})"
    is_category = f"try_cast(category AS INTEGER) BETWEEN 1 AND {CATEGORIES}"
    is_brand = f"try_cast(category AS BIGINT) > {CATEGORIES}"
    lists = [
        f"list(category) FILTER ({condition}) AS {name}"
        for name, condition in (("category", is_category), ("brand", is_brand))
    ]
    return f"SELECT item AS {sql_identifier(ITEM_KEY)}, {', '.join(lists)} FROM ({pairs}) GROUP BY item"
