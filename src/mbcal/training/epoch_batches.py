"""The batches of one epoch of the training loop."""

from __future__ import annotations

import torch
from torch import Tensor


class EpochBatches:
    """Rows in shuffled order, one noise seed and one loss slot per batch.

    Args:
        rows: (N,) the sessions of the epoch, shuffled.
        batch_size: Sessions per batch; the last batch may be shorter.
        noise_seeds: (batches,) the seed of each batch's noise.
        first_batch: The batch to begin with, above 0 in an epoch that is resumed.
    """

    def __init__(self, rows: Tensor, batch_size: int, noise_seeds: Tensor, first_batch: int) -> None:
        self.rows, self.batch_size, self.noise_seeds = rows, batch_size, noise_seeds
        self.count = len(noise_seeds)
        self.n_full = len(rows) // batch_size
        self.full_batches = rows[: self.n_full * batch_size].view(self.n_full, batch_size)
        self.next_batch = torch.full((1,), first_batch, device=rows.device)  # a tensor, so that one CUDA graph serves all
        self.losses = torch.zeros(self.count, 2, device=rows.device)  # summed loss and step count of every batch

    def batch_rows(self, number: int) -> Tensor:
        """Rows (B,) of one batch; the last batch may be shorter."""
        return self.rows[number * self.batch_size : (number + 1) * self.batch_size]
