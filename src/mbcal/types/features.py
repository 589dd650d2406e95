"""Features of items: categories (Feature), numbers (NumberFeature) and vectors (VectorFeature).

All three describe every row of a catalogue, the special rows included, and grow with it (`extended`): rows, and codes of
categories, are appended and never moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import InputError
from mbcal.types.kinds import FeatureKind

MASK_ROW = 0
"""Row of the masking item a_M (and, in every category, of its masking value). Padding holds it too."""
UNKNOWN_ROW = 1
"""Row of the out-of-vocabulary item (and, in every category, of an unknown or missing value)."""
FIRST_ITEM_ROW = 2
"""Row of the first real item. Special rows come before it, so that a growing catalogue never moves them."""


@dataclass(frozen=True, repr=False)
class Feature:
    """A category of every item, as codes into a vocabulary: 0 is masked, 1 unknown, 2 the first value.

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

    kind: ClassVar[FeatureKind] = "category"

    @classmethod
    def single(cls, name: str, values: Iterable[str | None], vocabulary: Sequence[str] | None = None) -> Self:
        """Create a feature from one value per item; None is unknown.

        Args:
            name: Its name.
            values: One per item.
            vocabulary: All values in the order of their codes; by default those that occur, shortest first.
        """
        listed = list(values)
        known, code_of = _vocabulary((value for value in listed if value is not None), vocabulary)
        codes = [MASK_ROW, UNKNOWN_ROW, *(UNKNOWN_ROW if value is None else code_of[value] for value in listed)]
        return cls(name, known, np.asarray(codes, np.int32))

    @classmethod
    def multi(cls, name: str, values: Iterable[Sequence[str]], vocabulary: Sequence[str] | None = None) -> Self:
        """Create a feature from any number of values per item; see `single`."""
        listed = list(values)
        known, code_of = _vocabulary((value for row in listed for value in row), vocabulary)
        codes = [MASK_ROW, UNKNOWN_ROW, *(code_of[value] for row in listed for value in row)]
        sizes = [0, 1, 1, *(len(row) for row in listed)]
        return cls(name, known, np.asarray(codes, np.int32), np.cumsum(sizes, dtype=np.int64))

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

    @property
    def has_default_vocabulary(self) -> bool:
        """Whether the vocabulary is that of the items' values in the default order, so that it need not be stored."""
        used = (self.vocabulary[code - FIRST_ITEM_ROW] for code in np.unique(self.codes) if code >= FIRST_ITEM_ROW)
        return _vocabulary(used, None)[0] == self.vocabulary

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(rows,) bool: true where a row has no known value."""
        if self.offsets is None:
            return self.codes < FIRST_ITEM_ROW
        known = np.concatenate([[0], np.cumsum(self.codes >= FIRST_ITEM_ROW)])
        return np.asarray(np.diff(known[self.offsets]) == 0)

    def values(self, row: int) -> tuple[str, ...]:
        """Return the known values of a catalogue row."""
        codes = self.codes[row : row + 1] if self.offsets is None else self.codes[slice(*self.offsets[row : row + 2])]
        return tuple(self.vocabulary[code - FIRST_ITEM_ROW] for code in codes if code >= FIRST_ITEM_ROW)

    def summary(self) -> dict[str, Any]:
        """Return what `describe` says of it, as JSON can hold it."""
        return {"kind": self.kind, "values": len(self.vocabulary), "multi": self.offsets is not None, **_without(self)}

    def extended(self, other: AnyFeature | None, sources: NDArray[np.int64]) -> Self:
        """Return the feature of a grown catalogue; new values are appended to the vocabulary.

        Args:
            other: The same feature of other items; None if they do not have it.
            sources: (new rows,) the row of `other` that describes each row of the result, -1 if none does. Rows of which
                `other` has no value keep their own.

        Raises:
            InputError: If the other feature is of another kind.
        """
        if other is not None and not isinstance(other, Feature):
            raise _kind_error(self, other)
        rows: list[tuple[str, ...]] = []
        for row, source in enumerate(sources.tolist()):
            values = () if other is None or source < 0 else other.values(source)
            rows.append(values or (self.values(row) if row < self.n_rows else ()))
        known = set(self.vocabulary)
        added, _ = _vocabulary((value for row in rows for value in row if value not in known), None)
        vocabulary, items = (*self.vocabulary, *added), rows[FIRST_ITEM_ROW:]
        if self.offsets is None:
            return type(self).single(self.name, [min(row, default=None) for row in items], vocabulary)
        return type(self).multi(self.name, items, vocabulary)


@dataclass(frozen=True, repr=False)
class NumberFeature:
    """A number of every item; NaN where it is missing, as in the special rows.

    Raises:
        InputError: If a number is infinite, or this is not one number per row.
    """

    name: str
    numbers: NDArray[np.float32]
    """(rows,)."""

    kind: ClassVar[FeatureKind] = "number"

    @classmethod
    def create(cls, name: str, numbers: Iterable[float | None]) -> Self:
        """Create a feature from one number per item; None and NaN are missing."""
        listed = [np.nan if number is None else number for number in numbers]
        return cls(name, np.concatenate([np.full(FIRST_ITEM_ROW, np.nan), np.asarray(listed, float)]).astype(np.float32))

    def __post_init__(self) -> None:
        if self.numbers.ndim != 1 or self.numbers.dtype != np.float32:
            raise InputError(f"feature {self.name!r}: must be one float32 number per row, got shape {self.numbers.shape}")
        if np.isinf(self.numbers).any():
            raise InputError(f"feature {self.name!r}: holds infinity; leave such numbers out, missing is allowed")

    def __repr__(self) -> str:
        return f"<NumberFeature {self.name!r}: {int((~self.missing).sum()):,} numbers>"

    @property
    def n_rows(self) -> int:
        """Catalogue rows it describes, including the special ones."""
        return len(self.numbers)

    @property
    def dense(self) -> NDArray[np.float32]:
        """(rows, 1) the numbers as vectors of length 1."""
        return self.numbers[:, None]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(rows,) bool: true where a row has no number."""
        return np.isnan(self.numbers)

    def values(self, row: int) -> tuple[str, ...]:
        """Return the number of a catalogue row as text; empty if it is missing."""
        return () if np.isnan(self.numbers[row]) else (f"{self.numbers[row]:g}",)

    def summary(self) -> dict[str, Any]:
        """Return what `describe` says of it, as JSON can hold it."""
        known = self.numbers[~self.missing].astype(float)
        range_ = (
            {"lowest": float(known.min()), "mean": float(known.mean()), "highest": float(known.max())} if len(known) else {}
        )
        return {"kind": self.kind, **range_, **_without(self)}

    def extended(self, other: AnyFeature | None, sources: NDArray[np.int64]) -> Self:
        """Return the feature of a grown catalogue; see `Feature.extended`."""
        if other is not None and not isinstance(other, NumberFeature):
            raise _kind_error(self, other)
        return replace(self, numbers=_extended(self.dense, None if other is None else other.dense, sources)[:, 0])


@dataclass(frozen=True, repr=False)
class VectorFeature:
    """A vector of every item, such as a text embedding; a row of NaN where it is missing, as in the special rows.

    Raises:
        InputError: If a vector is partly NaN or infinite, or vectors are empty.
    """

    name: str
    vectors: NDArray[np.float32]
    """(rows, D)."""

    kind: ClassVar[FeatureKind] = "vector"

    @classmethod
    def create(cls, name: str, vectors: Iterable[Sequence[float] | None]) -> Self:
        """Create a feature from one vector per item; None is missing.

        Raises:
            InputError: If their lengths differ, all are missing, or one holds NaN or infinity.
        """
        listed = list(vectors)
        lengths = {len(vector) for vector in listed if vector is not None}
        if len(lengths) != 1:
            found = " and ".join(map(str, sorted(lengths))) or "none"
            raise InputError(f"feature {name!r}: vectors must all be of one length, got {found}")
        absent = [np.nan] * next(iter(lengths))
        rows = [absent, absent, *(absent if vector is None else vector for vector in listed)]
        return cls(name, np.asarray(rows, np.float32))

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or self.vectors.shape[1] < 1 or self.vectors.dtype != np.float32:
            raise InputError(f"feature {self.name!r}: must be float32 vectors (rows, D), got shape {self.vectors.shape}")
        if not (np.isfinite(self.vectors).all(1) | np.isnan(self.vectors).all(1)).all():
            raise InputError(f"feature {self.name!r}: a vector holds NaN or infinity; repair it or leave it out as a whole")

    def __repr__(self) -> str:
        return f"<VectorFeature {self.name!r}: {int((~self.missing).sum()):,} vectors of length {self.length}>"

    @property
    def length(self) -> int:
        """D, numbers in a vector."""
        return int(self.vectors.shape[1])

    @property
    def n_rows(self) -> int:
        """Catalogue rows it describes, including the special ones."""
        return len(self.vectors)

    @property
    def dense(self) -> NDArray[np.float32]:
        """(rows, D) the vectors."""
        return self.vectors

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(rows,) bool: true where a row has no vector."""
        return np.isnan(self.vectors[:, 0])

    def values(self, row: int) -> tuple[str, ...]:
        """Return the vector of a catalogue row as texts; empty if it is missing."""
        return () if np.isnan(self.vectors[row, 0]) else tuple(f"{number:g}" for number in self.vectors[row])

    def summary(self) -> dict[str, Any]:
        """Return what `describe` says of it, as JSON can hold it."""
        return {"kind": self.kind, "length": self.length, **_without(self)}

    def extended(self, other: AnyFeature | None, sources: NDArray[np.int64]) -> Self:
        """Return the feature of a grown catalogue; see `Feature.extended`."""
        if other is not None and not isinstance(other, VectorFeature):
            raise _kind_error(self, other)
        if other is not None and other.length != self.length:
            problem = f"feature {self.name!r}: vectors of length {other.length}, those known have {self.length}"
            raise InputError(f"{problem}; give vectors of the same length")
        return replace(self, vectors=_extended(self.vectors, None if other is None else other.vectors, sources))


AnyFeature = Feature | NumberFeature | VectorFeature
"""A feature of any kind."""


def extended_features(
    own: Mapping[str, AnyFeature], others: Mapping[str, AnyFeature], sources: NDArray[np.int64]
) -> dict[str, AnyFeature]:
    """Return the features of a grown catalogue: its own, then those that only the other items have; see `Feature.extended`.

    Raises:
        InputError: If a feature is of two kinds, or its vectors of two lengths.
    """
    grown: dict[str, AnyFeature] = {name: feature.extended(others.get(name), sources) for name, feature in own.items()}
    for name, feature in others.items():
        if name not in own:
            grown[name] = _nothing_like(feature).extended(feature, sources)
    return grown


def _nothing_like(feature: AnyFeature) -> AnyFeature:
    """A feature of the same name and kind, of the special rows alone."""
    if isinstance(feature, Feature):
        return Feature.single(feature.name, ()) if feature.offsets is None else Feature.multi(feature.name, ())
    missing = np.full((FIRST_ITEM_ROW, feature.dense.shape[1]), np.nan, np.float32)
    if isinstance(feature, NumberFeature):
        return NumberFeature(feature.name, missing[:, 0])
    return VectorFeature(feature.name, missing)


def _extended(
    own: NDArray[np.float32], other: NDArray[np.float32] | None, sources: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Rows (new rows, D): those of `other` where it has one that is not missing, else the row's own, else NaN."""
    grown = np.full((len(sources), own.shape[1]), np.nan, np.float32)
    grown[: len(own)] = own
    if other is not None:
        given = (sources >= 0) & ~np.isnan(other[sources, 0])
        grown[given] = other[sources[given]]
    return grown


def _kind_error(own: AnyFeature, other: AnyFeature) -> InputError:
    problem = f"feature {own.name!r} is a {other.kind}, but was a {own.kind}"
    return InputError(f"{problem}; declare it as {own.name}:{own.kind}, or give it another name")


def _without(feature: AnyFeature) -> dict[str, int]:
    return {"items_without": int(feature.missing[FIRST_ITEM_ROW:].sum())}


def default_vocabulary(values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct values in the order of their codes: shortest first, so that whole numbers are in order."""
    return tuple(sorted(set(values), key=lambda value: (len(value), value)))


def _vocabulary(values: Iterable[str], given: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the vocabulary, by default that of the values, and the code of each of its values."""
    vocabulary = default_vocabulary(values) if given is None else tuple(given)
    return vocabulary, {value: code for code, value in enumerate(vocabulary, FIRST_ITEM_ROW)}
