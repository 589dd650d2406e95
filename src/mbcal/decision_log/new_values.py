"""Values that a decision log has and the fields of a model do not: categories of users and steps grow by them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mbcal.decision_log.records import Decision, Record
from mbcal.errors import InputError
from mbcal.types import Field, Fields, SessionFields
from mbcal.types.field import MAX_VALUES

MOST_COUNTED = 10 * MAX_VALUES
"""New values of a field that are counted; further ones are left out, so that memory is bounded."""


def extend_by_values(fields: SessionFields, records: Iterable[Record]) -> SessionFields:
    """Return fields with codes for the new values of their categories that decisions were made with.

    If there are more than have room (`types.field.MAX_VALUES`), the most frequent get a code.

    Args:
        fields: The fields that are known.
        records: In any order, which does not matter.

    Returns:
        The grown fields; equal ones if nothing is new.
    """
    user, context = _NewValues(fields.user), _NewValues(fields.context)
    for record in records:
        if isinstance(record, Decision):
            user.count(record.user_features)
            context.count(record.context)
    return SessionFields(user.extended(), context.extended())


class _NewValues:
    """Counts new values of the categories among some fields."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.counts: dict[str, Counter[str]] = {one.name: Counter() for one in fields if one.kind == "category"}

    def count(self, values: Mapping[str, Any]) -> None:
        for one in self.fields.fields[: self.fields.n_codes] if values else ():
            value = values.get(one.name)
            with contextlib.suppress(InputError):  # not a value of a category: missing
                text = None if value is None else one.text(value, "")
                if text is not None and text not in one.code_of:
                    self._add(self.counts[one.name], text)

    def _add(self, counts: Counter[str], text: str) -> None:
        if text in counts or len(counts) < MOST_COUNTED:
            counts[text] += 1

    def extended(self) -> Fields:
        return replace(self.fields, fields=tuple(self._grown(one) for one in self.fields))

    def _grown(self, one: Field) -> Field:
        counts = self.counts.get(one.name, Counter())
        room = MAX_VALUES - len(one.vocabulary)
        frequent = sorted(counts, key=lambda text: (-counts[text], text))[:room]
        return one.extended(sorted(frequent, key=lambda text: (len(text), text)))  # as `prepare` orders values
