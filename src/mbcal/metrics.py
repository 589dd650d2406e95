"""Metrics of predictions and rewards, in plain numpy."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

RELIABILITY_BINS = 15
"""Default number of confidence bins of `reliability`."""


def confusion(truth: NDArray[Any], predicted: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """Count true against predicted classes.

    Args:
        truth: (N,) true classes, 0..classes - 1.
        predicted: (N,) predicted classes.
        classes: Number of classes.

    Returns:
        (classes, classes) counts: rows are true classes, columns predicted ones.
    """
    return np.bincount(truth.astype(np.int64) * classes + predicted, minlength=classes**2).reshape(classes, classes)


def accuracy(table: NDArray[np.int64]) -> float:
    """Return the share of correct predictions, from a confusion table."""
    return float(np.trace(table) / max(table.sum(), 1))


def f1_scores(table: NDArray[np.int64]) -> tuple[float, float]:
    """Return macro-F1 and weighted F1, from a confusion table.

    F1 of a class is 2 TP / (2 TP + FP + FN), and 0 if the class is never predicted. Macro-F1 is the plain mean over the
    classes that occur or are predicted; weighted F1 is the mean weighted by how often a class occurs.
    """
    hits, n_true, n_predicted = np.diag(table), table.sum(1), table.sum(0)
    f1 = 2 * hits / np.maximum(n_true + n_predicted, 1)
    present = (n_true + n_predicted) > 0
    macro = float(f1[present].mean()) if present.any() else 0.0
    return macro, float((f1 * n_true).sum() / max(n_true.sum(), 1))


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: accuracy of the most likely class by the model's confidence in it. All arrays are (bins,)."""

    confidence: Floats
    """Mean confidence in each bin; bins have equal width on [0, 1]."""
    accuracy: Floats
    """Share of correct predictions in each bin."""
    count: NDArray[np.int64]
    """Predictions in each bin."""

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between confidence and accuracy, weighted by count."""
        gap = np.abs(self.confidence - self.accuracy)
        return float((gap * self.count).sum() / max(self.count.sum(), 1))


def reliability(confidence: Floats, correct: NDArray[np.bool_], bins: int = RELIABILITY_BINS) -> Reliability:
    """Bin predictions by confidence.

    Args:
        confidence: (N,) probability of the most likely class.
        correct: (N,) whether that class was the true one.
        bins: Number of bins of equal width.
    """
    bin_index = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(bin_index, minlength=bins)
    divisor = np.maximum(count, 1)
    mean_confidence = np.bincount(bin_index, confidence, bins) / divisor
    return Reliability(mean_confidence, np.bincount(bin_index, correct, bins) / divisor, count)


def catalogue_coverage(items: NDArray[Any], size: int) -> float:
    """Return the share of a catalogue of `size` items that occurs in `items`."""
    return len(np.unique(items)) / size if size else 0.0


def gini(counts: NDArray[Any]) -> float:
    """Return the Gini coefficient of exposure: 0 if all items are shown equally often, near 1 if one is always shown."""
    ordered = np.sort(np.asarray(counts, np.float64))
    if not ordered.sum():
        return 0.0
    rank = np.arange(1, len(ordered) + 1)
    return float(2 * (rank * ordered).sum() / (len(ordered) * ordered.sum()) - (len(ordered) + 1) / len(ordered))


@dataclass(frozen=True)
class Mean:
    """A mean and its confidence interval."""

    mean: float
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end."""
    count: int
    """Values averaged."""
    stderr: float
    """Standard error."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_interval(values: Floats, groups: NDArray[Any] | None = None, level: float = 0.95) -> Mean:
    """Return a mean with a t interval that allows for correlation within groups.

    The standard error is clustered: residuals are summed within each group before they are squared. Without groups it is
    the plain one.

    Args:
        values: (N,) values, at least one.
        groups: (N,) group of each value, such as the user of a session.
        level: Confidence level.

    Returns:
        The mean. With a single group the standard error is unknown and the interval infinite.
    """
    count, mean = len(values), float(values.mean(dtype=np.float64))
    residuals: NDArray[Any] = values.astype(np.float64) - mean
    if groups is not None:
        _, group_index = np.unique(groups, return_inverse=True)
        residuals = np.bincount(group_index, residuals)
    clusters = len(residuals)
    if clusters < 2:
        return Mean(mean, -np.inf, np.inf, count, np.inf)
    stderr = float(np.sqrt(clusters / (clusters - 1) * np.square(residuals).sum())) / count
    width = t_quantile(0.5 + level / 2, clusters - 1) * stderr
    return Mean(mean, mean - width, mean + width, count, stderr)


def t_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t distribution.

    Computed from the normal quantile and its expansion in 1/freedom (Abramowitz and Stegun 26.7.5): within 1% from 3 degrees
    of freedom on. 1 and 2 degrees have closed forms.
    """
    if freedom == 1:
        return float(np.tan(np.pi * (probability - 0.5)))
    if freedom == 2:
        return float((2 * probability - 1) / np.sqrt(2 * probability * (1 - probability)))
    return float(t_expansion(NormalDist().inv_cdf(probability), freedom))


def t_expansion(z: Any, freedom: Any) -> Any:
    """Return the quantile of Student's t distribution that belongs to a normal quantile: an expansion in 1/freedom.

    Args:
        z: Normal quantiles, a number or an array.
        freedom: Degrees of freedom, at least 3, likewise.
    """
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (k + 1) for k, term in enumerate(terms))
