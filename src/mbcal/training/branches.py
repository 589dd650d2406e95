"""Branches of sessions: what several items in one state would be followed by (`environments.branches` imagines them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.nn.label_scaler import MIN_SCALE
from mbcal.types import SessionTensors


@dataclass(frozen=True)
class Branches:
    """N sessions, each with a step at which it branches into M items."""

    sessions: SessionTensors
    """The sessions up to the step of the branch, which is their last."""
    step: Tensor
    """(N,) int64, the step of the branch."""
    items: Tensor
    """(N, M) catalogue rows shown at that step; the policy's own choice first."""
    is_item: Tensor
    """(N, M) bool; false where a session had fewer available candidates, or had ended before."""
    futures: Tensor
    """(N, M) what follows each item, in reward units; only differences within a session count."""

    def __len__(self) -> int:
        return len(self.step)

    def __getitem__(self, rows: Tensor) -> Branches:
        return Branches(self.sessions[rows], *(part[rows] for part in (self.step, self.items, self.is_item, self.futures)))

    @classmethod
    def concat(cls, parts: Sequence[Branches]) -> Branches:
        """Join branches with as many items each."""
        columns = ([part.step, part.items, part.is_item, part.futures] for part in parts)
        sessions = SessionTensors.concat([part.sessions for part in parts])
        return cls(sessions, *(torch.cat(column) for column in zip(*columns, strict=True)))

    def advantages(self) -> Tensor:
        """Return each future less the mean of its session's branches, (N, M); 0 where there is no item."""
        return torch.where(self.is_item, self.futures - masked_mean(self.futures, self.is_item), 0)

    def scale(self, group: Group = SINGLE_WORKER) -> float:
        """Return the standard deviation of the advantages of all workers; 1 if they are all 0."""
        sums = torch.stack([self.advantages().double().square().sum(), self.is_item.double().sum()])
        group.all_reduce_sum(sums)
        deviation = float((sums[0] / sums[1].clamp(min=1)).sqrt())
        return deviation if deviation > MIN_SCALE else 1.0


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the last axis of values (N, M) where mask (N, M) is true, (N, 1); 0 without any."""
    return torch.where(mask, values, 0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
