"""How good a simulator is, measured on users it was not fitted on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mbcal import metrics
from mbcal.types import Sessions

MIN_REACHED = 0.05
"""Steps that a smaller share of sessions reaches do not count in `drift`: their means are mostly noise."""


@dataclass(frozen=True)
class ReportCard:
    """Predictive quality of a simulator. Rewards are in reward units; everything else is a mean per step."""

    sessions: int
    steps: int
    nll: float
    """Negative log likelihood of the logged behaviour."""
    baseline_nll: float
    """The same for predicting each behaviour's share in the data: what a simulator must beat."""
    accuracy: float
    """Share of steps whose most likely behaviour was the logged one."""
    macro_f1: float
    """F1 of the most likely behaviour, mean over behaviours."""
    weighted_f1: float
    """The same, weighted by how often a behaviour occurs."""
    rmse: float
    """Root mean squared error of the expected reward."""
    ece: float
    """Expected calibration error of the most likely behaviour's probability."""
    reliability: dict[str, list[float]]
    """`confidence`, `accuracy` and `count` by bin of confidence."""
    real: list[float]
    """Mean reward by step, as logged."""
    simulated: list[float]
    """Mean reward by step when the logged items are shown and the simulator responds to itself; users who have left by then
    do not count."""
    error: list[float]
    """Standard error of simulated - real by step."""
    reached: list[float]
    """Share of sessions that reach each step."""
    size: float
    """Mean absolute reward of a logged step, the unit of `drift`."""
    confusion: list[list[int]]
    """Counts: rows are logged behaviours, columns predicted ones."""
    staying: dict[str, list[float]] = field(default_factory=dict)
    """`real` and `simulated`: the share of users who are still there at each step, if some behaviours are terminal. Sessions
    that end otherwise count as long as they last (Kaplan and Meier)."""

    @property
    def length_drift(self) -> float | None:
        """How much longer simulated sessions are than logged ones, as a share; None if nothing is terminal."""
        if not self.staying:
            return None
        return sum(self.staying["simulated"]) / sum(self.staying["real"]) - 1

    @property
    def drift(self) -> float:
        """Largest gap between simulated and logged mean reward at any step, as a share of `size`."""
        by_step = zip(self.simulated, self.real, self.reached, strict=True)
        gaps = [abs(simulated - real) for simulated, real, reached in by_step if reached >= MIN_REACHED]
        return max(gaps) / max(self.size, 1e-9)

    def __repr__(self) -> str:
        quality = f"NLL {self.nll:.4f} (baseline {self.baseline_nll:.4f}), ECE {self.ece:.4f}, drift {self.drift:.4f}"
        return f"<ReportCard: {quality}, {self.sessions:,} sessions>"


class ReportCardBuilder:
    """Accumulates predictions block by block, then builds the report card.

    Args:
        rewards: (behaviours,) reward of each behaviour.
    """

    def __init__(self, rewards: NDArray[np.float64]) -> None:
        self._rewards = rewards
        self._nll, self._squared_error = 0.0, 0.0
        self._confusion = np.zeros((len(rewards), len(rewards)), np.int64)
        self._confidence: list[NDArray[np.float32]] = []
        self._correct: list[NDArray[np.bool_]] = []

    def add(self, probabilities: NDArray[np.float64], behaviours: NDArray[np.uint8]) -> None:
        """Add predicted probabilities (S, behaviours) and logged behaviours (S,) of S steps."""
        of_logged = probabilities[np.arange(len(behaviours)), behaviours]
        predicted = probabilities.argmax(1)
        self._nll -= float(np.log(np.maximum(of_logged, 1e-300)).sum())
        self._squared_error += float(np.square(probabilities @ self._rewards - self._rewards[behaviours]).sum())
        self._confusion += metrics.confusion(behaviours, predicted, len(self._rewards))
        self._confidence.append(probabilities.max(1).astype(np.float32))
        self._correct.append(predicted == behaviours)

    def build(self, sessions: Sessions, responses: NDArray[np.uint8]) -> ReportCard:
        """Build the report card.

        Args:
            sessions: The N sessions whose steps were added.
            responses: (N, T) behaviours when the simulator responds to itself on the logged items.
        """
        mask, count = sessions.mask, int(self._confusion.sum())
        simulated, is_terminal = self._rewards[responses].astype(np.float32), sessions.behaviour_set.is_terminal
        staying: dict[str, list[float]] = {}
        if sessions.behaviour_set.terminal:
            leaves = is_terminal[responses]
            staying["real"] = _survival(is_terminal[sessions.behaviours], mask)
            mask = mask & (np.cumsum(leaves, 1) - leaves == 0)  # without those who have left before
            staying["simulated"] = _survival(leaves, mask)
        macro_f1, weighted_f1 = metrics.f1_scores(self._confusion)
        reliability = metrics.reliability(np.concatenate(self._confidence), np.concatenate(self._correct))
        shares = self._confusion.sum(1) / count
        real, present = sessions.rewards, np.maximum(mask.sum(0), 1)
        gap = np.where(mask, simulated - real, 0).astype(np.float64)
        mean_gap = gap.sum(0) / present
        variance = np.where(mask, np.square(gap - mean_gap), 0).sum(0) / np.maximum(present - 1, 1)
        reached = mask.any(0)  # steps that no session reaches have no mean
        return ReportCard(
            sessions=len(sessions),
            steps=count,
            nll=self._nll / count,
            baseline_nll=float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()),
            accuracy=metrics.accuracy(self._confusion),
            macro_f1=macro_f1,
            weighted_f1=weighted_f1,
            rmse=float(np.sqrt(self._squared_error / count)),
            ece=reliability.error,
            reliability={name: getattr(reliability, name).tolist() for name in ("confidence", "accuracy", "count")},
            real=(np.where(mask, real, 0).sum(0) / present)[reached].tolist(),
            simulated=(np.where(mask, simulated, 0).sum(0) / present)[reached].tolist(),
            error=np.sqrt(variance / present)[reached].tolist(),
            reached=sessions.mask.mean(0)[reached].tolist(),
            size=float(np.abs(real[mask]).mean()),
            confusion=self._confusion.tolist(),
            staying=staying,
        )


def _survival(ends: NDArray[np.bool_], present: NDArray[np.bool_]) -> list[float]:
    """The share of users who are there at each step, (T,), by which of those present (N, T) leave at it (N, T)."""
    leaving = (ends & present).sum(0) / np.maximum(present.sum(0), 1)
    shares: list[float] = np.cumprod(np.r_[1.0, 1 - leaving[:-1]]).tolist()
    return shares
