"""What a fit needs to know when several workers share it: who holds which sessions, and how gradients are added.

All workers know the order in which the sessions of an epoch come, and take of each batch those that lie with them::

    all sessions    0 1 2 3 4 5 6 7 8 9        numbered through the store, held in order of rank
    worker 0        0 1 2 3 4                  begin 0, count 5
    worker 1                  5 6 7 8 9        begin 5, count 5
    a batch         7 2 5 4                    worker 0 takes 2 4, worker 1 takes 7 5

The gradients of their summed losses are added before every step of the optimiser. So a fit on any number of workers is the
fit on one, up to the order in which numbers are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.errors import TrainingError

GATHER_BLOCK = 1 << 20
"""Numbers that a group looks up together."""


@dataclass(frozen=True)
class WorkerSlice:
    """The sessions that lie with one worker: `count` of `total`, numbered from `begin`."""

    begin: int
    count: int
    total: int
    group: Group = SINGLE_WORKER

    @classmethod
    def create(cls, count: int, group: Group, checkpoint: int = 0) -> WorkerSlice:
        """What each worker holds is told to all; they also agree on the checkpoint they go on from."""
        if group.size == 1:
            return cls(0, count, count, group)
        told = all_gather_ints(group, count, checkpoint)
        if len(set(told[:, 1].tolist())) > 1:
            rule = "the workers do not see the same checkpoint"
            raise TrainingError(f"fit: {rule}; write to a folder that every machine of the cluster shares")
        counts = told[:, 0].tolist()
        if not all(counts):
            raise TrainingError(
                f"fit: {group.size} workers, but users for only {sum(map(bool, counts))}; take fewer workers"
            )
        return cls(sum(counts[: group.rank]), count, sum(counts), group)

    def all_gather(self, mine: Tensor) -> Tensor:
        """(total, …): what all_gather_ints has of it (count, …), by number."""
        if self.group.size == 1:
            return mine
        made = mine.new_zeros(self.total, *mine.shape[1:])
        made[self.begin : self.begin + len(mine)] = mine
        self.group.all_reduce_sum(made)
        return made

    def local_rows(self, numbers: Tensor) -> Tensor:
        """The rows of those of these sessions that lie here."""
        return numbers[(numbers >= self.begin) & (numbers < self.begin + self.count)] - self.begin

    def row_index(self, device: torch.device, times: int = 1) -> Tensor | None:
        """(times · total,) row of every session here, -1 where another worker has it; None if all are here.

        With `times` all sessions come again, in another form, and so do their rows.
        """
        if self.group.size == 1:
            return None
        made = torch.full((times, self.total), -1, device=device)
        mine = torch.arange(times * self.count, device=device).view(times, self.count)
        made[:, self.begin : self.begin + self.count] = mine
        return made.flatten()


def all_gather_ints(group: Group, *numbers: int) -> Tensor:
    """(size, numbers): what each worker says."""
    told = torch.zeros(group.size, len(numbers), dtype=torch.int64)
    told[group.rank] = torch.tensor(numbers)
    group.all_reduce_sum(told)
    return told


def all_reduce_count(mine: int, group: Group) -> int:
    """The sum over the group."""
    return mine if group.size == 1 else int(all_gather_ints(group, mine).sum())


def distributed_gather(mine: Tensor, wanted: Tensor, group: Group) -> Tensor:
    """Entries `wanted` of everybody's (n,) one after another in order of rank. Each worker may want others."""
    if group.size == 1:
        return mine[wanted]
    told = all_gather_ints(group, len(mine), len(wanted))
    begin, first = told[: group.rank].sum(0).tolist()
    found, total = torch.empty_like(wanted, dtype=mine.dtype), int(told[:, 1].sum())
    for low in range(0, total, GATHER_BLOCK):
        high = min(low + GATHER_BLOCK, total)
        own = slice(max(low - first, 0), max(high - first, 0))  # of what this worker wants
        at = slice(max(first - low, 0), max(first - low, 0) + len(wanted[own]))
        asked = wanted.new_zeros(high - low)
        asked[at] = wanted[own]
        group.all_reduce_sum(asked)
        known = (asked >= begin) & (asked < begin + len(mine))
        answered = mine.new_zeros(high - low)
        answered[known] = mine[asked[known] - begin]
        group.all_reduce_sum(answered)
        found[own] = answered[at]
    return found


def all_reduce_gradients(parameters: Sequence[nn.Parameter], sums: Tensor, group: Group) -> Tensor:
    """Make of all_gather_ints's gradients of a summed loss that of the mean over the whole batch; one message a step.

    `sums` (2,) are the summed loss and its count, and come back added. A parameter that nobody used has no gradient.
    """
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    used = sums.new_tensor([each.grad is not None for each in parameters])
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), used, sums])
    group.all_reduce_sum(flat)
    rest, used, sums = torch.split(flat, [len(flat) - len(used) - 2, len(used), 2])
    rest /= sums[1].clamp(min=1)
    parts = torch.split(rest, [each.numel() for each in parameters])
    for parameter, part, met in zip(parameters, parts, used.tolist(), strict=True):
        parameter.grad = part.view_as(parameter) if met else None
    return sums


def require_equal_weights(nets: dict[str, nn.Module], whose: str, group: Group) -> None:
    """Refuse networks that differ between workers: what taught them did not add up."""
    if group.size == 1:
        return
    values = [value.double().sum() for net in nets.values() for value in net.state_dict().values()]
    mine = torch.stack(values).cpu() if values else torch.zeros(0, dtype=torch.float64)
    seen = mine.new_zeros(group.size, len(mine))
    seen[group.rank] = mine
    group.all_reduce_sum(seen)
    if not bool((seen == seen[0]).all()):
        rule = f"the {whose} agent cannot be fitted on several workers: they ended with different weights"
        raise TrainingError(f"{rule}; add up what it learns over context.worker_slice.group, or fit it on one")
