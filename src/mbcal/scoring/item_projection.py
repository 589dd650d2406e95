"""Items that a model has never met, scored by their features: what a row of `CellTables.items` would be, without torch.

::

    row = base + sum over numbers and vectors of [z, missing] W  +  sum over categories of mean(embedding of the values) W

`base` is what the id of the unknown item and all biases add. A version with item features keeps one projection per term of
its score in its scorer file; the service writes the rows into spare rows at the end of the term's table, for one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import ModelError
from mbcal.types import UNKNOWN_ROW
from mbcal.types.feature_values import ItemValues

Floats = NDArray[np.float32]

MAX_DEVIATIONS = 10.0
"""Standardised numbers are clipped to this many standard deviations, so that one strange value cannot dominate."""
_MOST, _LEAST = np.array(MAX_DEVIATIONS, np.float32), np.array(-MAX_DEVIATIONS, np.float32)  # faster than floats
MAX_TABLE = 1 << 22
"""Numbers up to which the projections of all values of a category are computed in advance: 16 MiB."""
SPARE_ROWS = 1000
"""Rows for unknown items with features at the end of each table: the most in one request."""


@dataclass(frozen=True)
class DenseProjection:
    """A number or a vector."""

    mean: Floats
    """(D,)."""
    deviation: Floats
    """(D,)."""
    weight: Floats
    """(D + 1, 3H); the last row is added if the value is missing."""


@dataclass(frozen=True)
class CategoryProjection:
    """A category; the row of the unknown value is what the model takes for one it has not met."""

    embedding: Floats
    """(values + 2, E)."""
    weight: Floats
    """(E, 3H)."""
    is_multi: Floats
    """() 1 if items may have several values: an item without any then adds nothing, else the unknown value."""


@dataclass(frozen=True)
class ItemProjection:
    """The projection of one term, or of one network."""

    base: Floats
    """(3H,)."""
    features: Mapping[str, DenseProjection | CategoryProjection]
    """In the order in which the network reads them."""

    @property
    def categories(self) -> dict[str, CategoryProjection]:
        """The categories among the features."""
        return {name: feature for name, feature in self.features.items() if isinstance(feature, CategoryProjection)}

    @property
    def dense(self) -> dict[str, DenseProjection]:
        """The numbers and vectors among the features."""
        return {name: feature for name, feature in self.features.items() if isinstance(feature, DenseProjection)}


class JointProjection:
    """The projections of all terms, side by side: one matrix product for all of them, since this is done for every request.

    Args:
        projections: By term. All standardise numbers and vectors alike, as the networks of one agent do.
        vocabularies: Category -> its values in the order of their codes.
    """

    def __init__(self, projections: Mapping[str, ItemProjection], vocabularies: Mapping[str, Sequence[str]]) -> None:
        terms = list(projections.values())
        self._dense, first = terms[0].dense, UNKNOWN_ROW + 1
        self._base = np.concatenate([term.base for term in terms])
        nothing = np.zeros((0, len(self._base)), np.float32)
        weights = [np.concatenate([term.dense[name].weight for term in terms], 1) for name in self._dense]
        self._weight = np.concatenate([nothing, *(weight[:-1] for weight in weights)])
        self._missing = {name: weight[-1] for name, weight in zip(self._dense, weights, strict=True)}
        ends = np.cumsum([len(feature.mean) for feature in self._dense.values()]).tolist()
        self._columns = {
            name: slice(end - len(feature.mean), end) for (name, feature), end in zip(self._dense.items(), ends, strict=True)
        }
        self._vectors = [name for name, feature in self._dense.items() if len(feature.mean) > 1]
        empty = np.zeros(0, np.float32)
        self._mean = np.concatenate([empty, *(feature.mean for feature in self._dense.values())])
        self._deviation = np.concatenate([empty, *(feature.deviation for feature in self._dense.values())])
        self._categories = {name: [term.categories[name] for term in terms] for name in terms[0].categories}
        self._multi = {name for name, features in self._categories.items() if features[0].is_multi}
        self._tables = {
            name: np.concatenate([feature.embedding @ feature.weight for feature in features], 1)
            for name, features in self._categories.items()
            if len(features[0].embedding) * len(self._base) <= MAX_TABLE
        }
        self._codes = {name: {text: first + k for k, text in enumerate(vocabularies[name])} for name in self._categories}

    def rows(self, items: Sequence[ItemValues]) -> Floats:
        """Return the table rows of N items, those of all terms side by side, (N, sum of 3H)."""
        rows = np.zeros((len(items), len(self._base)), np.float32)
        complete = []
        for item, row in zip(items, rows, strict=True):
            if all(name in item for name in self._vectors):
                complete.append((item, row))
            else:
                self._add_present(row, item)
        self._add_dense(complete)
        for item, row in zip(items, rows, strict=True):
            row += self._base
            for name in self._categories:
                self._add_category(row, name, item.get(name))
            for name, weight in self._missing.items():
                if name not in item:
                    row += weight
        return rows

    def _add_dense(self, items: Sequence[tuple[ItemValues, Floats]]) -> None:
        """Add what numbers and vectors add to the rows of items that have all vectors."""
        numbers: list[float] = []
        for item, _ in items:
            for name, feature in self._dense.items():
                value: Any = item.get(name)
                if type(value) is list:
                    numbers += value
                else:
                    numbers.append(feature.mean[0] if value is None else value)
        scaled = self._scaled(np.array(numbers, np.float32).reshape(len(items), len(self._mean)), slice(None))
        for (_, row), item_scaled in zip(items, scaled, strict=True):
            np.dot(item_scaled, self._weight, out=row)  # one by one: other items never change the last bit

    def _add_present(self, row: Floats, item: ItemValues) -> None:
        """Add what numbers and vectors add to the row of an item; those that are missing cost nothing."""
        for name, columns in self._columns.items():
            if name in item:
                row += np.dot(self._scaled(np.array(item[name], np.float32).reshape(-1), columns), self._weight[columns])

    def _scaled(self, scaled: Floats, columns: slice) -> Floats:
        """Standardise numbers and vectors (…, columns) in place; the mean, where they are missing, becomes 0."""
        scaled -= self._mean[columns]
        scaled /= self._deviation[columns]
        np.minimum(scaled, _MOST, out=scaled)
        return np.maximum(scaled, _LEAST, out=scaled)

    def _add_category(self, row: Floats, name: str, values: Any) -> None:
        """Add what the values of a category add to a row, (sum of 3H,): the mean over them."""
        code_of = self._codes[name]
        if values is None:
            if name not in self._multi:
                row += self._projected(name, UNKNOWN_ROW)
        elif len(values) == 1:
            row += self._projected(name, code_of.get(values[0], UNKNOWN_ROW))
        else:
            row += sum(self._projected(name, code_of.get(value, UNKNOWN_ROW)) for value in values) / np.float32(len(values))

    def _projected(self, name: str, code: int) -> Any:
        """What one value of a category adds to a row, (sum of 3H,)."""
        table = self._tables.get(name)
        if table is not None:
            return table[code]
        return np.concatenate([term.embedding[code] @ term.weight for term in self._categories[name]])


# ---- as arrays


def projections_to_arrays(projections: Mapping[str, ItemProjection]) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Return the description of projections by term, for JSON, and their arrays by name."""
    description: dict[str, Any] = {}
    arrays: dict[str, Floats] = {}
    for term, projection in projections.items():
        arrays[f"{term}/base"] = projection.base
        description[term] = []
        for number, (name, feature) in enumerate(projection.features.items()):
            kind = "category" if isinstance(feature, CategoryProjection) else "dense"
            description[term].append({"name": name, "kind": kind})
            arrays |= {f"{term}/{number}/{part}": array for part, array in vars(feature).items()}
    return description, arrays


def projections_from_arrays(
    description: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], widths: Mapping[str, int]
) -> dict[str, ItemProjection]:
    """Return what `projections_to_arrays` described.

    Args:
        description: The description.
        arrays: The arrays by name.
        widths: Term -> width of a row of its table.

    Raises:
        ModelError: If an array is missing, of the wrong shape, or not finite.
    """

    def take(name: str, *shape: int | None) -> NDArray[Any]:
        array = arrays.get(name)
        if array is None or array.ndim != len(shape) or array.dtype != np.float32:
            raise ModelError(f"scorer: {name!r} of unknown items is missing or of another shape than {shape}")
        if any(wanted not in (None, size) for size, wanted in zip(array.shape, shape, strict=True)):
            raise ModelError(f"scorer: {name!r} of unknown items has shape {array.shape}, it must be {shape}")
        if not np.isfinite(array).all():
            raise ModelError(f"scorer: {name!r} of unknown items holds NaN or infinity")
        return array

    projections = {}
    for term, features in description.items():
        width, built = widths[term], dict[str, DenseProjection | CategoryProjection]()
        for number, feature in enumerate(features):
            path = f"{term}/{number}"
            if feature["kind"] == "category":
                embedding = take(f"{path}/embedding", None, None)
                weight = take(f"{path}/weight", embedding.shape[1], width)
                built[feature["name"]] = CategoryProjection(embedding, weight, take(f"{path}/is_multi"))
            else:
                mean = take(f"{path}/mean", None)
                deviation, weight = take(f"{path}/deviation", len(mean)), take(f"{path}/weight", len(mean) + 1, width)
                built[feature["name"]] = DenseProjection(mean, deviation, weight)
        projections[term] = ItemProjection(take(f"{term}/base", width), built)
    return projections
