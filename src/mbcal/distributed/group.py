"""Workers that fit one model together: who one is among them, and the one thing they say to each other, a sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Group(Protocol):
    """Some workers, numbered from 0. All of them call the same methods in the same order."""

    rank: int
    size: int

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        """Replace every tensor, in place, by its sum over the group."""


class SingleWorker:
    """A group of one: its sums are what it has."""

    rank, size = 0, 1

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        """Nobody else has anything."""


SINGLE_WORKER = SingleWorker()
