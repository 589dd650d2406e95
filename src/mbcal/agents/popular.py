"""Popular: what was shown most often in the log, to everybody."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mbcal.agents.base import Agent, Domain, Lesson
from mbcal.scoring.scorers import ItemScorer
from mbcal.training.device_data import blocks
from mbcal.types import SPECIAL


class _Counts(nn.Module):
    """Steps an item was shown at."""

    steps: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(rows))


class Popular(Agent):
    """Score = share of the log's steps; a later fit adds to the counts."""

    name = "popular"

    def networks(self, domain: Domain) -> dict[str, nn.Module]:
        return {"counts": _Counts(domain.catalog.rows)}

    def learn(self, lesson: Lesson) -> None:
        counts, group = self.nets["counts"].steps, lesson.portion.group
        if group.rank:  # what was known before counts once
            counts.zero_()
        for rows in blocks(lesson.data):
            batch = lesson.data[rows]
            counts += torch.bincount(batch.items[batch.mask], minlength=len(counts))
        group.add(counts)
        counts[:SPECIAL] = 0

    def scorer(self) -> ItemScorer:
        counts = self.nets["counts"].steps
        return ItemScorer(counts / counts.sum().clamp(min=1))
