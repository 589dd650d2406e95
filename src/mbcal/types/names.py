"""Names of items and users: text, or whole numbers, which stand for their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mbcal.errors import InputError

Name = str | int | np.integer[Any]
"""How callers may name an item or a user: `"d42"`, or `42` for the name `"42"`."""

Steps = Sequence[tuple[Name, str]]
"""(item, behaviour) pairs, oldest first."""


def to_name(value: Name, what: str = "item") -> str:
    """Return the text of a name.

    Args:
        value: Text or a whole number, Python's or numpy's.
        what: What is named, for the error.

    Raises:
        InputError: If the value is anything else; a bool or a float is refused, since its text would be a guess.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    raise InputError(f"{what}: names are text or whole numbers, got {value!r} ({type(value).__name__})")


def to_steps(steps: Steps, what: str = "history") -> list[tuple[str, str]]:
    """Return (item, behaviour) pairs as text.

    Args:
        steps: The pairs; items may be whole numbers.
        what: What the pairs are, for the error.

    Raises:
        InputError: If a step is not a pair, or a name is neither text nor a whole number.
    """
    pairs = []
    for step in _require_list(steps, what):
        if isinstance(step, str) or not isinstance(step, Sequence) or len(step) != 2:
            raise InputError(f"{what}: steps are (item, behaviour) pairs, got {step!r}")
        pairs.append((to_name(step[0], f"{what}: item"), to_name(step[1], f"{what}: behaviour")))
    return pairs


def to_names(names: Sequence[Name], what: str = "candidates") -> list[str]:
    """Return names as a list of text.

    Args:
        names: The names; a single text is refused, it would be read letter by letter.
        what: What they are, for the error.

    Raises:
        InputError: If this is no list of names.
    """
    return [to_name(name, what) for name in _require_list(names, what)]


def _require_list(values: Any, what: str) -> Any:
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InputError(f"{what}: must be a list, got {values!r}")
    return values
