"""A scorer whose tables have spare rows, into which unknown items of one request are written by their features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import ModelError
from mbcal.scoring.item_projection import SPARE_ROWS, JointProjection, projections_from_arrays
from mbcal.scoring.scorers import NetScorer, Scorer
from mbcal.types import FIRST_ITEM_ROW
from mbcal.types.feature_values import ItemValues


@dataclass(slots=True)
class UnknownItem:
    """An item that the model has not met, as a request described it."""

    values: ItemValues | None
    """None once the row is known: many items are remembered, and a row takes less memory."""
    packed: bytes
    """The values as MessagePack, for the decision log."""
    row: NDArray[np.float32] | None = None
    """(sum of 3H,) its row of the tables of all terms, side by side; None until it is needed. Belongs to one version."""


def add_spare_rows(arrays: dict[str, NDArray[Any]], terms: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Append `SPARE_ROWS` rows to the item tables of some terms.

    Args:
        arrays: The arrays of a scorer by name. Those of the tables are replaced by views without the spare rows, so that no
            more than one table is in memory twice.
        terms: Names of the terms.

    Returns:
        The tables with the spare rows, by term. What is no table is left as it is; `scorer_from_arrays` refuses it.
    """
    tables = {}
    for term in terms:
        name = f"{term}/cell/items"
        if name not in arrays or arrays[name].ndim != 2:
            continue
        table = arrays.pop(name)
        tables[term] = np.concatenate([table, np.zeros((SPARE_ROWS, table.shape[1]), table.dtype)])
        arrays[name] = tables[term][: len(table)]
    return tables


@dataclass(frozen=True, eq=False)
class UnknownItems:
    """Unknown items as rows of a scorer's tables. Not safe for two threads at once."""

    scorer: NetScorer
    """The scorer, with `SPARE_ROWS` rows after those of the catalogue in the tables of its terms."""
    projection: JointProjection
    first_row: int
    """The first spare row."""

    @classmethod
    def create(
        cls,
        scorer: Scorer,
        tables: Mapping[str, NDArray[Any]],
        description: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        vocabulary: Callable[[str], Sequence[str]],
    ) -> Self:
        """Prepare a scorer.

        Args:
            scorer: A sum of networks, on numpy arrays.
            tables: The item tables of its terms, with spare rows (`add_spare_rows`).
            description: Of its projections, with `arrays` (`item_projection.projections_to_arrays`).
            arrays: See above.
            vocabulary: Returns the vocabulary of a category.

        Raises:
            ModelError: If the projections do not fit the scorer.
        """
        if not isinstance(scorer, NetScorer) or set(description) != set(scorer.terms):
            raise ModelError("scorer: the projections of unknown items are not those of its terms")
        widths = {name: term.tables.cell.items.shape[1] for name, term in scorer.terms.items()}
        found = projections_from_arrays(description, arrays, widths)
        projections = {name: found[name] for name in scorer.terms}  # JSON does not keep the order of the terms
        terms = {
            name: replace(term, tables=replace(term.tables, cell=replace(term.tables.cell, items=tables[name])))
            for name, term in scorer.terms.items()
        }
        categories = next(iter(projections.values())).categories
        vocabularies = {name: vocabulary(name) for name in categories}
        for name, category in categories.items():
            if len(category.embedding) != len(vocabularies[name]) + FIRST_ITEM_ROW:
                raise ModelError(f"scorer: {name!r} has {len(vocabularies[name])} values, but other embeddings")
        first_row = len(next(iter(tables.values()))) - SPARE_ROWS
        return cls(replace(scorer, terms=terms), JointProjection(projections, vocabularies), first_row)

    def write(self, items: Sequence[UnknownItem]) -> None:
        """Write the rows of N items, from `first_row` on, into the tables of all terms.

        An item keeps its row, since it is asked for again and again until an update has learned it. There are at most
        `SPARE_ROWS`.
        """
        new = [item for item in items if item.row is None]
        if new:
            rows = self.projection.rows([item.values or {} for item in new])
            for item, row in zip(new, rows, strict=True):
                item.row, item.values = row, None
        if len(new) < len(items):
            rows = np.array([item.row for item in items])
        for spare, columns in self._spare:
            spare[: len(items)] = rows[:, columns]

    @cached_property
    def _spare(self) -> list[tuple[NDArray[np.float32], slice]]:
        """Per term its spare rows (SPARE_ROWS, 3H), and its columns in a row of all terms."""
        tables = [term.tables.cell.items for term in self.scorer.terms.values()]
        ends = np.cumsum([table.shape[1] for table in tables]).tolist()
        return [(table[self.first_row :], slice(end - table.shape[1], end)) for table, end in zip(tables, ends, strict=True)]
