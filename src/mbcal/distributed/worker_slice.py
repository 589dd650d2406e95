"""A fit shared by several workers: which sessions each holds, and how gradients are summed.

Every worker knows the order of all sessions in an epoch, and takes of each batch the sessions it holds::

    all sessions    0 1 2 3 4 5 6 7 8 9        numbered through the store, held in order of rank
    worker 0        0 1 2 3 4                  begin 0, count 5
    worker 1                  5 6 7 8 9        begin 5, count 5
    a batch         7 2 5 4                    worker 0 takes 2 4, worker 1 takes 7 5

The gradients of their summed losses are added before every step of the optimiser. So a fit on any number of workers equals
the fit on one, up to the order of floating-point additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.errors import TrainingError

GATHER_BLOCK = 1 << 20
"""Entries that `distributed_gather` looks up per round."""


@dataclass(frozen=True)
class WorkerSlice:
    """The sessions that one worker holds: `count` of `total`, numbered from `begin`."""

    begin: int
    count: int
    total: int
    group: Group = SINGLE_WORKER

    @classmethod
    def create(cls, count: int, group: Group, checkpoint: int = 0) -> WorkerSlice:
        """Agree on the slices of all workers.

        Args:
            count: Sessions that this worker holds.
            group: The workers.
            checkpoint: The checkpoint this worker resumes from; must be the same for all.

        Returns:
            This worker's slice.

        Raises:
            TrainingError: If the checkpoints differ, or a worker holds no sessions.
        """
        if group.size == 1:
            return cls(0, count, count, group)
        gathered = all_gather_ints(group, count, checkpoint)
        counts, checkpoints = gathered[:, 0].tolist(), gathered[:, 1].tolist()
        if len(set(checkpoints)) > 1:
            problem = "the workers do not see the same checkpoint"
            raise TrainingError(f"fit: {problem}; write to a folder that every machine of the cluster shares")
        if not all(counts):
            problem = f"{group.size} workers, but users for only {sum(map(bool, counts))}"
            raise TrainingError(f"fit: {problem}; take fewer workers")
        return cls(sum(counts[: group.rank]), count, sum(counts), group)

    def all_gather(self, values: Tensor) -> Tensor:
        """Concatenate the values (count, …) of all workers, in order of session: (total, …)."""
        if self.group.size == 1:
            return values
        gathered = values.new_zeros(self.total, *values.shape[1:])
        gathered[self.begin : self.begin + len(values)] = values
        self.group.all_reduce_sum(gathered)
        return gathered

    def local_rows(self, numbers: Tensor) -> Tensor:
        """The rows on this worker of those of the sessions (N,) that it holds."""
        return numbers[(numbers >= self.begin) & (numbers < self.begin + self.count)] - self.begin

    def row_index(self, device: torch.device, times: int = 1) -> Tensor | None:
        """The row on this worker of every session.

        Args:
            device: Where to put it.
            times: How many times the data holds all sessions, one copy after another.

        Returns:
            (times · total,) int64, -1 for sessions of other workers; None if this worker holds all.
        """
        if self.group.size == 1:
            return None
        index = torch.full((times, self.total), -1, device=device)
        local = torch.arange(times * self.count, device=device).view(times, self.count)
        index[:, self.begin : self.begin + self.count] = local
        return index.flatten()


def all_gather_ints(group: Group, *numbers: int) -> Tensor:
    """Gather the numbers of every worker: (size, numbers) int64, by rank."""
    gathered = torch.zeros(group.size, len(numbers), dtype=torch.int64)
    gathered[group.rank] = torch.tensor(numbers)
    group.all_reduce_sum(gathered)
    return gathered


def all_reduce_count(count: int, group: Group) -> int:
    """The sum of a count over the group."""
    return count if group.size == 1 else int(all_gather_ints(group, count).sum())


def distributed_gather(values: Tensor, indices: Tensor, group: Group) -> Tensor:
    """Look up entries of an array that is spread over the workers.

    The array is the concatenation of the workers' values in order of rank. In rounds of `GATHER_BLOCK` entries, all workers
    publish the indices they want, and each fills in the entries it holds.

    Args:
        values: (n,) this worker's part of the array.
        indices: (m,) int64 entries that this worker wants; each worker may want others.
        group: The workers.

    Returns:
        (m,) the entries.
    """
    if group.size == 1:
        return values[indices]
    sizes = all_gather_ints(group, len(values), len(indices))
    begin, first = sizes[: group.rank].sum(0).tolist()  # where this worker's values, and its indices among all, begin
    found, total = torch.empty_like(indices, dtype=values.dtype), int(sizes[:, 1].sum())
    for low in range(0, total, GATHER_BLOCK):
        high = min(low + GATHER_BLOCK, total)
        own = slice(max(low - first, 0), max(high - first, 0))  # this worker's indices in this round
        at = slice(max(first - low, 0), max(first - low, 0) + len(indices[own]))  # their position in the round
        wanted = indices.new_zeros(high - low)
        wanted[at] = indices[own]
        group.all_reduce_sum(wanted)
        is_local = (wanted >= begin) & (wanted < begin + len(values))
        entries = values.new_zeros(high - low)
        entries[is_local] = values[wanted[is_local] - begin]
        group.all_reduce_sum(entries)
        found[own] = entries[at]
    return found


def all_reduce_gradients(parameters: Sequence[nn.Parameter], sums: Tensor, group: Group) -> Tensor:
    """Replace the gradients of each worker's summed loss by the gradient of the mean loss over the whole batch.

    One message per call. A parameter that no worker used keeps no gradient.

    Args:
        parameters: The parameters, the same on every worker.
        sums: (2,) this worker's summed loss and number of steps.
        group: The workers.

    Returns:
        (2,) summed loss and number of steps of all workers.
    """
    gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters]
    used = sums.new_tensor([parameter.grad is not None for parameter in parameters])
    message = torch.cat([*(gradient.flatten() for gradient in gradients), used, sums])
    group.all_reduce_sum(message)
    flat, used, sums = torch.split(message, [len(message) - len(used) - 2, len(used), 2])
    flat /= sums[1].clamp(min=1)
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    for parameter, part, is_used in zip(parameters, parts, used.tolist(), strict=True):
        parameter.grad = part.view_as(parameter) if is_used else None
    return sums


def require_equal_weights(nets: dict[str, nn.Module], agent: str, group: Group) -> None:
    """Check after a fit that all workers hold the same networks.

    Args:
        nets: Networks by name.
        agent: The agent's name, for the message.
        group: The workers.

    Raises:
        TrainingError: If they differ, because the method learned something that it did not sum over the group.
    """
    if group.size == 1:
        return
    totals = [value.double().sum() for net in nets.values() for value in net.state_dict().values()]
    local = torch.stack(totals).cpu() if totals else torch.zeros(0, dtype=torch.float64)
    gathered = local.new_zeros(group.size, len(local))
    gathered[group.rank] = local
    group.all_reduce_sum(gathered)
    if not bool((gathered == gathered[0]).all()):
        problem = f"the {agent} agent cannot be fitted on several workers: they ended with different weights"
        raise TrainingError(f"fit: {problem}; sum what it learns over context.worker_slice.group, or fit it on one worker")
