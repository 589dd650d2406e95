"""Numbers as text for readers: three significant digits, intervals to their own precision, small p-values as a bound."""

from __future__ import annotations

import math
from typing import Any

from mbcal.evaluation.comparison import MARK
from mbcal.metrics import Mean

WITHIN_ERROR = "within its own error"
"""What readers see in place of a p-value where the judge cannot be trusted for the gap."""
SMALLEST_P = 0.001
"""Smaller p-values are written as less than this."""
ROUNDING = 1e-6
"""Rewards are added in single precision: half-widths below this share of the mean are no more than rounding."""


class Marked(float):
    """A number that the warning of a simulator concerns: readers see it with a mark."""


class WithinError(float):
    """The p-value of a gap that is within the judge's own error, so that it says nothing."""


def format_value(value: Any) -> str:
    """Format a value of a table: three significant digits, two decimals from 10 on, a dash for None."""
    if isinstance(value, Marked):
        return f"{format_value(float(value))} {MARK}"
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else _significant(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_p(value: float) -> str:
    """Format a p-value: three digits after the point at most, `<0.001` below that."""
    if isinstance(value, WithinError):
        return WITHIN_ERROR
    return f"<{SMALLEST_P}" if value < SMALLEST_P else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def format_mean(mean: Mean, sign: bool = False) -> str:
    """Format a mean, to the precision of its interval."""
    return f"{mean.mean:{'+' if sign else ''}.{_decimals(mean)}f}"


def format_interval(mean: Mean, sign: bool = False) -> str:
    """Format an interval, two digits of its half-width; empty if it is infinite, because there is one user."""
    if not math.isfinite(mean.stderr):
        return ""
    form = f"{'+' if sign else ''}.{_decimals(mean)}f"
    return f"[{mean.low:{form}}, {mean.high:{form}}]"


def _decimals(mean: Mean) -> int:
    """Decimals that show two digits of the half-width of an interval; 2 if that is infinite, zero or a rounding error."""
    half = (mean.high - mean.low) / 2
    return max(1 - math.floor(math.log10(half)), 0) if ROUNDING * abs(mean.mean) < half < math.inf else 2


def _significant(value: float) -> str:
    """Three significant digits without an exponent, of a number below 10; what is below 0.0005 is 0."""
    if abs(value) < 0.0005:
        return "0"
    rounded = float(f"{value:.3g}")  # first, since 0.9996 becomes 1.00
    return f"{rounded:.{2 - math.floor(math.log10(abs(rounded)))}f}" if abs(rounded) < 10 else f"{rounded:.1f}"
