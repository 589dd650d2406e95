"""Numbers about predictions and rewards, each defined where it is computed. Plain numpy."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

RELIABILITY_BINS = 15


def confusion(truth: NDArray[Any], predicted: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """(classes, classes) counts: rows are what was, columns what was predicted."""
    return np.bincount(truth.astype(np.int64) * classes + predicted, minlength=classes**2).reshape(classes, classes)


def accuracy(table: NDArray[np.int64]) -> float:
    """Share of steps predicted exactly, from a confusion table."""
    return float(np.trace(table) / max(table.sum(), 1))


def f1_scores(table: NDArray[np.int64]) -> tuple[float, float]:
    """Macro- and weighted-F1 from a confusion table.

    F1 of a class is 2 TP / (2 TP + FP + FN), and 0 where the class is never predicted. Macro is the plain mean over the
    classes that occur or are predicted, weighted the mean by how often a class occurs.
    """
    hits, occurs, said = np.diag(table), table.sum(1), table.sum(0)
    each = 2 * hits / np.maximum(occurs + said, 1)
    present = (occurs + said) > 0
    macro = float(each[present].mean()) if present.any() else 0.0
    return macro, float((each * occurs).sum() / max(occurs.sum(), 1))


@dataclass(frozen=True)
class Reliability:
    """How often the most likely class was right, by how sure the model was of it; arrays over bins of equal width."""

    confidence: Floats
    accuracy: Floats
    count: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between confidence and accuracy, weighted by count."""
        gap = np.abs(self.confidence - self.accuracy)
        return float((gap * self.count).sum() / max(self.count.sum(), 1))


def reliability(confidence: Floats, right: NDArray[np.bool_], bins: int = RELIABILITY_BINS) -> Reliability:
    """From the largest probability of each step and whether that class came."""
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(place, minlength=bins)
    some = np.maximum(count, 1)
    sure = np.bincount(place, confidence, bins) / some
    return Reliability(sure, np.bincount(place, right, bins) / some, count)


def coverage(items: NDArray[Any], size: int) -> float:
    """Share of a catalogue of this size that was shown at least once."""
    return len(np.unique(items)) / size if size else 0.0


def gini(counts: NDArray[Any]) -> float:
    """Inequality of exposure: 0 when all are shown equally often, near 1 when one is shown always."""
    ordered = np.sort(np.asarray(counts, np.float64))
    if not ordered.sum():
        return 0.0
    rank = np.arange(1, len(ordered) + 1)
    return float(2 * (rank * ordered).sum() / (len(ordered) * ordered.sum()) - (len(ordered) + 1) / len(ordered))


@dataclass(frozen=True)
class Mean:
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float
    count: int
    stderr: float
    """Standard error."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_interval(values: Floats, groups: NDArray[Any] | None = None, level: float = 0.95) -> Mean:
    """Mean with an interval that allows for values of one group (a user's sessions, say) being alike.

    The standard error is clustered: residuals are summed within each group before they are squared. Without groups it is the
    plain one. With one group alone there is no telling, and the interval is infinite.
    """
    count, mean = len(values), float(values.mean(dtype=np.float64))
    residuals: NDArray[Any] = values.astype(np.float64) - mean
    if groups is not None:
        _, index = np.unique(groups, return_inverse=True)
        residuals = np.bincount(index, residuals)
    clusters = len(residuals)
    if clusters < 2:
        return Mean(mean, -np.inf, np.inf, count, np.inf)
    error = float(np.sqrt(clusters / (clusters - 1) * np.square(residuals).sum())) / count
    width = t_quantile(0.5 + level / 2, clusters - 1) * error
    return Mean(mean, mean - width, mean + width, count, error)


def t_quantile(probability: float, freedom: int) -> float:
    """Student's t, by the normal quantile and its expansion in 1/freedom (Abramowitz and Stegun 26.7.5).

    Within 1% of the truth from 3 degrees of freedom on; 1 and 2 have closed forms.
    """
    if freedom == 1:
        return float(np.tan(np.pi * (probability - 0.5)))
    if freedom == 2:
        return float((2 * probability - 1) / np.sqrt(2 * probability * (1 - probability)))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom ** (k + 1) for k, term in enumerate(terms)))
