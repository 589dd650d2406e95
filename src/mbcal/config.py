"""ExperimentConfig as frozen dataclasses, to plain dictionaries and back: no untyped options, no silent unknown key."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from mbcal.errors import OptionError, nearest

T = TypeVar("T")

Device = Literal["auto", "cpu", "cuda"]
"""Where to compute; auto takes a GPU if there is one."""


def to_dict(config: Any) -> dict[str, Any]:
    """Plain values only: what JSON and TOML can hold."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """The dataclass `kind` from a dictionary; keys left out keep their defaults, unknown ones are refused by name."""
    hints = typing.get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    made = {}
    for name, value in values.items():
        if name not in known:
            raise OptionError(f"{where}{name}: unknown; known are {', '.join(sorted(known))}.{nearest(name, known)}")
        made[name] = _value(hints[name], value, f"{where}{name}")
    return kind(**made)


def with_settings(config: T, settings: Mapping[str, Any], where: str = "") -> T:
    """Return a config with single settings changed, each found by its name wherever it sits.

    Args:
        config: A dataclass whose fields are settings, or dataclasses of settings.
        settings: New values by name: `gamma` of the config itself, `epochs` of its `training`. A field of the config itself
            wins over one of the same name further down.
        where: What an error begins with.

    Raises:
        OptionError: If no field has that name, or a value is out of range.
    """
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    nested = {name: value for name, value in own.items() if dataclasses.is_dataclass(value)}
    owner_of = {field.name: name for name, part in nested.items() for field in dataclasses.fields(part)}
    hints = typing.get_type_hints(type(config))
    direct: dict[str, Any] = {}
    further: dict[str, dict[str, Any]] = {name: {} for name in nested}
    for name, value in settings.items():
        if name in own:
            is_config = dataclasses.is_dataclass(value) and isinstance(value, hints[name])
            direct[name] = value if is_config else _value(hints[name], value, f"{where}{name}")
        elif name in owner_of:
            further[owner_of[name]][name] = value
        else:
            known = sorted({*own, *owner_of} - nested.keys())
            raise OptionError(f"{where}{name}: unknown; known are {', '.join(known)}.{nearest(name, known)}")
    for name, values in further.items():
        if values:
            part = direct.get(name, nested[name])
            direct[name] = from_dict(type(part), {**to_dict(part), **values}, where)
    return dataclasses.replace(config, **direct) if direct else config  # type: ignore[type-var]


def dotted_names(kind: type) -> list[str]:
    """Every setting of a dataclass by its path: `gamma`, `net`, `net.hidden`."""
    hints, names = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        inner = hints[field.name]
        names.append(field.name)
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            names += [f"{field.name}.{name}" for name in dotted_names(inner)]
    return names


def _value(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise OptionError(f"{where}: must be a table of settings, got {value!r}")
        return from_dict(typing.cast(type, kind), value, f"{where}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in arguments:
            listed = ", ".join(map(str, arguments))
            raise OptionError(
                f"{where}: {value!r} is unknown; known are {listed}.{nearest(str(value), map(str, arguments))}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise OptionError(f"{where}: must be a list, got {value!r}")
        inner = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(inner) != len(value):
            raise OptionError(f"{where}: must hold {len(inner)} values, got {len(value)}")
        return tuple(_value(one, part, where) for one, part in zip(inner, value, strict=True))
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        *first, last = (one for one in arguments if one is not type(None))
        for one in first:  # `float | Literal["auto"]`: whichever fits
            with contextlib.suppress(OptionError):
                return _value(one, value, where)
        return _value(last, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise OptionError(f"{where}: must be {_ARTICLE.get(kind, kind.__name__)}, got {value!r}")
    return value


_ARTICLE = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
