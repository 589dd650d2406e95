"""The smallest training job: one weight that learns y = 2x."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mbcal.training.config import TrainingConfig
from mbcal.training.loop import TrainingJob, train
from mbcal.training.random import Noise

NO_ROWS = np.zeros(0, np.int64)


def line(rows: int = 40) -> tuple[nn.Linear, Any]:
    """y = 2x fitted by one weight; the objective adds noise that must not matter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
    x = torch.linspace(-1, 1, rows).unsqueeze(1)

    def objective(batch: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        jitter = 0.02 * noise.uniform((len(batch), 1)) - 0.01
        return (model(x[batch]) - 2 * x[batch] + jitter).square().sum(), torch.tensor(len(batch))

    return model, objective


def fit(model: nn.Module, objective: Any, config: TrainingConfig, rows: int = 40, held: Any = NO_ROWS, **more: Any) -> Any:
    optimiser = more.pop("optimiser", None) or config.create_optimiser(model.parameters())
    options = {name: more.pop(name) for name in ("max_loss", "before_update") if name in more}
    job = TrainingJob("line", model, objective, optimiser, np.arange(rows), held, **options)
    return train(job, config, seed=0, **more)
