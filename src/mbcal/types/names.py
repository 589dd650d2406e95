"""Names of items and users: text, or whole numbers, which stand for their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mbcal.errors import InputError, shortened

Name = str | int | np.integer[Any]
"""How callers may name an item or a user: `"d42"`, or `42` for the name `"42"`."""

Steps = Sequence[tuple[Name, str]]
"""(item, behaviour) pairs, oldest first."""


def to_name(value: Name, subject: str = "item") -> str:
    """Return the text of a name.

    Args:
        value: Text or a whole number, Python's or numpy's.
        subject: What is named, for the error.

    Raises:
        InputError: If the value is anything else. Bools and floats are refused because their text would be a guess.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise InputError(f"{subject}: names are text or whole numbers, got {shortened(repr(value))} ({type(value).__name__})")


def to_steps(steps: Steps, subject: str = "history") -> list[tuple[str, str]]:
    """Return (item, behaviour) pairs as text.

    Args:
        steps: The pairs; items may be whole numbers.
        subject: What the pairs are, for the error.

    Raises:
        InputError: If a step is not a pair, or a name is neither text nor a whole number.
    """
    pairs = []
    for step in _require_list(steps, subject):
        if isinstance(step, str) or not isinstance(step, Sequence) or len(step) != 2:
            raise InputError(f"{subject}: steps are (item, behaviour) pairs, got {shortened(repr(step))}")
        pairs.append((to_name(step[0], f"{subject}: item"), to_name(step[1], f"{subject}: behaviour")))
    return pairs


def to_names(names: Sequence[Name], subject: str = "candidates") -> list[str]:
    """Return names as a list of text.

    Args:
        names: The names. A single string is refused, since it would be read letter by letter.
        subject: What the names are, for the error.

    Raises:
        InputError: If this is not a list of names.
    """
    return [to_name(name, subject) for name in _require_list(names, subject)]


def _require_list(values: Any, subject: str) -> Any:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InputError(f"{subject}: must be a list, got {shortened(repr(values))}")
    return values
