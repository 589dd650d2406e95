"""Random tables and sessions for tests of the C kernels, and calls of C and of the reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mbcal.kernels import native
from mbcal.scoring.tables import CellTables, Tables

ROWS, BEHAVIOURS, SESSIONS, WIDTH = 50, 4, 37, 7
"""Sessions and candidates are not multiples of a tile."""


Case = tuple[Tables, Any, Any, Any]
"""Tables, hidden states (B, H), previous behaviours (B,), candidates (B, C)."""


def case(size: int = 8, outputs: int = 3, sessions: int = SESSIONS, scale: float = 1.0) -> Case:
    """A random case in numpy; candidates are int32 and may be negative."""
    random = np.random.default_rng(size * 100 + outputs)

    def normal(*shape: int) -> Any:
        return random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    items, behaviours = (scale * random.normal(0, 1, (rows, 3 * size)).astype(np.float32) for rows in (ROWS, BEHAVIOURS))
    cell = CellTables(items.astype(np.float32), behaviours.astype(np.float32), normal(3 * size, size), normal(3 * size))
    tables = Tables(cell, (normal(size + 2, size), normal(size + 2), normal(outputs, size + 2), normal(outputs)), None, None)
    hidden = np.tanh(random.normal(0, 1, (sessions, size))).astype(np.float32)
    candidates = random.integers(-ROWS, ROWS, (sessions, WIDTH)).astype(np.int32)
    return tables, hidden, random.integers(-BEHAVIOURS, BEHAVIOURS, sessions), candidates


def reference_score(tables: Tables, *inputs: Any) -> Any:
    """`Tables.score` without C."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MBCAL_NATIVE", "0")
        return tables.score(*inputs)


def native_score(tables: Tables, hidden: Any, previous: Any, candidates: Any) -> Any:
    """C alone; None where it does not support the case."""
    return native.score(tables.cell.arrays, tables.head, hidden, previous, candidates)
