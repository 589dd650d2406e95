"""Settings that all methods share."""

from __future__ import annotations

from dataclasses import dataclass, field

from mbcal.errors import OptionError
from mbcal.nn.config import NetConfig
from mbcal.training.config import TrainingConfig


@dataclass(frozen=True)
class AgentConfig:
    """Settings that all methods share."""

    net: NetConfig = field(default_factory=NetConfig)
    """Sizes and inputs of the networks."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """How long and how fast to learn."""
    seed: int = 0
    """Seed of initial weights, held-out users and all noise of training."""

    def __post_init__(self) -> None:
        if self.net.cell != "gru":
            raise OptionError(f"net.cell: agents rank by tables, which only a gru has; got {self.net.cell!r}")
