"""Numbers as sentences and JSON files have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def rounded(count: float) -> str:
    """Return a count with two significant digits; a billion and more are named as such."""
    if count > 1e9:
        return "a billion or more"
    digits = len(str(int(count))) - 2
    return f"{round(count, -max(digits, 0)):,.0f}"


def finite(value: Any) -> Any:
    """Return a plain value, with None in place of every number in it that is not finite: JSON has none."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float | np.floating) and not math.isfinite(value) else value
