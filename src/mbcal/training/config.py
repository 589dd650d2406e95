"""Settings of the training loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from mbcal.errors import OptionError

MAX_EPOCHS, MAX_BATCH = 1_000_000, 1 << 20


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how fast to train a network.

    Raises:
        OptionError: If a setting is out of range.
    """

    epochs: int = 20
    """Passes over the data, at most."""
    batch: int = 256
    """Sessions per update."""
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's two moments, each in [0, 1)."""
    eps: float = 1e-8
    """Adam's epsilon, above 0."""
    validation: float = 0.1
    """Share of users held out for early stopping, in [0, 1); with 0 all epochs are run."""
    patience: int = 2
    """Epochs without a better held-out loss before training stops. The weights of the best epoch are kept."""

    def __post_init__(self) -> None:
        for name, largest in (("epochs", MAX_EPOCHS), ("batch", MAX_BATCH), ("patience", MAX_EPOCHS)):
            if not isinstance(getattr(self, name), int) or not 1 <= getattr(self, name) <= largest:
                raise OptionError(f"{name}: must be a whole number from 1 to {largest:,}, got {getattr(self, name)}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0:
            raise OptionError(f"betas and eps: must be two numbers in [0, 1) and one above 0, got {self.betas}, {self.eps}")
        if not 0 <= self.validation < 1:
            raise OptionError(f"validation: must be in [0, 1), got {self.validation}")
        if not self.learning_rate > 0:
            raise OptionError(f"learning_rate: must be above 0, got {self.learning_rate}")

    def apply_to(self, optimiser: torch.optim.Adam) -> None:
        """Set these rates in an existing Adam. A parameter group with a `share` learns at that share of the rate."""
        for group in optimiser.param_groups:
            group.update(lr=self.learning_rate * group.get("share", 1.0), betas=self.betas, eps=self.eps)

    def create_optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
        """Create an Adam over the parameters that require gradients; on a GPU, one whose steps can be recorded."""
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        on_gpu = any(parameter.is_cuda for parameter in parameters)
        return torch.optim.Adam(parameters, self.learning_rate, self.betas, self.eps, fused=True, capturable=on_gpu)
