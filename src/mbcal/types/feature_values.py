"""Features of single items as requests and the decision log hold them: plain values by name, checked against declarations.

::

    {"category": "sport", "tags": ["cup", "final"], "words": 310, "embedding": [0.1, -0.3]}
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mbcal.errors import InputError, nearest, shortened
from mbcal.types.catalog import Catalog
from mbcal.types.features import AnyFeature, Feature, NumberFeature, VectorFeature
from mbcal.types.kinds import FeatureKind
from mbcal.types.names import to_name

ItemValues = dict[str, list[str] | float | list[float]]
"""Feature -> the texts of a category, a number, or a vector. Missing ones are left out."""

LARGEST_NUMBER = 3e38
"""Numbers beyond it do not fit into float32."""
MOST_VALUES = 1000
"""Values of one category of one item, at most."""


@dataclass(frozen=True)
class FeatureDeclaration:
    """What a feature's values must be."""

    name: str
    kind: FeatureKind
    length: int = 0
    """Numbers in a vector; 0 for other kinds."""
    multi: bool = False
    """Whether a category may have several values."""

    @classmethod
    def of(cls, feature: AnyFeature) -> FeatureDeclaration:
        """Return the declaration of a catalogue's feature."""
        length = feature.length if isinstance(feature, VectorFeature) else 0
        return cls(feature.name, feature.kind, length, isinstance(feature, Feature) and feature.offsets is not None)

    def read(self, value: Any) -> list[str] | float | list[float] | None:
        """Return a value in the form of `ItemValues`; None if it is missing.

        Raises:
            InputError: If the value is not of this kind and length, or not finite.
        """
        if value is None:
            return None
        if self.kind == "number":
            return _finite(value, f"feature {self.name!r}")
        if self.kind == "vector":
            if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != self.length:
                size = f"{len(value)} numbers" if isinstance(value, list | tuple) else repr(value)
                raise InputError(f"feature {self.name!r}: must be a vector of {self.length} numbers, got {size}")
            if set(map(type, value)) <= {float, int}:  # the usual case, and fast
                with contextlib.suppress(OverflowError):  # of whole numbers
                    numbers = np.asarray(value, np.float64)
                    if (np.abs(numbers) <= LARGEST_NUMBER).all():
                        checked: list[float] = numbers.tolist()
                        return checked
            return [_finite(number, f"feature {self.name!r}") for number in value]
        values = value if isinstance(value, list | tuple) else [value]
        if len(values) > (MOST_VALUES if self.multi else 1):
            most = f"at most {MOST_VALUES} values" if self.multi else "one value"
            raise InputError(f"feature {self.name!r}: takes {most}, got {len(values)}")
        texts = [str(text).lower() if isinstance(text, bool) else to_name(text, f"feature {self.name!r}") for text in values]
        return texts or None


def declarations(features: Mapping[str, AnyFeature]) -> dict[str, FeatureDeclaration]:
    """Return the declarations of a catalogue's features."""
    return {name: FeatureDeclaration.of(feature) for name, feature in features.items()}


def read_values(values: Mapping[str, Any], declared: Mapping[str, FeatureDeclaration]) -> ItemValues:
    """Check the features of one item.

    Args:
        values: Feature -> value, as JSON holds it; null is missing.
        declared: The features there are.

    Returns:
        The values in the order of the declarations, whatever that of `values`.

    Raises:
        InputError: If a feature is not declared, or a value is not of its kind.
    """
    for name in values:
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise InputError(f"feature {shortened(name)!r} is unknown; known are {known}.{nearest(name, declared)}")
    read = {name: declaration.read(values.get(name)) for name, declaration in declared.items()}
    return {name: value for name, value in read.items() if value is not None}


def catalog_of_values(items: Mapping[str, Mapping[str, Any]], declared: Mapping[str, FeatureDeclaration]) -> Catalog:
    """Return a catalogue of items with features given as values, to extend another by.

    Args:
        items: Item -> feature -> value. Values that do not fit their declaration, which may have changed, are missing.
        declared: The features of the catalogue that is to be extended.
    """
    rows = [{name: _readable(value, declared.get(name)) for name, value in values.items()} for values in items.values()]
    features: dict[str, AnyFeature] = {}
    for name, declaration in declared.items():
        values: list[Any] = [row.get(name) for row in rows]
        if all(value is None for value in values):
            continue
        if declaration.kind == "number":
            features[name] = NumberFeature.create(name, values)
        elif declaration.kind == "vector":
            features[name] = VectorFeature.create(name, values)
        elif declaration.multi:
            features[name] = Feature.multi(name, [value or () for value in values])
        else:
            features[name] = Feature.single(name, [value and value[0] for value in values])
    return Catalog(tuple(items), features)


def _readable(value: Any, declaration: FeatureDeclaration | None) -> Any:
    try:
        return None if declaration is None else declaration.read(value)
    except InputError:
        return None


def _finite(value: Any, subject: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST_NUMBER:  # false for NaN
        raise InputError(f"{subject}: must be a finite number, got {str(value)[:40]!r}")
    return float(value)
