"""What a summary concludes from the rewards of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from tests.support.summaries import summary_of

NOISE = np.random.default_rng(0).normal(size=400)
OTHER_NOISE = np.random.default_rng(1).normal(size=400)


def rewards(level: float, noise: NDArray[np.float64] = NOISE) -> NDArray[np.float64]:
    """Rewards (1, 400) around a level."""
    return (level + noise)[None]


def test_protocols_disagree_only_if_one_can_tell() -> None:
    first, second = {"a": rewards(5.2), "b": rewards(5.0)}, {"a": rewards(5.0), "b": rewards(5.2)}
    real = summary_of({"lstm": first}, {"lstm": second})
    assert real.disagreement() == (
        "Growing Batch-RL disagrees: there b is ahead of the runner-up a by 0.20 per session [0.20, 0.20]."
    )
    within = summary_of({"lstm": first}, {"lstm": second}, trust={"lstm": Trust(0.5, 0.1, 0.5, "")})
    assert within.disagreement() == ""
