"""Settings given as text: `rounds=3`, `simulator.hidden=64`, `agents=mbcal,dqn`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from mbcal.config import dotted_names
from mbcal.errors import OptionError, nearest


def parse_override(text: str, kind: type, prefix: str = "set: ") -> tuple[list[str], Any]:
    """Parse one override.

    Args:
        text: NAME=VALUE, where NAME may be a dotted path. VALUE is read as TOML, or as plain text if it is not TOML; for a
            setting that is a list, plain text is split at commas.
        kind: The dataclass whose settings these are.
        prefix: What an error message begins with.

    Returns:
        The path of the setting, and its value.

    Raises:
        OptionError: If it is not NAME=VALUE, or the first part of NAME is unknown.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise OptionError(f"{prefix}{text!r} is not NAME=VALUE")
    path = name.strip().split(".")
    types = {field.name: field.type for field in fields(kind)}
    if path[0] not in types:
        hint = nearest(name.strip(), dotted_names(kind))
        raise OptionError(f"{prefix}{path[0]!r} is unknown; known are {', '.join(types)}.{hint}")
    try:
        return path, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        is_list = "tuple" in str(types[path[0]]) or path[-1] == "features"
        return path, split_list(value) if is_list else value.strip()


def apply_overrides(values: dict[str, Any], overrides: Sequence[str], kind: type, prefix: str = "set: ") -> dict[str, Any]:
    """Set overrides in nested settings, in place.

    Args:
        values: Settings by name, nested as in a TOML file.
        overrides: Texts as `parse_override` takes them.
        kind: The dataclass whose settings these are.
        prefix: What an error message begins with.

    Returns:
        `values`.

    Raises:
        OptionError: If an override cannot be parsed, or its path leads through a value that is no table.
    """
    for text in overrides:
        path, value = parse_override(text, kind, prefix)
        table = values
        for depth, name in enumerate(path[:-1]):
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise OptionError(f"{prefix}{'.'.join(path[: depth + 1])} is a value, not a table that holds {path[-1]!r}")
        table[path[-1]] = value
    return values


def split_list(text: str) -> list[str]:
    """Split `a, b,c` at its commas; commas in brackets do not count."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text)]
