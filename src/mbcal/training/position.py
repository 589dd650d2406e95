"""Where a run of the training loop stands."""

from __future__ import annotations

from dataclasses import dataclass, field

Curve = list[dict[str, float]]
"""One entry per epoch: `loss`, and `held_out` where users are held out. An epoch in which the network diverged has
`diverged` 1."""


@dataclass
class Position:
    """Where a run stands. With weights and optimiser state this is all a checkpoint needs."""

    epoch: int = 0
    batch: int = 0
    """The next batch of the epoch."""
    loss_sum: float = 0.0
    """Loss summed over the epoch so far."""
    step_count: float = 0.0
    """Steps it was summed over."""
    best_loss: float | None = None
    """The lowest held-out loss so far."""
    epochs_since_best: int = 0
    reductions: int = 0
    """How often the learning rate was reduced."""
    updates: int = 0
    """Updates so far."""
    stopped: str = ""
    """Why training ended."""
    done: bool = False
    curve: Curve = field(default_factory=list)
