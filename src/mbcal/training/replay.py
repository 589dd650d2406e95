"""How much of the past a repeated fit learns from, and how often: Growing Batch-RL, `mbcal update` and `mbcal loop`.

The paper has rounds of 256,000 sessions and makes one pass over the last round alone. Rounds of a few hundred sessions need
memory and passes: all rounds are replayed, and the held-out loss decides how many passes are made. Between the two, a budget
of steps keeps the cost of a round constant (docs/training.md).
"""

from __future__ import annotations

from collections.abc import Sequence

REPLAY_STEPS = 5_000_000
"""Steps of past rounds that are kept."""
ROUND_STEPS = 10_000_000
"""Steps, counted in every pass, that are learned from in a round."""
REPLAY_SHRINK = 0.5
"""Share of the old weights at the beginning of a round that learns from all rounds."""


def replayed_rounds(round_steps: Sequence[int], replay: int | None) -> int:
    """Return how many of the last rounds to learn from.

    Args:
        round_steps: Steps of each round so far, oldest first.
        replay: A fixed number, or None for as many as hold `REPLAY_STEPS`; always at least one.
    """
    if replay is not None:
        return min(replay, len(round_steps))
    count, total = 0, 0
    for steps in reversed(round_steps):
        total += steps
        if count and total > REPLAY_STEPS:
            break
        count += 1
    return count


def round_shrink(replayed: int, rounds: int, shrink: float | None) -> float:
    """Return the share of the old weights at the beginning of a round.

    Args:
        replayed: Rounds that are learned from.
        rounds: Rounds so far.
        shrink: A fixed share, or None for `REPLAY_SHRINK` if all rounds are learned from, else 1.
    """
    if shrink is not None:
        return shrink
    return REPLAY_SHRINK if replayed == rounds else 1.0


def round_passes(steps: int, most: int, passes: int | None) -> int:
    """Return the most passes over the data of a round.

    Args:
        steps: Steps of all sessions that are learned from.
        most: Most passes of a single fit (`TrainingConfig.epochs`).
        passes: A fixed number, or None for as many as make `ROUND_STEPS`; always at least one.
    """
    if passes is not None:
        return passes
    return max(1, min(most, round(ROUND_STEPS / max(steps, 1))))
