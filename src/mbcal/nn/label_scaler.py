"""The unit in which a network of values learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group


class LabelScaler(nn.Module):
    """The unit in which a value is learned: (label - its mean at this step) / spread, so that no label is too large for Adam
    and no network spends its first epochs on learning that less is to come late in a session.

    Taken from the labels of the first fit; later fits keep it, or warm-started weights would mean something else.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(horizon))
        self.register_buffer("scale", torch.ones(()))

    def fit(self, labels: Tensor, mask: Tensor, group: Group = SINGLE_WORKER) -> None:
        """From the labels (B, T) that count. Steps that nobody reaches share the mean of all; a spread of 0 counts as 1."""
        place = self._place(labels.shape[1])
        known = torch.where(mask, labels, 0).double()
        nothing = torch.zeros(len(self.shift), dtype=torch.float64, device=labels.device)
        sums, counts = (nothing.index_add(0, place, part.sum(0).double()) for part in (known, mask))
        group.all_reduce_sum(sums, counts)
        overall = sums.sum() / counts.sum().clamp(min=1)
        self.shift.copy_(torch.where(counts > 0, sums / counts.clamp(min=1), overall))
        squares = torch.where(mask, labels - self.shift[place], 0).double().square().sum()
        group.all_reduce_sum(squares)
        spread = float((squares / counts.sum().clamp(min=1)).sqrt())
        self.scale.fill_(spread if spread > 1e-8 else 1.0)

    def normalize(self, labels: Tensor) -> Tensor:
        """Labels (B, T) as the network learns them."""
        return (labels - self.shift[self._place(labels.shape[1])]) / self.scale

    def denormalize(self, outputs: Tensor) -> Tensor:
        """What the network says (B, T) in the labels' own unit."""
        return outputs * self.scale + self.shift[self._place(outputs.shape[1])]

    def _place(self, steps: int) -> Tensor:
        """Which shift each step has; what comes after the last has the last's."""
        return torch.arange(steps, device=self.shift.device).clamp(max=len(self.shift) - 1)
