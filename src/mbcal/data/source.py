"""The description of a raw log that readers return, and the SQL that turns its rows into typed values.

A reader returns a `LogDescription`: one SELECT per file, one for item features, and the rule for behaviours. Parsing is
shared by all readers, so that a null, a NaN, an unknown label or an impossible time is treated alike in every layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mbcal.data.behaviour_rules import BehaviourRule
from mbcal.data.feature_kinds import FRACTIONS, is_list
from mbcal.data.rejection import reject_conditions
from mbcal.data.sql import TimeUnit, entity_name_sql, plain_text_sql, sql_identifier, time_sql
from mbcal.errors import InputError, OptionError
from mbcal.types import FeatureKind

if TYPE_CHECKING:
    import duckdb

ITEM_KEY = "#item"
"""Column by which `LogDescription.features_sql` and `titles_sql` name an item: not a name a feature would have."""
USER_KEY = "#user"
"""Column by which `LogDescription.users_sql` names a user."""
CONTEXT = "context:"
"""What the names of context columns begin with, among the columns of a log."""


@dataclass(frozen=True)
class LogFile:
    """The rows of one file of a log."""

    path: Path
    columns_sql: str
    """What to select: expressions named user, item, time, behaviour and, if the log has them, session, propensity and
    `context:NAME`."""
    from_sql: str
    """What to select from: a table function or a subquery that reads only this file."""
    is_parquet: bool = False
    """Whether it is cheap to read twice and can be read by row groups."""

    @property
    def select_sql(self) -> str:
        """The rows, as a SELECT."""
        return f"SELECT {self.columns_sql} FROM {self.from_sql}"


@dataclass(frozen=True)
class LogDescription:
    """Everything that ingestion needs to know about a log."""

    layout: str
    """Name of the layout, which becomes the store's `source`."""
    files: tuple[LogFile, ...]
    """At least one; all select the same columns."""
    rule: BehaviourRule
    """How the behaviour column becomes behaviours."""
    features_sql: str | None = None
    """SELECT of ITEM_KEY and a column per feature: text or a list of text for a category, FLOAT for a number, FLOAT[] for a
    vector."""
    titles_sql: str | None = None
    """SELECT of ITEM_KEY and title."""
    users_sql: str | None = None
    """SELECT of USER_KEY and one column per field of users: text, FLOAT for a number, FLOAT[] for a vector."""
    context: Mapping[str, FeatureKind | None] = field(default_factory=dict)
    """Fields of steps -> their kind; None if it is inferred."""
    time_unit: TimeUnit = "auto"
    time_format: str | None = None
    """strptime format of the time column."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The reader's own entries among the manifest's options."""

    @property
    def rows_sql(self) -> str:
        """The rows of all files, as a SELECT."""
        return " UNION ALL ".join(file.select_sql for file in self.files)

    @property
    def has_text(self) -> bool:
        """Whether any file is text, which is slow to parse."""
        return not all(file.is_parquet for file in self.files)


def parsed_rows_sql(log: LogDescription, connection: duckdb.DuckDBPyConnection) -> tuple[str, list[str]]:
    """Return a SELECT of typed rows, and the reasons for which rows are rejected.

    ::

        user, item      names
        time_us         BIGINT, microseconds since 1970 (UTC)
        value           number of the label, or the value that levels are cut from
        session         UBIGINT hash of the name; only if the log has sessions
        propensity      FLOAT; only if the log has propensities
        context:NAME    text, or a list of fractions; for every field of steps
        reason          UTINYINT, index of the first reason that applies; NULL for valid rows
        raw             [time, behaviour, propensity] as text; NULL for valid rows, so that these cost nothing

    Raises:
        OptionError: If the reader selected too few columns.
        InputError: If the time column has a type that cannot hold times.
    """
    kinds = {row[0]: row[1] for row in connection.execute(f"DESCRIBE {log.rows_sql}").fetchall()}
    if missing := {"user", "item", "time", "behaviour"} - kinds.keys():
        raise OptionError(f"the reader of {log.layout} selected no {', '.join(sorted(missing))}")
    user, item = entity_name_sql('"user"', kinds["user"]), entity_name_sql("item", kinds["item"])
    time_us = time_sql('"time"', kinds["time"], log.time_unit, log.time_format)
    value = log.rule.value_sql("behaviour")
    columns = f'{user} AS "user", {item} AS item, "time", behaviour, {time_us} AS time_us, {value} AS value'
    if "session" in kinds:
        # md5 is the one hash that DuckDB promises to keep, so the order of equal rows survives an upgrade
        columns += f", md5_number_lower(({entity_name_sql('session', kinds['session'])})::VARCHAR) AS session"
    if "propensity" in kinds:
        columns += ", try_cast(propensity AS FLOAT) AS propensity, propensity AS raw_propensity"
    for name in log.context:
        columns += f", {_context_sql(name, kinds[CONTEXT + name])} AS {sql_identifier(CONTEXT + name)}"
    conditions = reject_conditions(log.rule, kinds)
    cases = " ".join(f"WHEN {condition} THEN {number}" for number, (condition, _) in enumerate(conditions))
    with_reason = f"SELECT *, CASE {cases} END::UTINYINT AS reason FROM (SELECT {columns} FROM ({log.rows_sql}))"
    originals = ['"time"', "behaviour", *(["raw_propensity"] if "propensity" in kinds else [])]
    texts = ", ".join(f"{column}::VARCHAR" for column in originals)
    raw = f"CASE WHEN reason IS NOT NULL THEN [{texts}] END AS raw"
    return f"SELECT * EXCLUDE ({', '.join(originals)}), {raw} FROM ({with_reason})", [reason for _, reason in conditions]


def _context_sql(name: str, column_type: str) -> str:
    """A context column as text, or as it is if it holds lists of fractions."""
    column = sql_identifier(CONTEXT + name)
    if column_type in FRACTIONS:
        return column
    if is_list(column_type):
        raise InputError(f"context: {name!r} holds {column_type}; a step has one value, or a vector of fractions")
    return f"({plain_text_sql(column, column_type)})::VARCHAR"
