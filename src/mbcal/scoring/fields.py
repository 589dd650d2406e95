"""Fields of users and steps in scoring: their effect on a network as tables, and who reads them.

A network is linear in the fields before its first non-linearity. So a category is a row of a table, a number or a vector a
few rows to multiply with, and what the context of a step adds to the gates is computed once per step, not per candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.scoring.backend import Array, as_index
from mbcal.types import NO_FIELDS, SessionFields, Sessions, SessionTensors


@dataclass(frozen=True)
class FieldTables:
    """The effect of encoded fields (`types.fields`) on G units."""

    codes: Array
    """(codes of all categories, G); the first code of every category, a missing value, has zeros."""
    floats: Array
    """(columns of numbers and vectors, G)."""
    offsets: Array
    """(categories,) int64, where the codes of each category begin."""

    def effect(self, rows: Array) -> Array:
        """Encoded rows (…, W) -> (…, G). Zeros for a row of zeros."""
        n_codes = len(self.offsets)
        total = rows[..., n_codes:] @ self.floats
        if n_codes:
            total = total + self.codes[as_index(rows[..., :n_codes]) + self.offsets].sum(-2)
        return total


class JointFieldTables:
    """The effect of one encoded row on several terms, side by side: one product for all, since requests wait for it.

    Args:
        tables: Of the terms, as numpy arrays; all read the same fields.
    """

    def __init__(self, tables: Sequence[FieldTables]) -> None:
        ends = np.cumsum([table.floats.shape[1] for table in tables]).tolist()
        self.slices = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        """Columns of each term."""
        if tables:
            self._codes: NDArray[np.float32] = np.concatenate([table.codes for table in tables], 1)
            self._floats: NDArray[np.float32] = np.concatenate([table.floats for table in tables], 1)
            self._offsets: list[int] = tables[0].offsets.tolist()

    def effect(self, row: Sequence[float]) -> tuple[NDArray[np.float32], ...]:
        """The effect of an encoded row of W numbers, (1, G) per term; equal to `FieldTables.effect` up to rounding."""
        if not self.slices:
            return ()
        total = np.array(row[len(self._offsets) :], np.float32) @ self._floats
        for code, offset in zip(row, self._offsets, strict=False):
            total += self._codes[int(code) + offset]
        return tuple([total[None, columns] for columns in self.slices])


class FieldReader:
    """A policy or an environment in B sessions, which is given user features and context if it reads any.

    It reads them if it has `fields` (a `SessionFields`), `with_user(state, user_features (B, U))` and
    `with_context(state, context (B, K))`; both return the state with what they were given. The context is that of the next
    step, until something is observed.

    Args:
        reader: The policy or environment.
        batch: B sessions, encoded by any fields.
    """

    def __init__(self, reader: Any, batch: Sessions | SessionTensors) -> None:
        fields: SessionFields = getattr(reader, "fields", NO_FIELDS)
        self.reader, self.batch = reader, batch.encoded_by(fields)

    def begin(self) -> Any:
        """The state before the first step."""
        state = self.reader.begin(*self.batch.history)
        return state if self.batch.user_features is None else self.reader.with_user(state, self.batch.user_features)

    def at(self, state: Any, step: Any, rows: Any = None) -> Any:
        """The state with the context of a step, or of steps (B,); beyond the end of a session that of its last step.

        Args:
            state: Of all sessions of the batch, or of some.
            step: The step, or one per session of the batch.
            rows: (R,) the sessions that the state has, in its order, if these are not all.
        """
        context = self.batch.context_at(step)
        if context is None:
            return state
        return self.reader.with_context(state, context if rows is None else context[rows])
