"""Sessions where the networks are: on their device if they fit, else moved there batch by batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mbcal.types import Sessions, SessionTensors

CPU_BLOCK = 512
"""Sessions in a block on a CPU: what fits its cache."""
GPU_BLOCK_STEPS = 160_000
"""Steps in a block on a GPU: what keeps it busy, and leaves memory for other processes."""
GPU_MEMORY_SHARE = 0.5
"""Sessions are kept on a GPU if they take less than this share of its free memory."""


class DeviceSessions:
    """N sessions that can be indexed into batches on one device.

    Args:
        sessions: Arrays, or tensors on any device.
        device: Where batches are wanted.
        candidates: Whether batches carry candidates. Propensities are always dropped, and timestamps unless candidates that
            are alive at their time may have to be sampled.
    """

    def __init__(self, sessions: Sessions | SessionTensors, device: torch.device, candidates: bool = False) -> None:
        self.device = device
        tensors = sessions.tensors() if isinstance(sessions, Sessions) else sessions
        times = () if tensors.catalog.life is not None else ("timestamps",)
        tensors = tensors.without("propensities", *times, *(() if candidates else ("candidates",)))
        self.tensors = tensors.to(device) if _fits(tensors, device) else tensors

    @property
    def is_on_device(self) -> bool:
        """Whether all sessions already lie on the device."""
        return self.tensors.device.type == self.device.type

    @property
    def mask(self) -> Tensor:
        """(N, T) bool on the device, true where a step counts."""
        return self.tensors.mask.to(self.device)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, rows: Tensor | slice) -> SessionTensors:
        """Some sessions, on the device."""
        if isinstance(rows, Tensor):
            rows = rows.to(self.tensors.items.device)
        return self.tensors[rows].to(self.device)

    def blocks(self) -> list[slice]:
        """Slices that cover all sessions, each of a size that suits the device."""
        size = CPU_BLOCK if self.device.type == "cpu" else max(GPU_BLOCK_STEPS // self.tensors.horizon, 1)
        return [slice(begin, begin + size) for begin in range(0, len(self), size)]

    def map_blocks(
        self, function: Callable[[SessionTensors], Tensor], on_block: Callable[[int], None] = lambda _: None
    ) -> Tensor:
        """Apply a function to all sessions, a block at a time.

        Args:
            function: From B sessions to a tensor (B, …).
            on_block: Called with the size of every block that is done.

        Returns:
            The results of all blocks, (N, …).
        """
        results = []
        for rows in self.blocks():
            results.append(function(self[rows]))
            on_block(len(results[-1]))
        return torch.cat(results)


def _fits(tensors: SessionTensors, device: torch.device) -> bool:
    if tensors.device == device or device.type == "cpu":
        return True
    needed = sum(tensor.nbytes for _, tensor in tensors.tensors())
    return needed < GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
