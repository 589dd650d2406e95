r"""When the learning rate falls, and when training stops.

::

    rate  │    ______________
          │   /              \________            reduced when the held-out loss stops falling,
          │  /                        \_______    from the best weights so far; after the last reduction: stop
          └─────────────────────────────────────▶ updates
            warm-up

Without held-out users the rate falls linearly over all planned updates instead, and every epoch is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mbcal.training.config import TrainingConfig

PLATEAU_MARGIN = 0.02
"""A network has left its initial plateau when its held-out loss is below that of a constant prediction by this share."""
PLATEAU_UPDATES = 5_000
"""Updates after which a network that is still on its initial plateau may stop: there is little to learn."""

Step = Literal["best", "continue", "reduce", "stop"]
"""What to do after an epoch: keep these weights as the best so far, go on, go back to the best weights with a lower rate, or
end with the best weights."""


@dataclass
class Schedule:
    """Learning rate and stopping of one training run. All of it is saved in checkpoints."""

    updates: int = 0
    """Updates so far."""
    reductions: int = 0
    """How often the rate was reduced."""
    best_loss: float | None = None
    """The lowest held-out loss so far."""
    epochs_since_best: int = 0
    learning_rate: float = 0.0
    """The rate of the last update."""

    def next_rate(self, config: TrainingConfig, planned_updates: int | None) -> float:
        """Count an update and return its learning rate.

        Args:
            config: The training settings.
            planned_updates: All updates of the run if no user is held out; None if the held-out loss decides.
        """
        rate = config.learning_rate * min(1.0, (self.updates + 1) / max(config.warmup, 1))
        if planned_updates is None:
            rate *= config.decay**self.reductions
        else:
            rate *= 1 - (1 - config.decay) * min(self.updates / planned_updates, 1.0)
        self.updates, self.learning_rate = self.updates + 1, rate
        return rate

    def end_epoch(self, config: TrainingConfig, held_out_loss: float, base_loss: float | None) -> Step:
        """Decide what follows an epoch.

        Args:
            config: The training settings.
            held_out_loss: Loss on the held-out users after it.
            base_loss: Held-out loss of the best constant prediction, if known. Before it is clearly beaten training goes on,
                up to `PLATEAU_UPDATES`: some networks learn nothing for many updates, and then everything.
        """
        if self.best_loss is None or held_out_loss < self.best_loss:
            self.best_loss, self.epochs_since_best = held_out_loss, 0
            return "best"
        self.epochs_since_best += 1
        if self.epochs_since_best < config.patience or self._is_on_initial_plateau(base_loss):
            return "continue"
        if self.reductions >= config.reductions:
            return "stop"
        self.reductions, self.epochs_since_best = self.reductions + 1, 0
        return "reduce"

    def _is_on_initial_plateau(self, base_loss: float | None) -> bool:
        if base_loss is None or self.best_loss is None or self.updates >= PLATEAU_UPDATES:
            return False
        return self.best_loss > base_loss * (1 - PLATEAU_MARGIN)
