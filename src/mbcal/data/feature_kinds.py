"""Kinds of the columns of an item table: category, number or vector, declared (`words:number`) or inferred.

Inferred::

    vector     lists of fractions that all have one length, and text such as "[0.1, 0.2]"
    number     numbers with more than 50 distinct values, unless the column is named like an id; times likewise
    category   everything else: text, bool, lists of text, whole numbers with few distinct values
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from mbcal.data.sql import sql_identifier, sql_string
from mbcal.errors import InputError, OptionError
from mbcal.types import Feature, FeatureKind
from mbcal.types.kinds import require_kind

if TYPE_CHECKING:
    import duckdb

MANY_VALUES = 50
"""Distinct values up to which a column of numbers is taken for a category."""
MOSTLY_NUMBERS = 0.1
"""Share of distinct values up to which those that are no number look like mistakes in a column of numbers."""
ID_ENDINGS = ("id", "code", "key")
"""How the names of columns end whose numbers are names."""
FRACTIONS = ("FLOAT[]", "DOUBLE[]")
"""Types of list columns that are kept as they are, since they may be vectors."""
_ABSENT = "('nan', 'null', 'none', 'na', 'n/a', '')"
"""Texts that stand for no number, in lower case."""


def split_kinds(features: Sequence[str]) -> tuple[tuple[str, ...], dict[str, FeatureKind]]:
    """Split `["category", "words:number"]` into the columns and the kinds that were declared.

    Raises:
        OptionError: If a kind is unknown.
    """
    columns, kinds = [], {}
    for feature in features:
        column, colon, kind = feature.rpartition(":")
        columns.append(column if colon else feature)
        if colon:
            kinds[column] = require_kind(kind, column)
    return tuple(columns), kinds


def is_list(column_type: str) -> bool:
    """Whether a DuckDB type is a list."""
    return column_type.endswith("]")


def doubtful_category(feature: Feature) -> str | None:
    """Return why an inferred category was probably meant as a number or a vector, and what to do; None if it was not.

    One word in a column of numbers makes it a category, and so does one list of another length in a column of vectors.
    """
    values = feature.vocabulary
    others = [value for value in values if not _is_number(value)]
    if len(values) <= MANY_VALUES or len(others) > MOSTLY_NUMBERS * len(values):
        return None
    if others:
        return f"{min(others)!r} is no number, nearly all others are; repair the table and declare {feature.name}:number"
    if feature.offsets is not None and any("." in value for value in values):
        return f"its lists of fractions differ in length; repair the table and declare {feature.name}:vector"
    return None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class KindFinder:
    """Finds the kinds of the columns of a table in DuckDB, and the SQL that reads them.

    Args:
        connection: Has the table.
        table: Its name. Columns hold text, lists of text, or lists of fractions (`FRACTIONS`).
        types: Column -> DuckDB type.
        times: Columns whose text was a time.
        separator: Separates the values of multi-valued text; empty if there is none.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: str,
        types: Mapping[str, str],
        times: Collection[str],
        separator: str,
    ) -> None:
        self.connection, self.table, self.types, self.times, self.separator = connection, table, types, times, separator

    def select_sql(self, name: str, declared: FeatureKind | None) -> str:
        """Return an expression that selects a feature: text or a list of text, FLOAT for a number, FLOAT[] for a vector.

        Args:
            name: The column.
            declared: Its kind; None to infer it.

        Raises:
            OptionError: If a list is declared a number.
            InputError: If a value is not of the declared kind.
        """
        column, kind = sql_identifier(name), declared or self.infer(name)
        if kind == "category":
            return f"{self._category_sql(name)} AS {column}"
        if kind == "number" and is_list(self.types[name]):
            raise OptionError(f"features: {name!r} holds lists, not numbers; declare it as {name}:vector or {name}:category")
        value = self._number_sql(name) if kind == "number" else self._vector_sql(name)
        if declared is not None:
            self._require_readable(name, declared, value)
        return f"{value} AS {column}"

    def infer(self, name: str) -> FeatureKind:
        """Return the kind of a column by its values."""
        column, column_type = sql_identifier(name), self.types[name]
        if is_list(column_type):
            if column_type not in FRACTIONS:
                return "category"
            lengths = f"SELECT count(DISTINCT len({column})), min(len({column})) FROM {self.table} WHERE len({column}) > 0"
            count, length = self._row(lengths)
            return "vector" if count == 1 and length > 1 else "category"
        example = self._row(f"SELECT min({column}) FROM {self.table} WHERE starts_with({column}, '[')")[0]
        if example is not None:
            is_readable = self._unreadable(name, self._vector_sql(name)) is None
            return "vector" if is_readable and "," in example else "category"
        distinct, leading_zero = self._row(
            f"SELECT count(DISTINCT {column}), bool_or(regexp_matches({column}, '^-?0[0-9]')) FROM {self.table}"
        )
        if distinct <= MANY_VALUES or leading_zero or name.lower().endswith(ID_ENDINGS):
            return "category"
        return "number" if self._unreadable(name, self._number_sql(name)) is None else "category"

    def _category_sql(self, name: str) -> str:
        column, separator = sql_identifier(name), sql_string(self.separator)
        if is_list(self.types[name]):
            return f"{column}::VARCHAR[]" if self.types[name] in FRACTIONS else column
        contains = f"SELECT count(*) FROM {self.table} WHERE contains({column}, {separator})"
        if self.separator and self._row(contains)[0]:
            return f"list_transform(string_split({column}, {separator}), lambda v: trim(v))"
        return column

    def _number_sql(self, name: str) -> str:
        """The column as FLOAT; NULL if it is not a finite number. Times become seconds since 1970."""
        column = sql_identifier(name)
        number = f"epoch(try_cast({column} AS TIMESTAMPTZ))" if name in self.times else f"try_cast({column} AS DOUBLE)"
        return f"CASE WHEN abs({number}) < 3e38 THEN ({number})::FLOAT END"

    def _vector_sql(self, name: str) -> str:
        column = sql_identifier(name)
        vector = f"{column}::FLOAT[]" if self.types[name] in FRACTIONS else f"try_cast({column} AS FLOAT[])"
        return f"CASE WHEN len({vector}) > 0 THEN {vector} END"

    def _unreadable(self, name: str, value: str) -> str | None:
        """A text of the column that has no value; None if all have one."""
        column, absent = sql_identifier(name), _ABSENT
        text = f"{column}::VARCHAR"
        is_given = f"{column} IS NOT NULL AND lower({text}) NOT IN {absent} AND {text} <> '[]'"
        example: str | None = self._row(f"SELECT min({text}) FROM {self.table} WHERE {is_given} AND ({value}) IS NULL")[0]
        return example

    def _require_readable(self, name: str, kind: FeatureKind, value: str) -> None:
        example = self._unreadable(name, value)
        if example is not None:
            shown = example if len(example) <= 40 else f"{example[:40]}…"
            raise InputError(f"feature {name!r}: {shown!r} is not a {kind}; repair the table or declare it {name}:category")

    def _row(self, query: str) -> tuple:  # type: ignore[type-arg]  # of what the query selects
        return self.connection.execute(query).fetchall()[0]
