"""What happened when a network was trained."""

from __future__ import annotations

from dataclasses import dataclass, field

Curve = list[dict[str, float]]
"""One entry per epoch: `loss`, and `held_out` where users are held out."""

LEARNED_SHARE = 1e-3
"""A network has learned something if its held-out loss is below that of a constant prediction by at least this share."""


@dataclass(frozen=True)
class TrainingRecord:
    """How the training of one network went. Kept with the model."""

    curve: Curve = field(default_factory=list)
    updates: int = 0
    """Updates made, in all epochs."""
    batch: int = 0
    """Sessions per update."""
    learning_rate: float = 0.0
    """The rate of the last update."""
    stopped: str = ""
    """Why training ended."""
    base_loss: float | None = None
    """Held-out loss of the best constant prediction, in the unit of the curve; None if it is not known."""

    @property
    def best_epoch(self) -> int:
        """The epoch whose weights were kept, counted from 1; 0 if there was none."""
        if not self.curve:
            return 0
        if "held_out" not in self.curve[-1]:
            return len(self.curve)
        return 1 + min(range(len(self.curve)), key=lambda epoch: self.curve[epoch]["held_out"])

    @property
    def held_out_loss(self) -> float | None:
        """The held-out loss of the weights that were kept; None if no user was held out."""
        return self.curve[self.best_epoch - 1].get("held_out") if self.curve else None

    @property
    def has_learned(self) -> bool:
        """Whether it predicts held-out users better than a constant does; true if that is not known."""
        if self.base_loss is None or self.held_out_loss is None:
            return True
        return self.held_out_loss < self.base_loss * (1 - LEARNED_SHARE)

    def __str__(self) -> str:
        text = f"{self.updates:,} updates of {self.batch:,} sessions, epoch {self.best_epoch} of {len(self.curve)}"
        if self.held_out_loss is not None:
            text += f", held-out loss {self.held_out_loss:.4f}"
            text += f" (a constant prediction has {self.base_loss:.4f})" if self.base_loss is not None else ""
        elif self.curve:
            text += f", loss {self.curve[-1]['loss']:.4f}"
        return f"{text}, last rate {self.learning_rate:.1g}; {self.stopped}"
