"""JSON that others may have written: read with a limit on its depth, and written so that it is harmless inside a page."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 50
"""Lists and objects inside one another; deeper ones would end in a RecursionError somewhere later."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If the text is not JSON, or is nested too deeply.
    """
    try:
        value = json.loads(text)
        _require_shallow(value, MAX_DEPTH)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def script_json(value: Any) -> str:
    """Return JSON to be put inside a script element of a page.

    A script element ends at `</script`, and `<!--` changes where it ends, even inside a string. So every `<` is written as
    an escape, and no text in the value can leave the element.

    Raises:
        ValueError: If the value holds NaN or infinity.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _require_shallow(value: Any, depth: int) -> None:
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        raise ValueError("nested too deeply")
    for entry in value.values() if isinstance(value, dict) else value:
        _require_shallow(entry, depth - 1)
