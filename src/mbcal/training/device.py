"""The device to compute on."""

from __future__ import annotations

from typing import get_args

import torch

from mbcal.config import Device
from mbcal.errors import OptionError, nearest


def resolve_device(name: str) -> torch.device:
    """Return the device of a name.

    Args:
        name: `cpu`, `cuda`, or `auto` for a GPU if PyTorch sees one, else the CPU.

    Raises:
        OptionError: If the name is unknown, or `cuda` is asked for without a GPU.
    """
    known = get_args(Device)
    if name not in known:
        raise OptionError(f"device: {name!r} is unknown; known are {', '.join(known)}.{nearest(name, known)}")
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("device: cuda was asked for, but PyTorch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else name.replace("auto", "cpu"))


def release_memory() -> None:
    """Give memory that PyTorch holds on a GPU but does not use back to other processes; without a GPU, do nothing.

    PyTorch keeps what it once needed: tens of gigabytes after the largest step of a fit. Then processes that share a GPU run
    out of memory, though none of them uses much.
    """
    torch.cuda.empty_cache()
