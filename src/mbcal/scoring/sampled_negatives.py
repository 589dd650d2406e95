"""Probabilities of a model that was fitted on sampled negatives, as if no negative had been left out."""

from __future__ import annotations

from typing import Any

from mbcal.errors import OptionError


def undo_sampling(probabilities: Any, none: int, rate: float) -> Any:
    """Correct predicted probabilities for the share of negatives that were sampled.

    A model learns the odds of its data. If a share r of all items not chosen became rows, the odds of `none` are r times
    what they would be with all of them. So its log-odds against every other behaviour are shifted by -log r, and the
    probabilities of the others keep their proportions. What remains is the probability that a click falls on the item,
    among all that were alive.

    Args:
        probabilities: (…, A) of each behaviour, an array or a tensor.
        none: The behaviour of sampled negatives.
        rate: Their sampling rate r, above 0 (`data.clicks.negative_rate`); above 1 if items were repeated.

    Returns:
        (…, A), like the argument.

    Raises:
        OptionError: If the rate is not a positive number.
    """
    if not 0 < rate < float("inf"):
        raise OptionError(f"rate: must be a positive number, got {rate}")
    if rate == 1:
        return probabilities
    corrected = probabilities * rate  # all but `none`: the same as dividing `none` by the rate, and never overflows
    corrected[..., none] = probabilities[..., none]
    return corrected / corrected.sum(-1)[..., None]
