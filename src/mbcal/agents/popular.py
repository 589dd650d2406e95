"""Popular: what was shown most often in the log, to everybody."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.scoring.scorers import ItemScorer
from mbcal.types import FIRST_ITEM_ROW


class _Counts(nn.Module):
    """Steps an item was shown at."""

    steps: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(rows))


class Popular(Agent):
    """Score = share of the log's steps; a later fit adds to the counts."""

    name = "popular"

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"counts": _Counts(domain.catalog.n_rows)}

    def learn(self, context: FitContext) -> None:
        counts, group = self.nets["counts"].steps, context.worker_slice.group
        if group.rank:  # what was known before counts once
            counts.zero_()
        for rows in context.data.blocks():
            batch = context.data[rows]
            counts += torch.bincount(batch.items[batch.mask], minlength=len(counts))
        group.all_reduce_sum(counts)
        counts[:FIRST_ITEM_ROW] = 0

    def build_scorer(self) -> ItemScorer:
        counts = self.nets["counts"].steps
        return ItemScorer(counts / counts.sum().clamp(min=1))
