"""Helpers for versions with wrong content."""

from __future__ import annotations

from typing import Any


def with_value(array: Any, value: float) -> Any:
    """A copy of an array whose middle element is `value`."""
    array = array.copy()
    array.flat[array.size // 2] = value
    return array
