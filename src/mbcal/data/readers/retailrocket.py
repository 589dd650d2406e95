"""RetailRocket: the events of a shop's visitors, and the categories of its items.

::

    events.csv             timestamp,visitorid,event,itemid,transactionid     event is view, addtocart or transaction
    item_properties*.csv   timestamp,itemid,property,value                    property is categoryid, among many others
    category_tree.csv      categoryid,parentid

Every event is a step of its visitor. The log has no sessions: `--gap 30` begins one after half an hour without an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mbcal.data import files
from mbcal.data.behaviour_rules import Labels
from mbcal.data.files import Paths
from mbcal.data.readers.csv_files import csv_file_sql
from mbcal.data.source import ITEM_KEY, LogDescription, LogFile
from mbcal.data.sql import sql_identifier
from mbcal.data.workspace import Workspace

WHERE = """\
RetailRocket is published at https://www.kaggle.com/datasets/retailrocket/ecommerce-dataset (events.csv,
item_properties_part1.csv, item_properties_part2.csv, category_tree.csv), licensed CC BY-NC-SA 4.0.
Download it, then:  mbcal prepare retailrocket archive.zip --gap 30 --out DIR"""

PATTERNS = {"events": ["events*.csv*"], "properties": ["item_properties*.csv*"], "tree": ["category_tree*.csv*"]}
RULE = Labels({"view": 1.0, "addtocart": 3.0, "transaction": 5.0})
COLUMNS = ("timestamp", "visitorid", "event", "itemid")


@dataclass(frozen=True)
class RetailRocket:
    """The log of RetailRocket, with the category of each item and the category above it, if their files are there."""

    paths: Paths
    """A folder, a zip or single files."""
    rule: Labels = field(default=RULE)
    """Rewards of `view`, `addtocart` and `transaction`."""

    def read(self, work: Workspace) -> LogDescription:
        """Describe the log for ingestion.

        Raises:
            InputError: If there are no events, or a file cannot be read or lacks a column.
        """
        paths = files.as_paths(self.paths)
        found = files.find_files(paths, PATTERNS, work.scratch)
        columns_sql = 'visitorid AS "user", itemid AS item, timestamp AS "time", event AS behaviour'
        logs = files.require_files(found, "events", paths, PATTERNS)
        features = ["category", *(["parent"] if found["tree"] else [])] if found["properties"] else []
        return LogDescription(
            layout="retailrocket",
            files=tuple(LogFile(path, columns_sql, f"({csv_file_sql(path, COLUMNS, work, 'log')})") for path in logs),
            rule=self.rule,
            features_sql=_features_sql(found["properties"], found["tree"], work) if features else None,
            time_unit="ms",
            options={"features": features},
        )


def _features_sql(properties: Sequence[Path], tree: Sequence[Path], work: Workspace) -> str:
    """Return a SELECT of the category of each item, the first that is known of it, and of the category above."""
    rows = " UNION ALL ".join(
        csv_file_sql(path, ("timestamp", "itemid", "property", "value"), work, "item") for path in properties
    )
    first = "arg_min(value, (try_cast(timestamp AS BIGINT), value)) FILTER (property = 'categoryid')"
    categories = f"SELECT itemid AS {sql_identifier(ITEM_KEY)}, {first} AS category FROM ({rows}) GROUP BY itemid"
    if not tree:
        return categories
    links = " UNION ALL ".join(csv_file_sql(path, ("categoryid", "parentid"), work, "item") for path in tree)
    parents = f"SELECT categoryid AS category, min(nullif(parentid, '')) AS parent FROM ({links}) GROUP BY categoryid"
    return f"SELECT * FROM ({categories}) LEFT JOIN ({parents}) USING (category)"
