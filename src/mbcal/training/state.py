"""Weights and optimiser state as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def state_to_arrays(net: nn.Module, optimiser: torch.optim.Adam | None) -> dict[str, NDArray[Any]]:
    """Weights, and where Adam stands, as arrays by name."""
    arrays = {f"weight/{name}": value for name, value in net.state_dict().items()}
    if optimiser is not None:
        for name, parameter in net.named_parameters():
            for key, value in optimiser.state.get(parameter, {}).items():
                arrays[f"adam/{name}/{key}"] = value
    return {name: np.array(value.detach().cpu().numpy()) for name, value in arrays.items()}


def load_state_arrays(net: nn.Module, optimiser: torch.optim.Adam | None, arrays: Mapping[str, NDArray[Any]]) -> None:
    """The reverse of `state_to_arrays`; shapes must fit."""
    weights = {name: torch.from_numpy(array) for name, array in _unprefixed(arrays, "weight/").items()}
    net.load_state_dict(weights)
    if optimiser is None:
        return
    for name, parameter in net.named_parameters():
        state = _unprefixed(arrays, f"adam/{name}/")
        if state:
            optimiser.state[parameter] = {
                key: torch.from_numpy(np.array(value)).to(
                    parameter.device if np.ndim(value) else _step_device(optimiser, parameter)
                )
                for key, value in state.items()
            }


def _step_device(optimiser: torch.optim.Adam, parameter: Tensor) -> torch.device:
    """Fused Adam counts its steps where the parameters are."""
    return parameter.device if optimiser.defaults["fused"] else torch.device("cpu")


def _unprefixed(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
