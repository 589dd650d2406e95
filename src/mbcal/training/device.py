"""Where to compute."""

from __future__ import annotations

from typing import get_args

import torch

from mbcal.config import Device
from mbcal.errors import OptionError, nearest


def resolve_device(name: str) -> torch.device:
    """`auto` takes the GPU where there is one."""
    if name not in get_args(Device):
        raise OptionError(
            f"device: {name!r} is unknown; known are {', '.join(get_args(Device))}.{nearest(name, get_args(Device))}"
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("device: cuda was asked for, but PyTorch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else name.replace("auto", "cpu"))
