"""Settings as frozen dataclasses, converted from and to plain dictionaries.

`from_dict` checks every value against the type of its field: bool, int, float, str, `Literal`, tuples, unions and nested
dataclasses. Unknown keys and values are refused with the nearest known one. Ranges are checked by the dataclasses themselves
(`__post_init__`). Why not a library: docs/decisions/0012-config-parsing.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from mbcal.errors import OptionError, nearest

T = TypeVar("T")

Device = Literal["auto", "cpu", "cuda"]
"""Where to compute; `auto` takes a GPU if there is one."""

_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""Cached by class: evaluating the annotations would take most of the time of `from_dict`."""
_TYPE_IN_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def to_dict(config: Any) -> dict[str, Any]:
    """Return a dataclass as nested dictionaries of plain values, as JSON and TOML can hold them."""
    return dataclasses.asdict(config)


def from_dict(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Create a dataclass from a dictionary.

    Args:
        kind: The dataclass.
        values: Settings by name, those of nested dataclasses as dictionaries. Fields left out keep their defaults.
        where: Prefix of names in error messages, such as `net.`.

    Raises:
        OptionError: If a key is unknown, or a value has the wrong type or is out of range.
    """
    hints = _type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    converted = {}
    for name, value in values.items():
        if name not in known:
            raise _unknown_setting(f"{where}{name}", name, known)
        converted[name] = _convert(hints[name], value, f"{where}{name}")
    return kind(**converted)


def with_settings(config: T, settings: Mapping[str, Any], where: str = "") -> T:
    """Return a config with single settings replaced, each found by its name at any depth.

    Args:
        config: A dataclass whose fields are settings, or dataclasses of settings.
        settings: New values by name: `gamma` of the config itself, `epochs` of its `training`. A field of the config itself
            wins over a nested one of the same name.
        where: Prefix of error messages, such as `mbcal: `.

    Raises:
        OptionError: If no field has that name, or a value has the wrong type or is out of range.
    """
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    nested = {name: value for name, value in own.items() if dataclasses.is_dataclass(value)}
    owner_of = {field.name: name for name, part in nested.items() for field in dataclasses.fields(part)}
    hints = _type_hints(type(config))
    own_changes: dict[str, Any] = {}
    nested_changes: dict[str, dict[str, Any]] = {name: {} for name in nested}
    for name, value in settings.items():
        if name in own:
            is_config = dataclasses.is_dataclass(value) and isinstance(value, hints[name])
            own_changes[name] = value if is_config else _convert(hints[name], value, f"{where}{name}")
        elif name in owner_of:
            nested_changes[owner_of[name]][name] = value
        else:
            raise _unknown_setting(f"{where}{name}", name, {*own, *owner_of} - nested.keys())
    for name, values in nested_changes.items():
        if values:
            part = own_changes.get(name, nested[name])
            own_changes[name] = from_dict(type(part), {**to_dict(part), **values}, where)
    return dataclasses.replace(config, **own_changes) if own_changes else config  # type: ignore[type-var]


def dotted_names(kind: type) -> list[str]:
    """Return the path of every setting of a dataclass: `gamma`, `net`, `net.hidden`."""
    hints, names = _type_hints(kind), []
    for field in dataclasses.fields(kind):
        inner = hints[field.name]
        names.append(field.name)
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            names += [f"{field.name}.{name}" for name in dotted_names(inner)]
    return names


def _unknown_setting(where: str, name: str, known: Iterable[str]) -> OptionError:
    listed = sorted(known)
    return OptionError(f"{where}: unknown; known are {', '.join(listed)}.{nearest(name, listed)}")


def _convert(kind: Any, value: Any, where: str) -> Any:
    """Check a value against a type, and convert it: lists to tuples, dictionaries to dataclasses, int to float."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise OptionError(f"{where}: must be a table of settings, got {value!r}")
        return from_dict(typing.cast(type, kind), value, f"{where}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return _convert_literal(arguments, value, where)
    if origin is tuple:
        return _convert_tuple(arguments, value, where)
    if origin in (types.UnionType, typing.Union):
        return _convert_union(arguments, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise OptionError(f"{where}: must be {_TYPE_IN_WORDS.get(kind, kind.__name__)}, got {value!r}")
    return value


def _convert_literal(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in choices:
        listed = list(map(str, choices))
        raise OptionError(f"{where}: {value!r} is unknown; known are {', '.join(listed)}.{nearest(str(value), listed)}")
    return value


def _convert_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise OptionError(f"{where}: must be a list, got {value!r}")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise OptionError(f"{where}: must hold {len(kinds)} values, got {len(value)}")
    return tuple(_convert(kind, element, where) for kind, element in zip(kinds, value, strict=True))


def _convert_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return the value as the first type that fits."""
    if value is None and type(None) in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not type(None))
    for kind in others:
        with contextlib.suppress(OptionError):
            return _convert(kind, value, where)
    try:
        return _convert(last, value, where)
    except OptionError as error:
        numbers = [_TYPE_IN_WORDS[kind] for kind in others if kind in _TYPE_IN_WORDS]
        if typing.get_origin(last) is not typing.Literal or not numbers:
            raise
        choices = ", ".join(map(str, typing.get_args(last)))
        raise OptionError(f"{where}: must be {' or '.join(numbers)}, or one of {choices}; got {value!r}") from error
