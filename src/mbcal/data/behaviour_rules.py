"""How a column of the log becomes behaviours: by label, by given cut points, or by quantiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mbcal.data.sql import finite_sql, sql_string
from mbcal.errors import InputError, OptionError
from mbcal.types import Behaviours


@dataclass(frozen=True)
class Labels:
    """Behaviours are labels in a column. If all labels are numbers, they match by value: `5`, `5.0` and `05` are the same.

    One label alone is enough if rows of another behaviour are added (`clicks.code_behaviours`).

    Raises:
        OptionError: If there is no label, one is empty, or two are the same number.
    """

    rewards: Mapping[str, float]
    """Label -> reward, in the order of the behaviours' numbers."""

    def __post_init__(self) -> None:
        if len(self.rewards) != 1:
            self.behaviours()
        if "" in self.rewards:
            raise OptionError("rewards: a label is empty; write skip=0,click=1,like=5")
        numbers = self._numbers()
        if numbers is not None and len(set(numbers)) < len(numbers):
            raise OptionError(f"rewards: two labels are the same number, in {', '.join(self.rewards)}")

    def behaviours(self) -> Behaviours:
        """Return the behaviours and their rewards."""
        return Behaviours(tuple(self.rewards), tuple(map(float, self.rewards.values())))

    def _numbers(self) -> list[float] | None:
        """The labels as numbers; None unless all are finite numbers."""
        try:
            numbers = [float(label) for label in self.rewards]
        except ValueError:
            return None
        return numbers if all(map(math.isfinite, numbers)) else None

    def value_sql(self, column: str) -> str:
        """Return an expression for the number of the label; NULL for unknown ones."""
        numbers = self._numbers()
        if numbers is not None:
            values, column = list(map(repr, numbers)), f"try_cast({column} AS DOUBLE)"
        else:
            values, column = list(map(sql_string, self.rewards)), f"trim({column}::VARCHAR)"
        cases = " ".join(f"WHEN {value} THEN {number}" for number, value in enumerate(values))
        return f"CASE {column} {cases} END::UTINYINT"


@dataclass(frozen=True)
class Levels:
    """Behaviours are levels of a number between given cut points.

    Raises:
        OptionError: If cut points are not ascending, or the number of rewards is not one more.
    """

    cuts: tuple[float, ...]
    """Ascending cut points, at least one."""
    rewards: tuple[float, ...] | None = None
    """Reward of each level; None for 1, 2, 3, …"""

    def __post_init__(self) -> None:
        self.behaviours()

    def behaviours(self) -> Behaviours:
        """Return the levels and their rewards."""
        return Behaviours.from_cuts(self.cuts, self.rewards)

    def value_sql(self, column: str) -> str:
        """Return an expression for the number; NULL if it is not finite."""
        return finite_sql(column)


@dataclass(frozen=True)
class Quantiles:
    """Behaviours are levels of a number, about equally common among users outside the test part.

    The cut points are known only after the log has been scanned: `cut` then returns the `Levels`.
    """

    levels: int
    """How many levels."""

    def value_sql(self, column: str) -> str:
        """Return an expression for the number; NULL if it is not finite."""
        return finite_sql(column)

    def cut(self, values: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> Levels:
        """Compute the cut points.

        The k-th cut is the first value with at least k/levels of the mass below it. Where a common value would make two cuts
        equal, the later one moves to the next distinct value.

        Args:
            values: (V,) distinct values, ascending.
            counts: (V,) how often each occurs.

        Raises:
            InputError: If there are fewer distinct values than levels.
        """
        if len(values) < self.levels:
            raise InputError(f"behaviours: {len(values)} distinct values are too few for {self.levels} levels")
        below = np.cumsum(counts) - counts
        cuts: list[float] = []
        position = 0
        for k in range(1, self.levels):
            position = max(position + 1, int(np.searchsorted(below, counts.sum() * k / self.levels)))
            position = min(position, len(values) - self.levels + k)  # leave one value for each later cut
            cuts.append(float(values[position]))
        return Levels(tuple(cuts))


LAST = "last"
"""Behaviour of the last click of a session, after which nothing is known."""


@dataclass(frozen=True)
class NextClick:
    """Behaviours are levels of the seconds until the user's next click in the session; the last click has its own, `last`.

    Raises:
        OptionError: If cut points are not ascending, or the number of rewards is neither one nor two more.
    """

    cuts: tuple[float, ...]
    """Ascending cut points in seconds, at least one."""
    rewards: tuple[float, ...] | None = None
    """Reward of each level and, if given, of `last`; None for 1, 2, 3, … The last click gets that of the lowest level."""

    def __post_init__(self) -> None:
        self.behaviours()

    def behaviours(self) -> Behaviours:
        """Return the levels and `last`, with their rewards."""
        rewards = self.rewards
        has_last = rewards is not None and len(rewards) == len(self.cuts) + 2
        levels = Behaviours.from_cuts(self.cuts, rewards[:-1] if rewards is not None and has_last else rewards)
        last = rewards[-1] if rewards is not None and has_last else levels.rewards[0]
        return Behaviours((*levels.names, LAST), (*levels.rewards, last))

    def value_sql(self, column: str) -> str:  # noqa: ARG002 - like the other rules
        """Return an expression for a constant: levels are known once rows are sorted."""
        return "0::UTINYINT"


BehaviourRule = Labels | Levels | Quantiles | NextClick
"""How the behaviour column becomes behaviours."""


def behaviour_rule(rewards: Mapping[str, float] | Sequence[float] | None, levels: Sequence[float] | None) -> Labels | Levels:
    """Return the rule that rewards and cut points describe.

    Args:
        rewards: Label -> reward; or, with `levels`, the reward of each level.
        levels: Ascending cut points; None if behaviours are labels.

    Raises:
        OptionError: If both are missing, they do not fit together, or the rule is not valid.
    """
    if levels is not None:
        if isinstance(rewards, Mapping):
            raise OptionError("rewards: with levels, give one number for each level and no labels")
        return Levels(_numbers("levels", levels), None if rewards is None else _numbers("rewards", rewards))
    if rewards is None:
        raise OptionError(
            "rewards: missing; give a reward for each label (skip=0,click=1) or cut points as levels (0.5,3,10)"
        )
    if not isinstance(rewards, Mapping):
        raise OptionError("rewards: give a reward for each label (skip=0,click=1), or add levels")
    return Labels(dict(zip(map(str, rewards), _numbers("rewards", rewards.values()), strict=True)))


def _numbers(option: str, values: Iterable[float]) -> tuple[float, ...]:
    """Return the values as floats; raise OptionError, with the option's name, if one is not a number."""
    values = tuple(values)
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError):
        raise OptionError(f"{option}: must be numbers, got {list(values)}") from None
