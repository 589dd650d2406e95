"""Sessions on the device of the networks."""

from __future__ import annotations

import torch
from torch import Tensor

from mbcal.types import Sessions, SessionTensors


class DeviceSessions:
    """Sessions within the network's reach: whole on its device where they fit, else sent there batch by batch."""

    def __init__(self, sessions: Sessions | SessionTensors, device: torch.device, candidates: bool = False) -> None:
        self.device = device
        given = sessions.tensors() if isinstance(sessions, Sessions) else sessions
        given = given.without("propensities", "timestamps", *(() if candidates else ("candidates",)))
        taken = sum(tensor.nbytes for _, tensor in given.tensors())
        fits = given.device == device or device.type == "cpu" or taken < 0.5 * torch.cuda.mem_get_info(device)[0]
        self.tensors = given.to(device) if fits else given

    @property
    def is_on_device(self) -> bool:
        """Whether all of it lies where the network is."""
        return self.tensors.device.type == self.device.type

    @property
    def mask(self) -> Tensor:
        """(N, T), true where a step counts."""
        return self.tensors.mask.to(self.device)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, rows: Tensor | slice) -> SessionTensors:
        if isinstance(rows, Tensor):
            rows = rows.to(self.tensors.items.device)
        return self.tensors[rows].to(self.device)

    def blocks(self) -> list[slice]:
        """Sessions a look at a time: as many as a CPU's cache or a GPU's memory likes."""
        size = 512 if self.device.type == "cpu" else 16_384
        return [slice(begin, begin + size) for begin in range(0, len(self), size)]
