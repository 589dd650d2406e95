"""Normalisation of a value network's labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group

MIN_SCALE = 1e-8
"""A standard deviation up to this counts as zero."""


class LabelScaler(nn.Module):
    """Normalises labels: (label - mean at its step) / standard deviation over all steps.

    So labels of any size suit Adam, and the network need not first learn that less reward is left late in a session. Fitted
    to the labels of an agent's first fit; warm starts keep it, because the weights depend on it.

    Args:
        horizon: Steps with a mean of their own; with 1 all steps share one.
    """

    shift: Tensor
    """(horizon,) the mean label of every step."""
    scale: Tensor
    """() the standard deviation."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(horizon))
        self.register_buffer("scale", torch.ones(()))

    def fit(self, labels: Tensor, mask: Tensor, group: Group = SINGLE_WORKER) -> None:
        """Fit means and scale.

        A step that no session reaches gets the mean over all steps; a standard deviation of 0 becomes 1.

        Args:
            labels: (B, T), those of this worker.
            mask: (B, T) bool, true where a step counts.
            group: Workers whose labels are fitted together.
        """
        steps = self._shift_index(labels.shape[1])
        counted = torch.where(mask, labels, 0).double()
        zeros = torch.zeros(len(self.shift), dtype=torch.float64, device=labels.device)
        sums, counts = (zeros.index_add(0, steps, part.sum(0).double()) for part in (counted, mask))
        group.all_reduce_sum(sums, counts)
        overall = sums.sum() / counts.sum().clamp(min=1)
        self.shift.copy_(torch.where(counts > 0, sums / counts.clamp(min=1), overall))
        squares = torch.where(mask, labels - self.shift[steps], 0).double().square().sum()
        group.all_reduce_sum(squares)
        deviation = float((squares / counts.sum().clamp(min=1)).sqrt())
        self.scale.fill_(deviation if deviation > MIN_SCALE else 1.0)

    def normalize(self, labels: Tensor) -> Tensor:
        """Reward units to the network's: labels (B, T) -> (B, T)."""
        return (labels - self.shift[self._shift_index(labels.shape[1])]) / self.scale

    def denormalize(self, outputs: Tensor) -> Tensor:
        """The network's units to those of rewards: outputs (B, T) -> (B, T)."""
        return outputs * self.scale + self.shift[self._shift_index(outputs.shape[1])]

    def _shift_index(self, n_steps: int) -> Tensor:
        """(n_steps,) the index of each step's mean; steps after the last use the last."""
        return torch.arange(n_steps, device=self.shift.device).clamp(max=len(self.shift) - 1)
