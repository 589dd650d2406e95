"""Scores of rare items, shrunk towards the score of the unknown item.

In a log of clicks alone no item is ever passed over. One that was clicked once and then read for long looks like the best of
all, and a ranking of the whole catalogue is filled with such items. So an item's own score is weighted by n / (n + k), where
n is how often it occurs in training, and the score of the unknown item, which is the average item, by the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.scoring.backend import Array, as_index
from mbcal.scoring.scorers import Scorer
from mbcal.types import UNKNOWN_ROW

HALF_SUPPORT = 10.0
"""k: with so many occurrences in training, an item's own score and that of the unknown item count half each."""


def support_weights(occurrences: NDArray[np.int64], n_rows: int) -> NDArray[np.float32]:
    """Return the weight n / (n + k) of each row's own score, (n_rows,) float32.

    Args:
        occurrences: (R,) how often each row occurs in training; rows beyond R never do.
        n_rows: Rows of the catalogue, which may have grown since.
    """
    counts = np.zeros(n_rows)
    counts[: len(occurrences)] = occurrences
    return (counts / (counts + HALF_SUPPORT)).astype(np.float32)


@dataclass(frozen=True)
class SupportScorer:
    """A scorer whose scores are shrunk by support; for rankings of a whole catalogue."""

    scorer: Scorer
    weights: Array
    """(rows,) weight of each row's own score."""

    def begin(self, *arguments: Any) -> Any:
        """See `Scorer`."""
        return self.scorer.begin(*arguments)

    def score_parts(self, state: Any, candidates: Array) -> dict[str, Array]:
        """See `Scorer`; every term is shrunk."""
        index = as_index(candidates)
        unknown = self.scorer.score_parts(state, candidates[:, :1] * 0 + UNKNOWN_ROW)
        own = self.scorer.score_parts(state, candidates)
        return {name: unknown[name] + (scores - unknown[name]) * self.weights[index] for name, scores in own.items()}

    def score(self, state: Any, candidates: Array) -> Array:
        """See `Scorer`."""
        unknown = self.scorer.score(state, candidates[:, :1] * 0 + UNKNOWN_ROW)
        return unknown + (self.scorer.score(state, candidates) - unknown) * self.weights[as_index(candidates)]

    def observe(self, state: Any, item: Array, behaviour: Array) -> Any:
        """See `Scorer`."""
        return self.scorer.observe(state, item, behaviour)
