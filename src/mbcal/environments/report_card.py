"""How good a simulator is, on users it never saw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mbcal import metrics
from mbcal.types import Sessions


@dataclass(frozen=True)
class ReportCard:
    """How well a simulator does on users it never saw. Rewards are in reward units, everything else per step.

    nll: -log of the probability given to the behaviour that came, mean. accuracy, macro_f1, weighted_f1: of the most likely
    behaviour. rmse: of the expected reward against the reward that came. ece and reliability: of the most likely behaviour's
    probability. real, simulated: mean reward by step, as logged and when the simulator feeds on behaviours of its own.
    """

    sessions: int
    steps: int
    nll: float
    baseline_nll: float
    """Of always giving each behaviour its share in the data: what a simulator must beat."""
    accuracy: float
    macro_f1: float
    weighted_f1: float
    rmse: float
    ece: float
    reliability: dict[str, list[float]]
    real: list[float]
    simulated: list[float]
    error: list[float]
    """Standard error of simulated - real at each step."""
    reached: list[float]
    """Share of sessions that reach each step."""
    size: float
    """Mean absolute reward of a real step."""
    confusion: list[list[int]]

    @property
    def drift(self) -> float:
        """Largest gap between simulated and real mean reward at any step, as a share of the mean size of a real reward.

        Steps that fewer than one session in twenty reaches are left out: their means are mostly noise.
        """
        gaps = [abs(a - b) for a, b, n in zip(self.simulated, self.real, self.reached, strict=True) if n >= 0.05]
        return max(gaps) / max(self.size, 1e-9)


class _StepSums:
    """Sums over steps, for data that comes in parts."""

    def __init__(self) -> None:
        self.nll, self.squared = 0.0, 0.0
        self.sure: list[NDArray[np.float32]] = []
        self.right: list[NDArray[np.bool_]] = []

    def add(self, chances: NDArray[np.float64], truth: NDArray[np.uint8], rewards: NDArray[np.float64]) -> None:
        given = chances[np.arange(len(truth)), truth]
        self.nll -= float(np.log(np.maximum(given, 1e-300)).sum())
        self.squared += float(np.square(chances @ rewards - rewards[truth]).sum())
        self.sure.append(chances.max(1).astype(np.float32))
        self.right.append(chances.argmax(1) == truth)


def _card(sessions: Sessions, tally: _StepSums, table: NDArray[np.int64], simulated: NDArray[np.float32]) -> ReportCard:
    mask, count = sessions.mask, int(table.sum())
    macro, weighted = metrics.f1_scores(table)
    curve = metrics.reliability(np.concatenate(tally.sure), np.concatenate(tally.right))
    shares = table.sum(1) / count
    real, present = sessions.rewards, np.maximum(mask.sum(0), 1)
    gap = np.where(mask, simulated - real, 0).astype(np.float64)
    mean_gap = gap.sum(0) / present
    spread = np.where(mask, np.square(gap - mean_gap), 0).sum(0) / np.maximum(present - 1, 1)
    reached = mask.any(0)  # steps no session reaches have no mean
    return ReportCard(
        sessions=len(sessions),
        steps=count,
        nll=tally.nll / count,
        baseline_nll=float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()),
        accuracy=metrics.accuracy(table),
        macro_f1=macro,
        weighted_f1=weighted,
        rmse=float(np.sqrt(tally.squared / count)),
        ece=curve.error,
        reliability={name: getattr(curve, name).tolist() for name in ("confidence", "accuracy", "count")},
        real=(real.sum(0) / present)[reached].tolist(),
        simulated=(np.where(mask, simulated, 0).sum(0) / present)[reached].tolist(),
        error=np.sqrt(spread / present)[reached].tolist(),
        reached=mask.mean(0)[reached].tolist(),
        size=float(np.abs(real[mask]).mean()),
        confusion=table.tolist(),
    )
