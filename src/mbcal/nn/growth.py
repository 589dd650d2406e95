"""Networks that grow: tables of items and of categories get rows, and so does the optimiser's state; none is changed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mbcal.nn.fields import FieldEncoder, spread_rows
from mbcal.types import Catalog, SessionFields


@runtime_checkable
class Growable(Protocol):
    """A module that holds something per item, such as `ItemEmbedding`."""

    def grow(self, catalog: Catalog) -> None:
        """Append rows for new items.

        Args:
            catalog: The old catalogue, extended.
        """


@torch.no_grad()
def grow_network(net: nn.Module, optimiser: torch.optim.Adam | None, catalog: Catalog) -> None:
    """Append rows for new items to every module that holds something per item; outputs for old items do not change.

    Parameters stay the same objects, so the optimiser keeps its state. Adam's moments of new rows are zero.

    Args:
        net: The network.
        optimiser: Its optimiser, or None if it is not trained.
        catalog: The network's catalogue, extended.
    """
    for module in net.modules():
        if isinstance(module, Growable):
            module.grow(catalog)
    for parameter, state in optimiser.state.items() if optimiser is not None else ():
        for name, moment in state.items():
            if moment.dim() and moment.shape != parameter.shape:
                state[name] = padded_rows(moment, len(parameter))


@torch.no_grad()
def grow_fields(net: nn.Module, optimiser: torch.optim.Adam | None, fields: SessionFields) -> None:
    """Give new values of categories rows of their own, which begin as those of unknown values: without any effect.

    Parameters stay the same objects. Adam's moments of new rows are zero.

    Args:
        net: The network.
        optimiser: Its optimiser, or None if it is not trained.
        fields: The network's fields, extended (`SessionFields.extended`).
    """
    for module in net.modules():
        if isinstance(getattr(module, "fields", None), SessionFields):
            module.fields = fields  # type: ignore[assignment]  # no tensor
        if isinstance(module, FieldEncoder):
            rows = module.grow_values(fields.user if module.reads == "user_features" else fields.context)
            state = {} if optimiser is None else optimiser.state.get(module.codes, {})
            for name, moment in state.items():
                if moment.dim():
                    state[name] = spread_rows(moment, rows, len(module.codes))


def grow_rows(parameter: Tensor, rows: int, value: Tensor) -> None:
    """Append rows with one value (D,) to a parameter (N, D), in place."""
    parameter.data = torch.cat([parameter.data, value.expand(rows - len(parameter), -1)])
    parameter.grad = None


def padded_rows(tensor: Tensor, rows: int) -> Tensor:
    """Append rows of zeros: (N, …) -> (rows, …)."""
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
