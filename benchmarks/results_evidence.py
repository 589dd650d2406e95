"""A claim, and one number that speaks for or against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "does not hold", "inconclusive"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNKNOWN: Verdict = "inconclusive"


@dataclass(frozen=True)
class Claim:
    """One claim; claims.toml explains the fields."""

    by: Literal["paper", "ours"]
    says: str
    table: str
    data: tuple[str, ...]
    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()
    margin: float = 0.0
    column: str = ""
    name: str = ""


@dataclass(frozen=True)
class Evidence:
    """One number with its interval, and what it must exceed: with the whole interval, and by more than its judge may err."""

    value: float
    low: float
    high: float
    bound: float = 0.0
    """The claim holds above it."""
    against: str = ""
    judge: str = ""
    trainings: int = 0
    """Of the method with fewer; 0 where trainings do not matter."""
    trusted: float | None = None
    """Smallest gap that the judge's own error does not explain, if it is a simulator that knows."""
    factor: bool = False
    """Whether the value is a factor, not a difference."""
    loss: bool = False
    """Whether the value is minus a loss; readers see the loss."""
    paper: float | None = None
    """The paper's number, where its data has the same scale."""
    partial: bool = False
    """Whether something that the claim compares was not measured yet, so that it can be refuted only."""
    disputed: bool = False
    """Whether another judge does not agree."""
    note: str = ""
    """What else a reader must know of the number."""

    @property
    def verdict(self) -> Verdict:
        if self.trainings == 1 or math.isnan(self.value) or self.is_small or self.disputed:
            return UNKNOWN
        if self.high < self.bound:
            return FAILS
        return HOLDS if self.low > self.bound and not self.partial else UNKNOWN

    @property
    def is_small(self) -> bool:
        """Whether the judge's own error, added to the interval, could explain how far the value is from the bound."""
        return self.trusted is not None and max(self.low - self.bound, self.bound - self.high) < self.trusted

    def __str__(self) -> str:
        return " ".join(filter(None, (self.number, self.interval)))

    @property
    def number(self) -> str:
        """The value as readers see it, rounded as its interval is."""
        if self.factor:
            return f"{_factor(self.value)}×"
        value, sign = (-self.value, "") if self.loss else (self.value, "+")
        if self.low == self.high:
            return f"{value:{sign}.3g}" if value else "0"
        decimals = _decimals(self.low, self.high)
        value = round(value, decimals) or 0.0  # no -0.0
        return f"{value:{sign if value else ''}.{decimals}f}"

    @property
    def interval(self) -> str:
        """The interval; of a factor from the lowest to the highest between two trainings; empty if there is none."""
        if self.low == self.high:
            return ""
        if self.factor:
            return f"{_factor(self.low)}× to {_factor(self.high)}×"
        decimals = _decimals(self.low, self.high)
        low, high = (
            round(end, decimals) or 0.0 for end in ((-self.high, -self.low) if self.loss else (self.low, self.high))
        )
        return f"[{low:.{decimals}f}, {high:.{decimals}f}]"

    @property
    def limit_text(self) -> str:
        """The bound as readers see it, where it is not that nothing is lost; empty otherwise."""
        return f"{-self.bound if self.loss else self.bound:.2g}" if self.bound and not self.factor else ""

    @property
    def paper_text(self) -> str:
        """The paper's number as text; empty if there is none."""
        if self.paper is None:
            return ""
        return f"{_factor(self.paper)}×" if self.factor else f"{self.paper:+.2f}"


def _decimals(low: float, high: float) -> int:
    """Decimals that show two digits of an interval's half-width, and on which side of 0 each end is."""
    smallest = min(abs(end) for end in (low, high) if end)
    return max(1 - math.floor(math.log10((high - low) / 2)), -math.floor(math.log10(2 * smallest)), 0)


def _factor(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
