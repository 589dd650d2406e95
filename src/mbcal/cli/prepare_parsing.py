"""Options of `mbcal prepare` that are text, parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mbcal.data import ItemTable, Labels, Levels, UserTable
from mbcal.data.behaviour_rules import behaviour_rule
from mbcal.data.readers.table import parse_numbers, parse_rewards
from mbcal.errors import InputError, OptionError


def parse_rule(rewards: str | None, levels: str | None) -> Labels | Levels:
    """Return the rule that `--rewards` and `--levels` describe."""
    return behaviour_rule(*parse_rule_options(rewards, levels))


def parse_rule_options(
    rewards: str | None, levels: str | None
) -> tuple[Mapping[str, float] | Sequence[float] | None, Sequence[float] | None]:
    """Parse `--rewards`, which are numbers if there are levels and else belong to labels, and `--levels`."""
    if levels is not None:
        return None if rewards is None else parse_numbers("rewards", rewards), parse_numbers("levels", levels)
    return None if rewards is None else parse_rewards(rewards), None


def parse_items(
    paths: list[Path] | None, features: str | None, key: str | None, separator: str, title: str | None
) -> ItemTable | None:
    """Return the item table that `--items` and its options describe; None if there is none."""
    if not paths:
        if features is not None or title is not None:
            raise OptionError("features: need an item table; name it with --items FILE")
        return None
    if features is None and title is None:
        raise InputError(f"{paths[0]}: name the columns to use with --features A,B or --title C")
    return ItemTable(paths, column_names(features), key, separator, title)


def parse_users(paths: list[Path] | None, features: str | None, key: str | None) -> UserTable | None:
    """Return the user table that `--users` and its options describe; None if there is none."""
    if not paths:
        if features is not None:
            raise OptionError("user-features: need a user table; name it with --users FILE")
        return None
    return UserTable(paths, column_names(features), key)


def column_names(text: str | None) -> list[str]:
    """Return the names in `device, hour:number`; none for None."""
    return [name.strip() for name in text.split(",")] if text else []
