"""How long and how fast to learn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from mbcal.errors import OptionError


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how fast to learn."""

    epochs: int = 20
    """At most this many passes over the data."""
    batch: int = 256
    """Sessions an update."""
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    validation: float = 0.1
    """Share of users held out to tell when to stop; with 0 every epoch is run."""
    patience: int = 2
    """Epochs without a better held-out loss before stopping; the best weights are kept."""

    def __post_init__(self) -> None:
        for name, most in (("epochs", 1_000_000), ("batch", 1 << 20), ("patience", 1_000_000)):
            if not isinstance(getattr(self, name), int) or not 1 <= getattr(self, name) <= most:
                raise OptionError(f"{name}: must be a whole number from 1 to {most:,}, got {getattr(self, name)}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0:
            raise OptionError(f"betas and eps: must be two numbers in [0, 1) and one above 0, got {self.betas}, {self.eps}")
        if not 0 <= self.validation < 1:
            raise OptionError(f"validation: must be in [0, 1), got {self.validation}")
        if not self.learning_rate > 0:
            raise OptionError(f"learning_rate: must be above 0, got {self.learning_rate}")

    def apply_to(self, optimiser: torch.optim.Adam) -> None:
        """Give an existing Adam these rates; a group with a `share` of its own keeps it."""
        for group in optimiser.param_groups:
            group.update(lr=self.learning_rate * group.get("share", 1.0), betas=self.betas, eps=self.eps)

    def create_optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
        """A fresh Adam over those of the parameters that can be learned."""
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        recorded = any(parameter.is_cuda for parameter in parameters)
        return torch.optim.Adam(parameters, self.learning_rate, self.betas, self.eps, fused=True, capturable=recorded)
