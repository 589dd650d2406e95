"""How many candidates of a step are kept when steps are padded to one width.

One request with a thousand candidates would make room for a thousand at every step of every session. So beyond a number of
bytes the width is that of the usual steps, and wider ones keep a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mbcal.data.user_split import stable_hash

MAX_BYTES = 256 * 2**20
"""Padded to the widest step, candidates may take so many bytes; beyond that, they are padded to what 99% of steps have."""


def candidate_width(widths: Sequence[int], padded_steps: int) -> int:
    """Return the number of candidates to make room for.

    Args:
        widths: Candidates of every step.
        padded_steps: Steps to make room at.
    """
    if not widths:
        return 0
    usual = int(np.quantile(widths, 0.99, method="higher"))
    return min(max(widths), max(usual, MAX_BYTES // (4 * padded_steps)))


def sample_candidates(candidates: NDArray[np.int32], chosen: int, width: int, name: str) -> NDArray[np.int32]:
    """Return a sample of the candidates of a step, the chosen one among them, in their order.

    Args:
        candidates: (C,) catalogue rows.
        chosen: The row that was chosen.
        width: How many to return, less than C.
        name: Names the draw.
    """
    place = np.flatnonzero(candidates == chosen)[:1]
    others = np.delete(np.arange(len(candidates)), place)
    drawn = np.random.default_rng(stable_hash(name, 0, "candidates")).choice(others, width - len(place), replace=False)
    kept: NDArray[np.int32] = candidates[np.sort(np.concatenate([place, drawn]))]
    return kept
