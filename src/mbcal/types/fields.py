"""Declared fields of users and of steps (context): their kinds, and how raw values become numbers.

A field is of one of three kinds. The values of all fields of a user or of a step become one row of float32::

    device, hour, text      {"device": "tv", "hour": 20}
    categories first        [ 3.0 |  1.4  1.0 |  0.0  0.0 … 0.0 ]
                              code   value      vector of L numbers, then 1 if it is there
                                     then 1 if it is there

A category is a code: 0 for a value that is missing or was not declared, k + 1 for the k-th of the vocabulary. A number is
standardised with the mean and deviation of the train part, which are part of the field. So a row of zeros means that
nothing is known, and padding means the same. Fields are ordered by kind and name, so the order in which they are declared
does not matter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, OptionError, nearest, shortened
from mbcal.types.field import MAX_DEVIATIONS, Field
from mbcal.types.kinds import FeatureKind

Values = Mapping[str, Any]
"""Raw values by field: text or whole numbers for categories, numbers, lists of numbers; None or absent if missing."""


@dataclass(frozen=True, repr=False)
class Fields:
    """The fields of users, or of steps, in the order of their columns: categories first, then by name.

    Raises:
        OptionError: If two fields have one name.
    """

    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.fields, key=lambda one: (one.kind != "category", one.name)))
        object.__setattr__(self, "fields", ordered)
        names = [one.name for one in ordered]
        if len(set(names)) != len(names):
            raise OptionError(f"fields: two are called {max(names, key=names.count)!r}; name every field once")

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Any:
        return iter(self.fields)

    def __repr__(self) -> str:
        return f"<Fields: {self.describe() or 'none'}>"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the fields, in order."""
        return tuple(one.name for one in self.fields)

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Name -> columns in an encoded row."""
        ends = np.cumsum([one.width for one in self.fields]).tolist()
        return {one.name: slice(end - one.width, end) for one, end in zip(self.fields, ends, strict=True)}

    @cached_property
    def width(self) -> int:
        """W, columns of an encoded row."""
        return sum(one.width for one in self.fields)

    @cached_property
    def n_codes(self) -> int:
        """Categories: the first columns of an encoded row."""
        return sum(one.kind == "category" for one in self.fields)

    @cached_property
    def code_offsets(self) -> NDArray[np.int64]:
        """(categories + 1,) where the codes of each category begin in one table of all, and the rows of the table."""
        sizes = [len(one.vocabulary) + 1 for one in self.fields[: self.n_codes]]
        return np.cumsum([0, *sizes], dtype=np.int64)

    def encode(self, values: Values | None, subject: str) -> NDArray[np.float32]:
        """Encode the raw values of one user or step.

        Args:
            values: Raw values by field.
            subject: What is described, for the error: `context` or `user_features`.

        Returns:
            (W,) float32.

        Raises:
            InputError: If a field was never declared, or a value does not fit its field.
        """
        return np.asarray(self.encoded(values, subject), np.float32)

    def encoded(self, values: Values | None, subject: str) -> list[float]:
        """Return the W numbers of `encode` as a list."""
        if not values:
            return [0.0] * self.width
        self.require_declared(values, subject)
        row: list[float] = []
        for one in self.fields:
            row += one.encode(values.get(one.name), subject)
        return row

    def encode_known(self, values: Values, subject: str) -> NDArray[np.float32]:
        """Encode raw values that may be meant for other fields: what is not declared, or does not fit, is missing."""
        try:
            return self.encode(values, subject)
        except InputError:
            row = np.zeros(self.width, np.float32)
            for one in self.fields:
                with contextlib.suppress(InputError):
                    row[self.columns[one.name]] = one.encode(values.get(one.name), subject)
            return row

    def require_declared(self, names: Iterable[str], subject: str) -> None:
        """Raise InputError if there is no field of one of these names."""
        for name in names:
            if name not in self.columns:
                known = ", ".join(self.names) or "none"
                hint = nearest(str(name), self.names)
                raise InputError(f"{subject}: {shortened(str(name))!r} was never declared; the model knows {known}.{hint}")

    def select(self, names: Sequence[str] | None, option: str) -> Fields:
        """Return some of the fields; all if names is None.

        Raises:
            OptionError: If there is no field of one of these names.
        """
        for name in names or ():
            if name not in self.columns:
                known = ", ".join(self.names) or "none"
                raise OptionError(f"{option}: no {name!r}; the data has {known}.{nearest(name, self.names)}")
        return self if names is None else Fields(tuple(one for one in self.fields if one.name in names))

    def extended(self, other: Fields) -> Fields:
        """Return these fields with codes for the values that categories of the same name have in other fields.

        Codes stay what they are, and so do means and deviations: what was encoded before is encoded the same.
        """
        vocabularies = {one.name: one.vocabulary for one in other.fields}
        grown = tuple(one.extended(vocabularies.get(one.name, ())) for one in self.fields)
        return self if grown == self.fields else Fields(grown)

    def recode(self, rows: Any, source: Fields) -> Any:
        """Encode by these fields what other fields of the same names encoded.

        Args:
            rows: (…, W of `source`), an array or a tensor.
            source: The fields that encoded it. What they lack is missing in the result.

        Returns:
            (…, W of these fields), of the same type and on the same device.
        """
        if self == source:
            return rows
        shape = (*rows.shape[:-1], self.width)
        recoded = np.zeros(shape, np.float32) if isinstance(rows, np.ndarray) else rows.new_zeros(shape)
        by_name = {one.name: one for one in source.fields}
        for one in self.fields:
            other = by_name.get(one.name)
            if other is not None and (other.kind, other.length) == (one.kind, one.length):
                recoded[..., self.columns[one.name]] = _recoded(rows[..., source.columns[one.name]], one, other)
        return recoded

    def require_valid(self, name: str, rows: NDArray[np.float32]) -> None:
        """Raise InputError unless rows (…, W) hold finite numbers and codes of the vocabularies."""
        if rows.shape[-1] != self.width:
            raise InputError(f"sessions: {name} has {rows.shape[-1]} columns, its fields take {self.width}")
        if not np.isfinite(rows).all():
            raise InputError(f"sessions: {name} must hold finite numbers; missing values are zeros")
        for column, one in enumerate(self.fields[: self.n_codes]):
            codes = rows[..., column]
            if codes.size and not 0 <= codes.min() <= codes.max() <= len(one.vocabulary):
                raise InputError(f"sessions: {name} has codes of {one.name!r} outside 0..{len(one.vocabulary)}")

    def describe(self) -> str:
        """Return all fields in words: `device (category), hour (number)`."""
        return ", ".join(one.describe() for one in self.fields)

    def record(self) -> list[dict[str, Any]]:
        """Return the fields as JSON can hold them."""
        keys: dict[FeatureKind, tuple[str, ...]] = {
            "category": ("vocabulary",),
            "number": ("mean", "deviation"),
            "vector": ("length",),
        }
        return [{key: getattr(one, key) for key in ("name", "kind", *keys[one.kind])} for one in self.fields]

    @classmethod
    def from_record(cls, record: Sequence[Mapping[str, Any]]) -> Self:
        """Return what `record` wrote.

        Raises:
            InputError: If it is something else, as in a manifest that was edited.
        """
        try:
            entries = [dict(entry) for entry in record]
            if any(isinstance(entry.get("vocabulary"), str) for entry in entries):
                raise TypeError("a vocabulary is a text")
            return cls(tuple(Field(**{**entry, "vocabulary": tuple(entry.get("vocabulary", ()))}) for entry in entries))
        except (AttributeError, KeyError, OptionError, TypeError, ValueError) as error:
            raise InputError(f"fields: their record cannot be read ({str(error).splitlines()[0]})") from error


def _recoded(columns: Any, target: Field, source: Field) -> Any:
    if target == source or target.kind == "vector":
        return columns
    if target.kind == "number":
        raw, present = columns[..., 0] * source.deviation + source.mean, columns[..., 1]
        scaled = columns * 1
        scaled[..., 0] = ((raw - target.mean) / target.deviation).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS) * present
        return scaled
    table = np.asarray([0, *(target.code_of.get(value, 0) for value in source.vocabulary)], np.float32)
    if isinstance(columns, np.ndarray):
        return table[columns.astype(np.int64)]
    return columns.new_tensor(table)[columns.long()]


@dataclass(frozen=True)
class SessionFields:
    """The fields of users and of steps that sessions carry, or that a model reads."""

    user: Fields = field(default_factory=Fields)
    context: Fields = field(default_factory=Fields)

    def __bool__(self) -> bool:
        return bool(self.user.fields or self.context.fields)

    def select(self, user: Sequence[str] | None, context: Sequence[str] | None) -> SessionFields:
        """Return some of the fields; all of users or of steps where None.

        Raises:
            OptionError: If there is no field of one of these names.
        """
        return SessionFields(self.user.select(user, "user-features"), self.context.select(context, "context"))

    def extended(self, other: SessionFields) -> SessionFields:
        """Return these fields with codes for the values that categories of the same name have in other fields."""
        return SessionFields(self.user.extended(other.user), self.context.extended(other.context))

    def describe(self) -> str:
        """Return all fields in words."""
        groups = (("users by", self.user), ("steps by", self.context))
        return "; ".join(f"{title} {fields.describe()}" for title, fields in groups if len(fields))

    def record(self) -> dict[str, Any]:
        """Return them as JSON can hold them."""
        return {"user": self.user.record(), "context": self.context.record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | None) -> Self:
        """Return what `record` wrote; no fields for None.

        Raises:
            InputError: If it is something else.
        """
        if record is None:
            return cls()
        if not isinstance(record, Mapping) or not {"user", "context"} <= record.keys():
            raise InputError("fields: their record cannot be read; it must name those of users and of steps")
        return cls(Fields.from_record(record["user"]), Fields.from_record(record["context"]))


NO_FIELDS = SessionFields()
"""Neither users nor steps are described."""
