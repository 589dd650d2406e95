"""Items (Catalog), and what users can do with them (Behaviours)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError, OptionError, nearest
from mbcal.types.features import FIRST_ITEM_ROW, UNKNOWN_ROW, AnyFeature, extended_features
from mbcal.types.item_life import ItemLife, extended_life
from mbcal.types.names import Name, to_name

if TYPE_CHECKING:
    import torch

LEFT = "+left"
"""Suffix of the terminal variant of a behaviour."""


@dataclass(frozen=True, repr=False)
class Behaviours:
    """What a user can do with an item (the paper's B), and the reward of each (the paper's R).

    A behaviour may be terminal: with it the user leaves, and the session has no further step. Where leaving is known by the
    length of sessions alone, every behaviour has a terminal variant (`with_leaving`).

    Raises:
        OptionError: If there are fewer than 2 or more than 255 behaviours, names repeat, rewards are not finite, the
            numbers of names, rewards and cuts disagree, or a terminal behaviour is not one of the names or is the only one.
    """

    names: tuple[str, ...]
    """All behaviours; their positions are the numbers that sessions hold."""
    rewards: tuple[float, ...]
    """Reward of each behaviour."""
    cuts: tuple[float, ...] = ()
    """Ascending cut points where behaviours are levels of a number, such as dwell time. A value belongs to level k if
    exactly k cuts are at or below it."""
    terminal: tuple[str, ...] = ()
    """Names of the terminal behaviours."""

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise OptionError(f"behaviours: at least two are needed, got {len(self.names)}: {list(self.names)}")
        if len(self.names) > 255:
            raise OptionError(f"behaviours: at most 255 are supported, got {len(self.names)}; merge rare ones")
        if len(set(self.names)) != len(self.names):
            raise OptionError(f"behaviours: names must differ, got {list(self.names)}")
        if len(self.rewards) != len(self.names):
            raise OptionError(f"behaviours: {len(self.names)} names but {len(self.rewards)} rewards; give one each")
        if not all(np.isfinite(self.rewards)):
            raise OptionError(f"behaviours: rewards must be finite numbers, got {list(self.rewards)}")
        if self.cuts:
            if len(self.cuts) + 1 not in (len(self.names), len(self.names) - len(self.terminal)):
                raise OptionError(f"behaviours: {len(self.cuts)} cuts make {len(self.cuts) + 1} levels, not {len(self)}")
            if not (all(np.isfinite(self.cuts)) and all(a < b for a, b in pairwise(self.cuts))):
                raise OptionError(f"levels: cut points must be finite and rising, got {list(self.cuts)}")
        for name in self.terminal:
            if name not in self.names:
                hint = nearest(name, self.names)
                raise OptionError(f"ends: {name!r} is no behaviour; there are {', '.join(self.names)}.{hint}")
        if len(set(self.terminal)) == len(self.names):
            raise OptionError("ends: with every behaviour the user would leave; name those that end a session")

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        """Create behaviours from what `as_dict` returned."""
        fields = (entry["names"], entry["rewards"], entry["cuts"], entry.get("terminal", ()))
        return cls(*(tuple(values) for values in fields))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, `terminal` only if there is one."""
        entry = {"names": list(self.names), "rewards": list(self.rewards), "cuts": list(self.cuts)}
        return {**entry, "terminal": list(self.terminal)} if self.terminal else entry

    def with_leaving(self) -> Self:
        """Return the behaviours with a terminal variant of each: `click` and `click+left`, with the same reward."""
        variants = tuple(f"{name}{LEFT}" for name in self.names)
        return type(self)(self.names + variants, self.rewards * 2, self.cuts, variants)

    @classmethod
    def from_cuts(cls, cuts: Sequence[float], rewards: Sequence[float] | None = None) -> Self:
        """Create behaviours that are levels of a number, named `<0.5`, `0.5..3`, `>=3`.

        Args:
            cuts: Ascending cut points, at least one.
            rewards: One per level, that is one more than cuts; by default 1, 2, 3, …
        """
        if not cuts:
            raise OptionError("behaviours: give at least one cut point")
        marks = [f"{cut:.15g}" for cut in cuts]
        inner = [f"{low}..{high}" for low, high in pairwise(marks)]
        names = (f"<{marks[0]}", *inner, f">={marks[-1]}")
        return cls(names, tuple(rewards) if rewards else tuple(float(k + 1) for k in range(len(names))), tuple(cuts))

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        pairs = [f"{name}={reward:g}" for name, reward in zip(self.names, self.rewards, strict=True)]
        ends = f"; ends {', '.join(self.terminal)}" if self.terminal else ""
        return f"<Behaviours: {', '.join(pairs if len(pairs) <= 12 else [*pairs[:11], '…'])}{ends}>"

    @property
    def n_observed(self) -> int:
        """How many behaviours a log names: all, or without the variants that `with_leaving` added."""
        return len(self.names) - sum(name.endswith(LEFT) for name in self.terminal)

    @cached_property
    def is_terminal(self) -> NDArray[np.bool_]:
        """(behaviours,) whether each is terminal."""
        return np.isin(self.names, self.terminal)

    def terminal_table(self, device: str | torch.device) -> torch.Tensor:
        """Return (behaviours,) 1.0 where terminal, else 0.0, as a tensor on a device. It is cached, so do not modify it."""
        return _float_table(tuple(self.is_terminal.astype(float).tolist()), str(device))

    @property
    def start(self) -> int:
        """Index of b_s, the behaviour before the first step: one row after the last real behaviour."""
        return len(self.names)

    def reward_table(self, device: str | torch.device) -> torch.Tensor:
        """Return (behaviours,) rewards as a tensor on a device. It is cached, so do not modify it."""
        return _float_table(self.rewards, str(device))

    def index(self, name: str) -> int:
        """Return the number of a behaviour; raises InputError if there is none of that name."""
        try:
            return self.names.index(name)
        except ValueError:
            hint = nearest(name, self.names)
            raise InputError(f"behaviour {name!r} is unknown; known are {', '.join(self.names)}.{hint}") from None

    def level(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the level of each value, as uint8; raises OptionError if behaviours are labels."""
        if not self.cuts:
            raise OptionError("behaviours: these are labels, not levels of a number")
        return np.searchsorted(np.asarray(self.cuts), values, side="right").astype(np.uint8)


@functools.lru_cache(maxsize=64)
def _float_table(values: tuple[float, ...], device: str) -> torch.Tensor:
    import torch

    return torch.tensor(values, device=device)


@dataclass(frozen=True, repr=False)
class Catalog:
    """All items. Row 0 is the masking item, row 1 the out-of-vocabulary item, row k + 2 the k-th real item.

    Raises:
        InputError: If names repeat, or titles or features are not of this many items.
    """

    items: tuple[str, ...]
    """Names of the items, as in the log."""
    features: Mapping[str, AnyFeature] = field(default_factory=dict)
    """Features by name."""
    titles: tuple[str | None, ...] = ()
    """Readable titles of the items; empty if there are none."""
    life: ItemLife | None = field(default=None, compare=False)
    """When items can be shown, in stores split by time or prepared with --alive; None if at any time."""

    def __post_init__(self) -> None:
        for name, feature in self.features.items():
            if feature.n_rows != self.n_rows:
                raise InputError(f"feature {name!r} describes {feature.n_rows} rows, the catalogue has {self.n_rows}")
        if self.titles and len(self.titles) != len(self.items):
            raise InputError(f"catalogue: {len(self.items)} items but {len(self.titles)} titles; give one each or none")
        if len(self._row_of) != len(self.items):
            raise InputError("catalogue: item names must differ")

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        features = f", features {', '.join(self.features)}" if self.features else ""
        return f"<Catalog: {len(self):,} items{features}>"

    @property
    def n_rows(self) -> int:
        """Rows that an item embedding table needs: the items and the special rows."""
        return len(self.items) + FIRST_ITEM_ROW

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.items, FIRST_ITEM_ROW)}

    def rows_of(self, names: Iterable[Name]) -> NDArray[np.int32]:
        """Look up items by name.

        Returns:
            (N,) catalogue rows; `UNKNOWN_ROW` for names that are not in the catalogue.

        Raises:
            InputError: If a name is neither text nor a whole number.
        """
        row_of = self._row_of
        # most names are text in the catalogue; only the others are converted
        rows = [row_of[name] if name in row_of else row_of.get(to_name(name), UNKNOWN_ROW) for name in names]  # type: ignore[index]
        return np.asarray(rows, np.int32)

    def extended(self, other: Catalog) -> Catalog:
        """Return a catalogue that has also the items of another: rows are appended, never moved.

        Args:
            other: Items to add; new ones are appended in their order. Features and titles it gives to known items replace
                theirs; what it does not give stays.

        Returns:
            The grown catalogue; this one if nothing is new.

        Raises:
            InputError: If a feature is of two kinds, or its vectors of two lengths.
        """
        new = [name for name in other.items if name not in self._row_of]
        if other is self or (not new and not other.features and not other.titles):
            return self
        items = (*self.items, *new)
        sources = np.asarray([-1, -1, *(other._row_of.get(name, -1) for name in items)], np.int64)
        titles: tuple[str | None, ...] = ()
        if self.titles or other.titles:
            own = (*(self.titles or (None,) * len(self)), *(None,) * len(new))
            given = (
                other.titles[row - FIRST_ITEM_ROW] if other.titles and row >= 0 else None for row in sources[2:].tolist()
            )
            titles = tuple(newer or older for newer, older in zip(given, own, strict=True))
        features = extended_features(self.features, other.features, sources)
        return Catalog(items, features, titles, extended_life(self.life, other.life, sources))

    def extends(self, other: Catalog) -> bool:
        """Whether the rows of `other` mean the same items here: this catalogue is that one, or has grown from it."""
        return self is other or self.items[: len(other.items)] == other.items

    def name_of(self, row: int) -> str:
        """Return the name of a row; `<mask>` and `<unknown>` for the special rows."""
        return ("<mask>", "<unknown>")[row] if row < FIRST_ITEM_ROW else self.items[row - FIRST_ITEM_ROW]

    def title_of(self, row: int) -> str:
        """Return the title of a row, or its name if it has none."""
        return (self.titles[row - FIRST_ITEM_ROW] if self.titles and row >= FIRST_ITEM_ROW else None) or self.name_of(row)
