"""A group of workers that fit one model together. All they exchange is sums of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Group(Protocol):
    """Workers that call the same methods in the same order."""

    rank: int
    """This worker's number, from 0."""
    size: int
    """The number of workers."""

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        """Replace every tensor, in place, by its sum over the group."""


class SingleWorker:
    """A group of one worker."""

    rank, size = 0, 1

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        """See `Group`: a sum over one worker is the tensor itself."""


SINGLE_WORKER = SingleWorker()
