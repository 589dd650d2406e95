"""How large a difference between policies must be before a simulator's word counts.

A simulator's error can favour one of two policies. A difference smaller than this error says nothing. The report card
has two measures of it, on users the simulator was not fitted on:

- drift: the largest gap between simulated and logged mean reward at any step;
- calibration: a share of probability (the expected calibration error) that lies on the wrong behaviour, which changes the
  expected reward of a step by at most that share of the range of rewards.

A session has `length` steps, so a difference of reward per session is trusted from

    length * (largest gap at a step + calibration error * (highest - lowest reward))

on. Where users can leave, the error of the length of simulated sessions is added, as a share of the reward per session. The
gap at a step includes its sampling error: a report card of few sessions vouches for less. The rule knows errors on logged
items; what a policy shows beyond them is the concern of `evaluation.coverage`. Compared with the truth: docs/models.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mbcal.environments.report_card import ReportCard

NO_CARD = (
    "The simulator has no report card, so nothing says how far to trust it; `simulator.evaluate(store.sessions('test'))` or "
    "`mbcal simulator` makes one."
)
LARGE = 0.05
"""A simulator that can be trusted only for differences above this share of the reward per session has a warning."""


@dataclass(frozen=True)
class Trust:
    """The size of difference for which a simulator can be trusted."""

    difference: float
    """Smallest difference in reward per session that is not explained by the simulator's own error; infinite if nothing is
    known of the simulator, or if it has learned nothing."""
    share: float
    """The same as a share of the logged reward per session."""
    drift: float
    """How much of `difference` is drift; the rest is calibration."""
    problem: str
    """Why nothing it says can be trusted, in words; empty otherwise."""
    cause: str = ""
    """The error that is most of `difference`, with its size, in words."""

    @property
    def is_low(self) -> bool:
        """Whether this simulator needs a warning."""
        return bool(self.problem) or self.share > LARGE

    def covers(self, gap: float) -> bool:
        """Return whether a difference in reward per session is large enough to be trusted."""
        return abs(gap) >= self.difference

    def marks(self, gap: float | None = None) -> bool:
        """Whether a number gets the mark of the warning: a gap that is too small, and all if nothing can be trusted."""
        return self.is_low and (bool(self.problem) or (gap is not None and not self.covers(gap)))

    @property
    def sentence(self) -> str:
        """For what differences the simulator can be trusted, in a sentence."""
        if self.problem:
            return self.problem
        size = f"{self.difference:.3g} per session ({self.share:.1%} of the log's reward)"
        return (
            f"Can be trusted for differences of {size} or more between methods, as a rule; smaller ones may be its own "
            "error, and gaps to the log may be further off."
        )

    @property
    def warning(self) -> str | None:
        """The warning that belongs beside the numbers of this simulator; None if none is due."""
        if not self.is_low:
            return None
        if self.problem:
            return self.problem
        return f"Large {self.cause}. {self.sentence} Fit it on more data or longer, or test it on more sessions."


def simulator_trust(card: ReportCard | None, rewards: Sequence[float]) -> Trust:
    """Return for what differences a simulator can be trusted.

    Args:
        card: Its report card; None if it was saved without one.
        rewards: (behaviours,) reward of each behaviour.
    """
    if card is None:
        return Trust(math.inf, math.inf, 0.0, NO_CARD)
    if card.nll >= card.baseline_nll:
        return Trust(
            math.inf,
            math.inf,
            0.0,
            f"The simulator is no better than the frequencies of behaviours (NLL {card.nll:.3f}, of the frequencies "
            f"{card.baseline_nll:.3f}): do not trust it; fit it longer or on more data.",
        )
    length = card.steps / card.sessions
    reward = sum(real * reached for real, reached in zip(card.real, card.reached, strict=True))
    of_length = card.length_drift or 0.0
    parts = {
        f"drift: at some step its mean reward is {card.drift:.1%} of a step's reward away from the logged one": (
            length * card.drift * card.size
        ),
        f"drift: its sessions are {abs(of_length):.1%} {'longer' if of_length > 0 else 'shorter'} than the logged ones": (
            abs(of_length * reward)
        ),
        f"calibration error: its probabilities are {card.ece:.1%} away from the frequencies of behaviours": (
            length * card.ece * (max(rewards) - min(rewards))
        ),
    }
    at_steps, in_length, calibration = parts.values()
    drift = at_steps + in_length
    difference = drift + calibration
    return Trust(difference, difference / max(abs(reward), 1e-9), drift, "", max(parts, key=lambda cause: parts[cause]))
