"""Weights and optimiser state as plain arrays, for checkpoints and models on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Arrays = Mapping[str, NDArray[Any]]


def state_to_arrays(net: nn.Module, optimiser: torch.optim.Adam | None) -> dict[str, NDArray[Any]]:
    """Copy the state of a network and its optimiser into arrays.

    Args:
        net: The network.
        optimiser: Its Adam, or None for the weights alone.

    Returns:
        `weight/NAME` for every parameter and buffer, `adam/NAME/KEY` for every entry of the optimiser's state.
    """
    tensors = {f"weight/{name}": value for name, value in net.state_dict().items()}
    if optimiser is not None:
        for name, parameter in net.named_parameters():
            for key, value in optimiser.state.get(parameter, {}).items():
                tensors[f"adam/{name}/{key}"] = value
    return {name: np.array(value.detach().cpu().numpy()) for name, value in tensors.items()}


def load_state_arrays(net: nn.Module, optimiser: torch.optim.Adam | None, arrays: Arrays) -> None:
    """Restore what `state_to_arrays` returned.

    Args:
        net: A network of the same architecture.
        optimiser: Its Adam, or None to restore the weights alone.
        arrays: The arrays by name.

    Raises:
        RuntimeError: If names or shapes do not fit the network.
    """
    net.load_state_dict({name: torch.from_numpy(array) for name, array in without_prefix(arrays, "weight/").items()})
    if optimiser is None:
        return
    for name, parameter in net.named_parameters():
        state = without_prefix(arrays, f"adam/{name}/")
        if state:
            optimiser.state[parameter] = {
                key: torch.from_numpy(np.array(value)).to(_state_device(optimiser, parameter, value))
                for key, value in state.items()
            }


def without_prefix(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _state_device(optimiser: torch.optim.Adam, parameter: Tensor, value: NDArray[Any]) -> torch.device:
    """Moments lie with their parameter; the step counter does so only in a fused Adam."""
    return parameter.device if np.ndim(value) or optimiser.defaults["fused"] else torch.device("cpu")
