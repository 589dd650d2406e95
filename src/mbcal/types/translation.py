"""Sessions over one catalogue as sessions over another: the same items by name, in other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mbcal.types.catalog import Catalog
from mbcal.types.features import MASK_ROW, UNKNOWN_ROW
from mbcal.types.session_tensors import SessionTensors
from mbcal.types.sessions import Sessions

S = TypeVar("S", bound=Sessions | SessionTensors)

ROW_ARRAYS = ("items", "history_items", "candidates")
"""Arrays of sessions that hold catalogue rows."""


def over_catalog(sessions: S, catalog: Catalog) -> S:
    """Return the same sessions over another catalogue. Items that it does not have become the unknown item.

    Args:
        sessions: N sessions.
        catalog: Where their items are looked up by name.
    """
    if catalog is sessions.catalog:
        return sessions
    if catalog.extends(sessions.catalog):
        return replace(sessions, catalog=catalog)
    row_of = np.concatenate([[MASK_ROW, UNKNOWN_ROW], catalog.rows_of(sessions.catalog.items)]).astype(np.int32)
    arrays: dict[str, Any] = {}
    for name in ROW_ARRAYS:
        rows = getattr(sessions, name)
        if isinstance(rows, np.ndarray):
            arrays[name] = row_of[rows]
        elif rows is not None:
            import torch

            arrays[name] = torch.from_numpy(row_of).to(rows.device)[rows.long()]
    return replace(sessions, catalog=catalog, **arrays)
