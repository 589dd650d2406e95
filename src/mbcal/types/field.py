"""One property of a user or of a step: how its raw values are checked and encoded (`types.fields` has several together)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from mbcal.errors import InputError, OptionError, shortened
from mbcal.types.kinds import FeatureKind, require_kind

MAX_VALUES = 10_000
"""Values of a category that get a code of their own: the most frequent ones."""
MAX_DEVIATIONS = 10.0
"""Standardised numbers are clipped to this many deviations, so that no value can dominate or overflow a network."""
MAX_LENGTH = 4096
"""Longest vector."""

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Field:
    """One property of a user or of a step.

    Raises:
        OptionError: If the kind is unknown, or the vocabulary, the statistics or the length do not fit it.
    """

    name: str
    kind: FeatureKind
    vocabulary: tuple[str, ...] = ()
    """Values of a category; the code of the k-th is k + 1."""
    mean: float = 0.0
    """Of a number, over the train part."""
    deviation: float = 1.0
    """Standard deviation of a number, over the train part."""
    length: int = 0
    """Numbers in a vector."""

    def __post_init__(self) -> None:
        require_kind(self.kind, self.name)
        if not self.name or (self.kind == "vector") != (1 <= self.length <= MAX_LENGTH):
            raise OptionError(
                f"field {self.name!r}: a vector has 1 to {MAX_LENGTH} numbers, other kinds none, got {self.length}"
            )
        if len(set(self.vocabulary)) != len(self.vocabulary) or len(self.vocabulary) > MAX_VALUES:
            raise OptionError(f"field {self.name!r}: at most {MAX_VALUES} different values have a code")
        if not (math.isfinite(self.mean) and 0 < self.deviation < math.inf):
            raise OptionError(f"field {self.name!r}: mean and deviation must be finite, the deviation above 0")

    @property
    def width(self) -> int:
        """Columns that its value takes in an encoded row."""
        return {"category": 1, "number": 2, "vector": self.length + 1}[self.kind]

    @cached_property
    def code_of(self) -> dict[str, int]:
        """Value -> code."""
        return {value: code for code, value in enumerate(self.vocabulary, 1)}

    def extended(self, values: Iterable[str]) -> Field:
        """Return the field with codes for more values of a category, after those it has, as long as there is room.

        Args:
            values: In the order of their codes; those that it has are left out.
        """
        if self.kind != "category":
            return self
        new = [value for value in dict.fromkeys(values) if value not in self.code_of]
        return replace(self, vocabulary=(*self.vocabulary, *new[: MAX_VALUES - len(self.vocabulary)])) if new else self

    def encode(self, value: Any, subject: str) -> Sequence[float]:
        """Return the columns of one raw value.

        Args:
            value: The value; None if it is missing.
            subject: What is described, for the error: `context` or `user_features`.

        Raises:
            InputError: If the value is not of the field's kind, a number is NaN or infinite, or a vector has another length.
        """
        if value is None:
            return (0.0,) * self.width
        if self.kind == "category":
            return (float(self.code_of.get(self.text(value, subject), 0)),)
        if self.kind == "number":
            return standardised(self._number(value, subject), self.mean, self.deviation), 1.0
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
            raise InputError(
                f"{subject}: {self.name!r} is a vector; give a list of {self.length} numbers, got {shortened(repr(value))}"
            )
        if len(value) != self.length:
            raise InputError(f"{subject}: {self.name!r} must have {self.length} numbers, got {len(value)}")
        return *(self._number(number, subject) for number in value), 1.0

    def text(self, value: Any, subject: str) -> str:
        """Return a value of a category as text; see `encode`."""
        if isinstance(value, str):
            return value
        if isinstance(value, bool | np.bool_):
            return "true" if value else "false"
        if isinstance(value, int | np.integer) or (isinstance(value, float | np.floating) and float(value).is_integer()):
            return str(int(value))  # 7.0 is 7, as in a log
        raise InputError(
            f"{subject}: {self.name!r} is a category; give text or a whole number, got {shortened(repr(value))}"
        )

    def _number(self, value: Any, subject: str) -> float:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
            raise InputError(f"{subject}: {self.name!r} takes numbers, got {shortened(repr(value))}")
        number = float(value)
        if not abs(number) <= _LARGEST:  # NaN is not
            raise InputError(
                f"{subject}: {self.name!r} must be finite, got {shortened(str(value))}; leave it out if it is not known"
            )
        return number

    def describe(self) -> str:
        """Return it in words: `hour (number)`."""
        return f"{self.name} ({self.kind} of {self.length})" if self.kind == "vector" else f"{self.name} ({self.kind})"


def standardised(value: float, mean: float, deviation: float) -> float:
    """Return a number in deviations from the mean, clipped to `MAX_DEVIATIONS`."""
    return min(max((value - mean) / deviation, -MAX_DEVIATIONS), MAX_DEVIATIONS)
