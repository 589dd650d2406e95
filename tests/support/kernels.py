"""Tables and sessions for the kernels, and the reference implementation they must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mbcal.kernels import native
from mbcal.scoring.tables import CellTables, Tables

ROWS, KINDS, SESSIONS, WIDTH = 50, 4, 37, 7
"""Sessions and candidates that fill no tile evenly."""


Case = tuple[Tables, Any, Any, Any]


def case(size: int = 8, outputs: int = 3, sessions: int = SESSIONS, scale: float = 1.0) -> Case:
    """Random tables in numpy, hidden states, previous behaviours, candidates (int32)."""
    draw = np.random.default_rng(size * 100 + outputs)

    def normal(*shape: int) -> Any:
        return draw.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    items, behaviours = (scale * draw.normal(0, 1, (rows, 3 * size)).astype(np.float32) for rows in (ROWS, KINDS))
    cell = CellTables(items.astype(np.float32), behaviours.astype(np.float32), normal(3 * size, size), normal(3 * size))
    tables = Tables(cell, (normal(size + 2, size), normal(size + 2), normal(outputs, size + 2), normal(outputs)), None, None)
    hidden = np.tanh(draw.normal(0, 1, (sessions, size))).astype(np.float32)
    candidates = draw.integers(-ROWS, ROWS, (sessions, WIDTH)).astype(np.int32)
    return tables, hidden, draw.integers(-KINDS, KINDS, sessions), candidates


def twin(tables: Tables, *others: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MBCAL_NATIVE", "0")
        return tables.score(*others)


def fast(tables: Tables, hidden: Any, previous: Any, candidates: Any) -> Any:
    """Without the twin to fall back on."""
    return native.score(tables.cell.arrays, tables.head, hidden, previous, candidates)
