"""Items with their features (Catalog, Feature), and what users can do with them (Behaviours)."""

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
from mbcal.types.item_life import ItemLife
from mbcal.types.names import Name, to_name

if TYPE_CHECKING:
    import torch

MASK_ROW = 0
"""Row of the masking item a_M (and, in every feature, of its masking value). Padding holds it too."""
UNKNOWN_ROW = 1
"""Row of the out-of-vocabulary item (and, in every feature, of an unknown or missing value)."""
FIRST_ITEM_ROW = 2
"""Row of the first real item. Special rows come before it, so that a growing catalogue never moves them."""


@dataclass(frozen=True, repr=False)
class Behaviours:
    """What a user can do with an item (the paper's B), and the reward of each (the paper's R).

    Raises:
        OptionError: If there are fewer than 2 or more than 255 behaviours, names repeat, rewards are not finite, or the
            numbers of names, rewards and cuts disagree.
    """

    names: tuple[str, ...]
    """All behaviours; their positions are the numbers that sessions hold."""
    rewards: tuple[float, ...]
    """Reward of each behaviour."""
    cuts: tuple[float, ...] = ()
    """Ascending cut points where behaviours are levels of a number, such as dwell time. A value belongs to level k if
    exactly k cuts are at or below it."""

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
            if len(self.cuts) != len(self.names) - 1:
                raise OptionError(f"behaviours: {len(self.cuts)} cuts make {len(self.cuts) + 1} levels, not {len(self)}")
            if not (all(np.isfinite(self.cuts)) and all(a < b for a, b in pairwise(self.cuts))):
                raise OptionError(f"behaviours: cuts must be finite and rising, got {list(self.cuts)}")

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
        return f"<Behaviours: {', '.join(pairs if len(pairs) <= 12 else [*pairs[:11], '…'])}>"

    @property
    def start(self) -> int:
        """Index of b_s, the behaviour before the first step: one row after the last real behaviour."""
        return len(self.names)

    def reward_table(self, device: str | torch.device) -> torch.Tensor:
        """Return (behaviours,) rewards as a tensor on a device. It is cached, so do not modify it."""
        return _reward_table(self.rewards, str(device))

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
def _reward_table(rewards: tuple[float, ...], device: str) -> torch.Tensor:
    import torch

    return torch.tensor(rewards, device=device)


@dataclass(frozen=True, repr=False)
class Feature:
    """One property of every item, as codes into a vocabulary: 0 is masked, 1 unknown, 2 the first value.

    Single-valued: `codes[row]`. Multi-valued: `codes[offsets[row] : offsets[row + 1]]`, possibly empty::

        row       0 (mask)  1 (unknown)  2 "Heat"  3 "Alien"
        codes    [0,        1,           4, 7,     2, 4, 9]
        offsets  [0,        1,           2,        4,        7]

    Raises:
        InputError: If codes are outside the vocabulary, or the offsets do not end where the codes do.
    """

    name: str
    vocabulary: tuple[str, ...]
    """Distinct values; the code of the k-th is k + 2."""
    codes: NDArray[np.int32]
    """(rows,), or (values of all rows,) where multi-valued."""
    offsets: NDArray[np.int64] | None = None
    """(rows + 1,) where each row's codes begin; None if single-valued."""

    @classmethod
    def single(cls, name: str, values: Iterable[str | None]) -> Self:
        """Create a feature from one value per item; None is unknown."""
        listed = list(values)
        vocabulary, code_of = _vocabulary(value for value in listed if value is not None)
        codes = [MASK_ROW, UNKNOWN_ROW, *(UNKNOWN_ROW if value is None else code_of[value] for value in listed)]
        return cls(name, vocabulary, np.asarray(codes, np.int32))

    @classmethod
    def multi(cls, name: str, values: Iterable[Sequence[str]]) -> Self:
        """Create a feature from any number of values per item."""
        listed = list(values)
        vocabulary, code_of = _vocabulary(value for row in listed for value in row)
        codes = [MASK_ROW, UNKNOWN_ROW, *(code_of[value] for row in listed for value in row)]
        sizes = [0, 1, 1, *(len(row) for row in listed)]
        return cls(name, vocabulary, np.asarray(codes, np.int32), np.cumsum(sizes, dtype=np.int64))

    def __post_init__(self) -> None:
        if self.codes.size and not 0 <= int(self.codes.min()) <= int(self.codes.max()) < self.cardinality:
            raise InputError(f"feature {self.name!r}: codes must lie in 0..{self.cardinality - 1}")
        if self.offsets is not None and int(self.offsets[-1]) != len(self.codes):
            raise InputError(f"feature {self.name!r}: offsets end at {int(self.offsets[-1])}, not at {len(self.codes)}")

    def __repr__(self) -> str:
        kind = "single-valued" if self.offsets is None else "multi-valued"
        return f"<Feature {self.name!r}: {kind}, {len(self.vocabulary):,} values>"

    @property
    def cardinality(self) -> int:
        """Rows that an embedding table of this feature needs."""
        return len(self.vocabulary) + FIRST_ITEM_ROW

    @property
    def n_rows(self) -> int:
        """Catalogue rows it describes, including the special ones."""
        return len(self.codes) if self.offsets is None else len(self.offsets) - 1

    def values(self, row: int) -> tuple[str, ...]:
        """Return the known values of a catalogue row."""
        codes = self.codes[row : row + 1] if self.offsets is None else self.codes[slice(*self.offsets[row : row + 2])]
        return tuple(self.vocabulary[code - FIRST_ITEM_ROW] for code in codes if code >= FIRST_ITEM_ROW)


def _vocabulary(values: Iterable[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the distinct values, shortest first (so that whole numbers are in order), and the code of each."""
    vocabulary = tuple(sorted(set(values), key=lambda value: (len(value), value)))
    return vocabulary, {value: code for code, value in enumerate(vocabulary, FIRST_ITEM_ROW)}


@dataclass(frozen=True, repr=False)
class Catalog:
    """All items. Row 0 is the masking item, row 1 the out-of-vocabulary item, row k + 2 the k-th real item.

    Raises:
        InputError: If names repeat, or titles or features are not of this many items.
    """

    items: tuple[str, ...]
    """Names of the items, as in the log."""
    features: Mapping[str, Feature] = field(default_factory=dict)
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

    def name_of(self, row: int) -> str:
        """Return the name of a row; `<mask>` and `<unknown>` for the special rows."""
        return ("<mask>", "<unknown>")[row] if row < FIRST_ITEM_ROW else self.items[row - FIRST_ITEM_ROW]

    def title_of(self, row: int) -> str:
        """Return the title of a row, or its name if it has none."""
        return (self.titles[row - FIRST_ITEM_ROW] if self.titles and row >= FIRST_ITEM_ROW else None) or self.name_of(row)
