"""Popular: what was shown most often in the log, to everybody."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mbcal.agents.agent import Agent, Domain, Lesson
from mbcal.scorers import ItemScorer
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
        shown = lesson.sessions.items[lesson.sessions.mask]
        counts = self.nets["counts"].steps
        counts += torch.from_numpy(np.bincount(shown[shown >= SPECIAL], minlength=len(counts))).to(counts.device)

    def scorer(self) -> ItemScorer:
        counts = self.nets["counts"].steps
        return ItemScorer(counts / counts.sum().clamp(min=1))
