"""Calibration: predicted probabilities that agree with frequencies.

A network with the lowest held-out loss is often a little too sure of itself, because it has begun to fit its own users. One
number, the temperature, mends that without changing the order of predictions: logits are divided by it.

Guo et al., *On Calibration of Modern Neural Networks* (ICML 2017).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.nn.base import SessionNet
from mbcal.training.device_data import DeviceSessions
from mbcal.training.optimisers import LBFGS

CALIBRATION_SESSIONS = 20_000
"""Held-out sessions that the temperature is fitted on, at most."""
MAX_TEMPERATURE = 2.0
"""Temperatures between 1 / 2 and 2 are calibration; beyond, the network has learned too little to be calibrated."""
BLOCK = 2_048
"""Sessions predicted at a time."""


@torch.no_grad()
def calibrate(net: SessionNet, data: DeviceSessions, rows: NDArray[np.int64]) -> float:
    """Scale the output layer of a network of behaviours by the temperature that fits held-out sessions best.

    Args:
        net: The network, fitted. Its last layer is changed.
        data: The sessions that rows are taken from.
        rows: Held-out sessions; without any the network stays as it is.

    Returns:
        The temperature: above 1 if the network was too sure.
    """
    if not len(rows):
        return 1.0
    net.eval()
    logits, behaviours = [], []
    for block in torch.split(torch.from_numpy(rows[:CALIBRATION_SESSIONS]), BLOCK):
        batch = data[block.to(data.device)]
        logits.append(net.forward_batch(batch)[batch.mask])
        behaviours.append(batch.behaviours[batch.mask].long())
    temperature = best_temperature(torch.cat(logits), torch.cat(behaviours))
    for parameter in net.head[-1].parameters():
        parameter.div_(temperature)
    return temperature


def best_temperature(logits: Tensor, behaviours: Tensor) -> float:
    """Return the temperature with the lowest negative log likelihood, between 1 / 2 and 2.

    Args:
        logits: (S, K) of S steps.
        behaviours: (S,) what followed.
    """
    with torch.enable_grad():
        log_temperature = torch.zeros((), device=logits.device, dtype=torch.float64, requires_grad=True)
        optimiser = LBFGS([log_temperature], max_iter=50, line_search_fn="strong_wolfe")
        exact = logits.double()

        def loss() -> Tensor:
            optimiser.zero_grad()
            value = nn.functional.cross_entropy(exact * (-log_temperature).exp(), behaviours)
            value.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            return value

        optimiser.step(loss)  # type: ignore[no-untyped-call]
    return min(max(float(log_temperature.detach().exp()), 1 / MAX_TEMPERATURE), MAX_TEMPERATURE)
