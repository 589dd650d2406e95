"""A raw log as a reader describes it, and the SQL that turns its columns into typed values or a reason to refuse.

A reader answers with a `LogDescription`: a SELECT for the rows of each file, one for the item features, and the rule for behaviours.
All readers then share the same parsing, so that a null, a NaN, an unknown label or an absurd time is treated alike
everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mbcal.data.sql import TimeUnit, _finite_sql, entity_name_sql, sql_string, time_sql
from mbcal.errors import InputError, OptionError
from mbcal.types import Behaviours

if TYPE_CHECKING:
    import duckdb


LATEST = 4_102_444_800_000_000
"""2100-01-01 in microseconds: a time before 1970 or from here on is absurd."""


@dataclass(frozen=True)
class Labels:
    """Behaviours are named values of a column. Labels that are all numbers match by value: `5`, `5.0` and `05` agree."""

    rewards: Mapping[str, float]

    def __post_init__(self) -> None:
        self.behaviours()
        if "" in self.rewards:
            raise OptionError("rewards: a label is empty; write skip=0,click=1,like=5")
        numbers = self._numbers()
        if numbers is not None and len(set(numbers)) < len(numbers):
            raise OptionError(f"rewards: two labels are the same number, in {', '.join(self.rewards)}")

    def behaviours(self) -> Behaviours:
        return Behaviours(tuple(self.rewards), tuple(map(float, self.rewards.values())))

    def _numbers(self) -> list[float] | None:
        try:
            numbers = [float(name) for name in self.rewards]
        except ValueError:
            return None
        return numbers if all(map(math.isfinite, numbers)) else None

    def value_sql(self, column: str) -> str:
        """BlockIndex of the label."""
        numbers = self._numbers()
        if numbers is not None:
            whens, column = list(map(repr, numbers)), f"try_cast({column} AS DOUBLE)"
        else:
            whens, column = list(map(sql_string, self.rewards)), f"trim({column}::VARCHAR)"
        return f"CASE {column} {' '.join(f'WHEN {when} THEN {k}' for k, when in enumerate(whens))} END::UTINYINT"


@dataclass(frozen=True)
class Levels:
    """Behaviours are levels of a number, between given cut points."""

    cuts: tuple[float, ...]
    rewards: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self.behaviours()

    def behaviours(self) -> Behaviours:
        return Behaviours.from_cuts(self.cuts, self.rewards)

    def value_sql(self, column: str) -> str:
        return _finite_sql(column)


@dataclass(frozen=True)
class Quantiles:
    """Behaviours are levels of a number, with cut points so that each level is about equally common among the users
    who do not test. `Levels` takes its place once the log has been seen."""

    levels: int

    def value_sql(self, column: str) -> str:
        return _finite_sql(column)

    def cut(self, values: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> Levels:
        """Cut points from the distinct values (rising) and how often each occurs.

        The k-th cut is the first value with at least k/levels of the mass below it; where a common value would make two
        cuts equal, one of them moves to the next distinct value.
        """
        if len(values) < self.levels:
            raise InputError(f"behaviours: {len(values)} distinct values are too few for {self.levels} levels")
        below = np.cumsum(counts) - counts
        cuts: list[float] = []
        position = 0
        for k in range(1, self.levels):
            position = max(position + 1, int(np.searchsorted(below, counts.sum() * k / self.levels)))
            position = min(position, len(values) - self.levels + k)  # leave a value for each cut to come
            cuts.append(float(values[position]))
        return Levels(tuple(cuts))


BehaviourRule = Labels | Levels | Quantiles


ITEM_KEY = "#item"
"""The column by which `LogDescription.features` and `LogDescription.titles` name an item: not a name a feature would have."""


@dataclass(frozen=True)
class LogFile:
    """The rows of one file, which nothing but the file is needed to read: `picked` are user, item, time, behaviour and,
    where the log has them, session and propensity, in the columns of `source`."""

    path: Path
    picked: str
    source: str
    parquet: bool = False

    @property
    def sql(self) -> str:
        return f"SELECT {self.picked} FROM {self.source}"


@dataclass(frozen=True)
class LogDescription:
    """What a reader found. `features` selects ITEM_KEY and one column a feature (text, or a list of text where multi-valued);
    `titles` selects ITEM_KEY and title."""

    layout: str
    pieces: tuple[LogFile, ...]
    rule: BehaviourRule
    features: str | None = None
    titles: str | None = None
    time_unit: TimeUnit = "auto"
    time_format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> str:
        return " UNION ALL ".join(piece.sql for piece in self.pieces)

    @property
    def text(self) -> bool:
        return not all(piece.parquet for piece in self.pieces)


def parsed_sql(log: LogDescription, connection: duckdb.DuckDBPyConnection) -> tuple[str, list[str]]:
    """The rows with a typed `moment` and `value`, and the reasons a row may be set aside for: `reason` is the number of the
    first that applies, with the time and behaviour as they were in `raw`. Most rows have neither and must not pay for it."""
    kinds = {row[0]: row[1] for row in connection.execute(f"DESCRIBE {log.rows}").fetchall()}
    if missing := {"user", "item", "time", "behaviour"} - kinds.keys():
        raise OptionError(f"the reader of {log.layout} selected no {', '.join(sorted(missing))}")
    when = time_sql('"time"', kinds["time"], log.time_unit, log.time_format)
    what = log.rule.value_sql("behaviour")
    value_is = "unknown" if isinstance(log.rule, Labels) else "not a number"
    rules = [
        ('"user" IS NULL', "user is missing"),
        ("item IS NULL", "item is missing"),
        ('"time" IS NULL', "time is missing"),
        ("moment IS NULL", "time cannot be read"),
        (f"moment < 0 OR moment >= {LATEST}", "time is absurd (before 1970 or after 2099)"),
        ("behaviour IS NULL", "behaviour is missing"),
        ("value IS NULL", f"behaviour is {value_is}"),
    ]
    extra = ""
    if "session" in kinds:
        # md5 is the one hash DuckDB promises to keep, so the order of equal rows survives an upgrade
        extra += f", md5_number_lower(({entity_name_sql('session', kinds['session'])})::VARCHAR) AS session"
        rules.append(("session IS NULL", "session is missing"))
    if "propensity" in kinds:
        extra += ", try_cast(propensity AS FLOAT) AS propensity"
        rules.append(("propensity IS NULL OR NOT (propensity > 0 AND propensity <= 1)", "propensity is not in (0, 1]"))
    reason = f"CASE {' '.join(f'WHEN {test} THEN {number}' for number, (test, _) in enumerate(rules))} END::UTINYINT"
    user, item = entity_name_sql('"user"', kinds["user"]), entity_name_sql("item", kinds["item"])
    given = f'{user} AS "user", {item} AS item, "time", behaviour'
    typed = f"SELECT {given}, {when} AS moment, {what} AS value{extra} FROM ({log.rows})"
    judged = f"SELECT *, {reason} AS reason FROM ({typed})"
    raw = 'CASE WHEN reason IS NOT NULL THEN ["time"::VARCHAR, behaviour::VARCHAR] END AS raw'
    return f'SELECT * EXCLUDE ("time", behaviour), {raw} FROM ({judged})', [text for _, text in rules]
