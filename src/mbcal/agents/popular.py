"""Popular: rank by how often an item was shown in the log, the same for every user."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.nn.growth import padded_rows
from mbcal.scoring.scorers import ItemScorer
from mbcal.types import FIRST_ITEM_ROW, Catalog


class _Counts(nn.Module):
    """(rows,) how many logged steps showed each item."""

    steps: Tensor

    def __init__(self, n_rows: int) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(n_rows))

    def grow(self, catalog: Catalog) -> None:
        """New items were never shown."""
        self.steps = padded_rows(self.steps, catalog.n_rows)


class Popular(Agent):
    """Score = share of all logged steps that showed the item. Later fits add to the counts."""

    name = "popular"

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"counts": _Counts(domain.catalog.n_rows)}

    def learn(self, context: FitContext) -> None:
        counts = self.nets["counts"].steps
        new_counts = torch.zeros_like(counts)
        for rows in context.data.blocks():
            batch = context.data[rows]
            new_counts += torch.bincount(batch.items[batch.mask], minlength=len(counts))
        context.worker_slice.group.all_reduce_sum(new_counts)
        counts += new_counts
        counts[:FIRST_ITEM_ROW] = 0

    def build_scorer(self) -> ItemScorer:
        counts = self.nets["counts"].steps
        return ItemScorer(counts / counts.sum().clamp(min=1))
