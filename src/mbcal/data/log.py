"""A raw log as a reader describes it, and the SQL that turns its columns into typed values or a reason to refuse.

A reader answers with a `Log`: one SELECT for the rows, one for the item features, and the rule for behaviours. All
readers then share the same parsing, so that a null, a NaN, an unknown label or an absurd time is treated alike everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mbcal.data.files import Text
from mbcal.errors import InputError, OptionError
from mbcal.types import Behaviours

if TYPE_CHECKING:
    import duckdb

TimeUnit = Literal["auto", "s", "ms", "us", "ns"]

# The largest magnitude read as each unit when the unit is told by size. Seconds reach the year 5138 before they could be
# taken for milliseconds, and milliseconds go back to 1973 before they could be taken for seconds; likewise further down.
_UNIT_BOUNDS: Sequence[tuple[str, float]] = (("s", 1e11), ("ms", 1e14), ("us", 1e17), ("ns", float("inf")))
_MICROSECONDS = {"s": "{t} * 1000000", "ms": "{t} * 1000", "us": "{t}", "ns": "{t} // 1000"}

LATEST = 4_102_444_800_000_000
"""2100-01-01 in microseconds: a time before 1970 or from here on is absurd."""


@dataclass(frozen=True)
class Labels:
    """Behaviours are named values of a column."""

    rewards: Mapping[str, float]

    def __post_init__(self) -> None:
        self.behaviours()

    def behaviours(self) -> Behaviours:
        return Behaviours(tuple(self.rewards), tuple(map(float, self.rewards.values())))

    def value_sql(self, column: str) -> str:
        """Index of the label; labels that are all numbers match by value, so that `5`, `5.0` and `05` agree."""
        try:
            whens = [(repr(float(name)), k) for k, name in enumerate(self.rewards)]
            column = f"try_cast({column} AS DOUBLE)"
        except ValueError:
            whens = [(quote(name), k) for k, name in enumerate(self.rewards)]
            column = f"trim({column}::VARCHAR)"
        return f"CASE {column} {' '.join(f'WHEN {when} THEN {k}' for when, k in whens)} END::UTINYINT"


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
        cuts equal, the later one moves on to the next distinct value.
        """
        below = np.cumsum(counts) - counts
        cuts: list[float] = []
        position = 0
        for k in range(1, self.levels):
            position = max(position + 1, int(np.searchsorted(below, counts.sum() * k / self.levels)))
            if position >= len(values):
                raise InputError(f"behaviours: {len(values)} distinct values are too few for {self.levels} levels")
            cuts.append(float(values[position]))
        return Levels(tuple(cuts))


Rule = Labels | Levels | Quantiles


@dataclass(frozen=True)
class Log:
    """What a reader found. `rows` selects user, item, time, behaviour and, where the log has them, session and
    propensity; `features` selects item and one column a feature (text, or a list of text where multi-valued); `titles`
    selects item and title."""

    layout: str
    rows: str
    rule: Rule
    text: bool
    features: str | None = None
    titles: str | None = None
    time_unit: TimeUnit = "auto"
    time_format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def quote(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def name(column: str) -> str:
    """A SQL identifier."""
    return '"' + column.replace('"', '""') + '"'


def _finite_sql(column: str) -> str:
    return f"CASE WHEN isfinite(try_cast({column} AS DOUBLE)) THEN try_cast({column} AS DOUBLE) END"


def csv_sql(
    text: Text,
    columns: Sequence[str],
    *,
    delimiter: str = ",",
    header: bool = True,
    quoted: bool = True,
) -> str:
    """A SELECT over one text file, every column as text; lines of the wrong shape go to DuckDB's `reject_errors`."""
    types = ", ".join(f"{quote(column)}: 'VARCHAR'" for column in columns)
    return (
        f"SELECT * FROM read_csv({quote(str(text.path))}, auto_detect=false, columns={{{types}}}, delim={quote(delimiter)}, "
        f"""quote={quote('"' if quoted else "")}, escape={quote('"' if quoted else "")}, header={header}, """
        f"encoding={quote(text.encoding)}, store_rejects=true)"
    )


def time_sql(column: str, kind: str, unit: TimeUnit, form: str | None) -> str:
    """Microseconds since 1970 (UTC), or NULL where the value cannot be read; `kind` is DuckDB's name of the type."""
    if form is not None:
        return f"epoch_us(try_strptime({column}::VARCHAR, {quote(form)}))"
    if kind.startswith(("TIMESTAMP", "DATE")):
        return f"CASE WHEN isfinite({column}) THEN epoch_us({column}::TIMESTAMP) END"
    if kind == "VARCHAR":
        whole, broken, moment = (f"try_cast({column} AS {kind})" for kind in ("BIGINT", "DOUBLE", "TIMESTAMPTZ"))
        # in this order, and no coalesce: a cast to TIMESTAMPTZ that fails takes a microsecond
        return (
            f"CASE WHEN {whole} IS NOT NULL THEN {_epoch_sql(whole, unit)} "
            f"WHEN {broken} IS NOT NULL THEN {_epoch_sql(broken, unit)} "
            f"WHEN isfinite({moment}) THEN epoch_us({moment}) END"
        )
    if not re.fullmatch("U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*", kind):
        raise InputError(f"the time column has type {kind}; it must hold timestamps, dates, ISO text or epoch numbers")
    wide = "BIGINT" if "INT" in kind else "DOUBLE"  # narrower ones would overflow when scaled
    return _epoch_sql(f"try_cast({column} AS {wide})", unit)


def _epoch_sql(number: str, unit: TimeUnit) -> str:
    if unit != "auto":
        scaled = f"TRY({_MICROSECONDS[unit].format(t=f'({number})')})"
    else:
        branches = " ".join(
            f"WHEN abs({number}::DOUBLE) < {bound} THEN {_MICROSECONDS[unit].format(t=f'({number})')}"
            for unit, bound in _UNIT_BOUNDS[:-1]
        )
        scaled = f"CASE {branches} ELSE {_MICROSECONDS['ns'].format(t=f'({number})')} END"
    return f"try_cast({scaled} AS BIGINT)"


def parsed_sql(log: Log, connection: duckdb.DuckDBPyConnection) -> tuple[str, list[str]]:
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
        extra += ", md5_number_lower(session::VARCHAR) AS session"
        rules.append(("session IS NULL", "session is missing"))
    if "propensity" in kinds:
        extra += ", try_cast(propensity AS FLOAT) AS propensity"
        rules.append(("propensity IS NULL OR NOT (propensity > 0 AND propensity <= 1)", "propensity is not in (0, 1]"))
    numbers = [column for column in ("user", "item") if kinds[column] in ("FLOAT", "DOUBLE")]
    rules += [(f"isnan({name(column)})", f"{column} is not a number") for column in numbers]
    reason = f"CASE {' '.join(f'WHEN {test} THEN {number}' for number, (test, _) in enumerate(rules))} END::UTINYINT"
    typed = f'SELECT "user", item, "time", behaviour, {when} AS moment, {what} AS value{extra} FROM ({log.rows})'
    judged = f"SELECT *, {reason} AS reason FROM ({typed})"
    raw = 'CASE WHEN reason IS NOT NULL THEN ["time"::VARCHAR, behaviour::VARCHAR] END AS raw'
    return f'SELECT * EXCLUDE ("time", behaviour), {raw} FROM ({judged})', [text for _, text in rules]
