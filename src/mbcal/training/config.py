"""How long and how fast to learn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from mbcal.errors import OptionError
from mbcal.training.optimisers import Adam

UPDATES_PER_EPOCH = 200
"""Updates that a chosen batch aims at in one pass over the data."""
EPOCHS_WITHOUT_STOPPING, UPDATES_WITHOUT_STOPPING = 10, 1_000
"""Epochs of a network whose held-out loss does not tell when to stop; more, if that many make fewer updates."""
MIN_BATCH_STEPS, MAX_BATCH_STEPS = 640, 5120
"""Bounds of a chosen batch, in steps."""


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how fast to learn. The defaults adapt to the data; docs/training.md has the measurements.

    Raises:
        OptionError: If a value is out of range.
    """

    epochs: int = 40
    """At most this many passes over the data."""
    batch: int | None = None
    """Sessions per update. None: as many as give 200 updates in a pass, but 640 to 5,120 steps."""
    learning_rate: float = 3e-3
    """The rate after the warm-up."""
    warmup: int = 100
    """Updates over which the rate rises from zero."""
    decay: float = 0.3
    """Factor on the rate when the held-out loss stops falling. Without held-out users the rate falls linearly to this share
    over all updates."""
    reductions: int = 2
    """How often the rate is reduced before training stops."""
    patience: int = 1
    """Epochs without a better held-out loss before the rate is reduced, or training stops."""
    clip: float | None = 1.0
    """Largest norm of the gradient of an update; None: any."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    shrink: float = 1.0
    """Share of the old weights when an agent is fitted again; the rest is that of a fresh network. 1 goes on from the old
    weights. Below 1 it learns new data more easily, and forgets what is not among them (docs/training.md)."""
    validation: float = 0.1
    """Share of users held out to tell when to stop; with 0 every epoch is run."""
    propensity_weights: bool = False
    """Weight steps by logged propensities, as if a random policy had shown the items: for the log of a policy that knew more
    than the log holds (docs/coverage.md). Simulators and methods with objectives of their own ignore it."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("epochs", 1, 1_000_000),
            ("batch", 1, 1 << 20),
            ("patience", 1, 1_000_000),
            ("warmup", 0, 1_000_000),
            ("reductions", 0, 100),
        ):
            value = getattr(self, name)
            if name == "batch" and value is None:
                continue
            if not isinstance(value, int) or not least <= value <= most:
                raise OptionError(f"{name}: must be a whole number from {least} to {most:,}, got {value}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0:
            raise OptionError(f"betas and eps: must be two numbers in [0, 1) and one above 0, got {self.betas}, {self.eps}")
        if not 0 <= self.validation < 1:
            raise OptionError(f"validation: must be in [0, 1), got {self.validation}")
        if not self.learning_rate > 0:
            raise OptionError(f"learning_rate: must be above 0, got {self.learning_rate}")
        for name in ("decay", "shrink"):
            if not 0 < getattr(self, name) <= 1:
                raise OptionError(f"{name}: must be above 0 and at most 1, got {getattr(self, name)}")
        if self.clip is not None and not self.clip > 0:
            raise OptionError(f"clip: must be above 0, got {self.clip}")

    def batch_sessions(self, sessions: int, steps: float) -> int:
        """Sessions per update, as given or chosen.

        Args:
            sessions: Sessions to learn from.
            steps: Their steps in all.
        """
        if self.batch is not None:
            return self.batch
        wanted_steps = min(max(steps / UPDATES_PER_EPOCH, MIN_BATCH_STEPS), MAX_BATCH_STEPS)
        return max(1, min(round(wanted_steps * sessions / max(steps, 1)), sessions))

    def epochs_without_stopping(self, sessions: int, steps: float) -> int:
        """Epochs of a network whose held-out loss does not tell when to stop: 10, or as many as make 1,000 updates.

        At most `epochs`. If no user is held out at all, every epoch is run.

        Args:
            sessions: Sessions to learn from.
            steps: Their steps in all.
        """
        if not self.validation:
            return self.epochs
        updates_per_epoch = math.ceil(sessions / self.batch_sessions(sessions, steps))
        return min(self.epochs, max(EPOCHS_WITHOUT_STOPPING, math.ceil(UPDATES_WITHOUT_STOPPING / updates_per_epoch)))

    def set_rate(self, optimiser: torch.optim.Adam, rate: float) -> None:
        """Set the learning rate of an optimiser; a group with a `share` gets that share of it."""
        for group in optimiser.param_groups:
            value = rate * group.get("share", 1.0)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def apply_to(self, optimiser: torch.optim.Adam) -> None:
        """Give an existing Adam these settings."""
        for group in optimiser.param_groups:
            group.update(betas=self.betas, eps=self.eps)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"] = group["lr"].clone()  # torch gives all groups one tensor
        self.set_rate(optimiser, self.learning_rate)

    def create_optimiser(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
        """A fresh Adam over those of the parameters that can be learned."""
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        recorded = any(parameter.is_cuda for parameter in parameters)
        rate = torch.tensor(self.learning_rate, device="cuda") if recorded else self.learning_rate
        optimiser = Adam(parameters, rate, self.betas, self.eps, fused=True, capturable=recorded)
        self.apply_to(optimiser)
        return optimiser
