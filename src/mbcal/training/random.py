"""Randomness is an argument: every draw is named by what it is for, and nothing seeds globally."""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Key = int | str
_weights = threading.Lock()


def derive_seed(*key: Key) -> int:
    """A seed from a name: the same key gives the same number everywhere, another key an unrelated one."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=7).digest(), "little")


def uniform(seed: int | Tensor, shape: Sequence[int], device: str | torch.device = "cpu", begin: int = 0) -> Tensor:
    """Numbers in [0, 1), float32: the `begin`-th and following of the sequence that the seed names.

    Each number is a function of the seed and its place alone, in integers, so every device draws the same ones and any part
    of a sequence can be had by itself. A seed in a tensor stays on its device.
    """
    places = torch.arange(begin, begin + math.prod(shape), device=device)
    return _fractions(seed, places).view(*shape)


@dataclass(frozen=True)
class Noise:
    """The luck of a batch: each of its rows has numbers of its own, whoever draws them."""

    seed: Tensor
    rows: Tensor | None = None
    """Which rows of the batch are meant; all of them unless told."""

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers in [0, 1) for these rows, shape (rows, …)."""
        if self.rows is None:
            return uniform(self.seed, shape, self.seed.device)
        width = math.prod(shape[1:])
        places = self.rows.unsqueeze(1) * width + torch.arange(width, device=self.rows.device)
        return _fractions(self.seed, places).view(*shape)


def random_integers(seed: int | Tensor, places: Tensor, below: int) -> Tensor:
    """A number in 0 … below - 1 for each place (int64) of the sequence that the seed names."""
    return (_scattered(seed, places) & 0x3FFFFFFFFFFFFFFF).remainder_(below)


def permutation(seed: int, count: int, device: str | torch.device = "cpu") -> Tensor:
    """0 … count - 1 in the order that the seed names, the same on every device."""
    return _scattered(seed, torch.arange(count, device=device)).argsort(stable=True)


def _fractions(seed: int | Tensor, places: Tensor) -> Tensor:
    return (_scattered(seed, places) >> 40 & 0xFFFFFF).float().mul_(2.0**-24)


def _scattered(seed: int | Tensor, places: Tensor) -> Tensor:
    """64 well mixed bits for each place: splitmix64, whose products wrap round as they should."""
    key = _mixed(seed.clone() if isinstance(seed, Tensor) else torch.tensor(seed, device=places.device))
    return _mixed((places * _signed(0x9E3779B97F4A7C15)).add_(key))


def _mixed(bits: Tensor) -> Tensor:
    """In the memory of the bits."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits.bitwise_xor_(_unsigned_shift(bits, shift)).mul_(_signed(factor))
    return bits.bitwise_xor_(_unsigned_shift(bits, 31))


def _unsigned_shift(bits: Tensor, by: int) -> Tensor:
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@contextlib.contextmanager
def seeded_weights(*key: Key) -> Iterator[None]:
    """Within, networks are made with weights drawn for this purpose, on the CPU; nobody else's luck is touched."""
    with _weights:  # torch draws weights from one generator for all threads
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(derive_seed(*key))
        try:
            yield
        finally:
            torch.default_generator.set_state(before)


def hash_order(numbers: NDArray[np.int32], *key: Key) -> NDArray[np.int64]:
    """Indices that sort numbers (N,) by a hash of each number and the key."""
    return np.lexsort((numbers, _hash_numbers(numbers, *key)))


def hash_fractions(numbers: NDArray[np.int32], *key: Key) -> NDArray[np.float64]:
    """A fraction in [0, 1) for each number (N,), from a hash of that number and the key alone."""
    return (_hash_numbers(numbers, *key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _hash_numbers(numbers: NDArray[np.int32], *key: Key) -> NDArray[np.uint64]:
    """64 well mixed bits for each number: the finaliser of splitmix64, whose products wrap around as they should."""
    mixed = numbers.astype(np.uint64) ^ np.uint64(derive_seed(*key))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
