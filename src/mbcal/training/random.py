"""Random numbers as functions of a seed and an index: no global state, and the same numbers on every device.

A seed is derived from a key that says what the numbers are for (`derive_seed`). Every number then depends on the seed and
on its index in the seed's sequence alone, computed in integers. So any part of a sequence can be computed by itself, a CPU
and a GPU agree to the bit, and a CUDA graph that reads its seed from a tensor gets new numbers at every replay.
"""

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
"""One part of a seed's name."""

SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15
SPLITMIX_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shift and factor of the first two rounds of splitmix64's finaliser; the third is a shift by 31."""
SPLITMIX_LAST_SHIFT = 31

_weights_lock = threading.Lock()


def derive_seed(*key: Key) -> int:
    """A seed in [0, 2^56) from a key: equal keys give equal seeds on every machine, different keys unrelated ones."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=7).digest(), "little")


def uniform(seed: int | Tensor, shape: Sequence[int], device: str | torch.device = "cpu", begin: int = 0) -> Tensor:
    """Uniform numbers in [0, 1): those at index `begin` and after in the seed's sequence.

    Args:
        seed: The seed; if a tensor, () int64 on the device.
        shape: Shape of the result, filled in row-major order.
        device: Where to compute.
        begin: Index of the first number.

    Returns:
        Float32 of that shape.
    """
    indices = torch.arange(begin, begin + math.prod(shape), device=device)
    return _fractions(seed, indices).view(*shape)


@dataclass(frozen=True)
class Noise:
    """The noise of a batch. Each row has its own numbers, whichever worker computes them."""

    seed: Tensor
    """() int64."""
    rows: Tensor | None = None
    """(B,) which rows of the batch are here; None for all."""

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform numbers in [0, 1) for these rows, of shape (B, …)."""
        if self.rows is None:
            return uniform(self.seed, shape, self.seed.device)
        width = math.prod(shape[1:])
        indices = self.rows.unsqueeze(1) * width + torch.arange(width, device=self.rows.device)
        return _fractions(self.seed, indices).view(*shape)


def random_integers(seed: int | Tensor, indices: Tensor, below: int | Tensor) -> Tensor:
    """Integers in 0 … below - 1, int64: those at the given indices (…) int64 of the seed's sequence; `below` may be (…)."""
    return (_random_bits(seed, indices) & 0x3FFFFFFFFFFFFFFF).remainder_(below)


def permutation(seed: int, count: int, device: str | torch.device = "cpu") -> Tensor:
    """A random permutation of 0 … count - 1, (count,) int64."""
    return _random_bits(seed, torch.arange(count, device=device)).argsort(stable=True)


@contextlib.contextmanager
def seeded_weights(*key: Key) -> Iterator[None]:
    """Within, torch initialises weights on the CPU by a seed derived from the key; its generator is restored afterwards."""
    with _weights_lock:  # torch has one CPU generator for all threads
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(derive_seed(*key))
        try:
            yield
        finally:
            torch.default_generator.set_state(before)


def hash_order(numbers: NDArray[np.int32], *key: Key) -> NDArray[np.int64]:
    """Indices (N,) that sort numbers (N,) by a hash of each number and the key."""
    return np.lexsort((numbers, _hash_numbers(numbers, *key)))


def hash_fractions(numbers: NDArray[np.int32], *key: Key) -> NDArray[np.float64]:
    """A fraction in [0, 1) for each number (N,), from a hash of that number and the key alone."""
    return (_hash_numbers(numbers, *key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _fractions(seed: int | Tensor, indices: Tensor) -> Tensor:
    """Float32 in [0, 1) with 24 random bits each."""
    return (_random_bits(seed, indices) >> 40 & 0xFFFFFF).float().mul_(2.0**-24)


def _random_bits(seed: int | Tensor, indices: Tensor) -> Tensor:
    """64 random bits (int64) per index: splitmix64. Products wrap around, as the algorithm requires."""
    offset = _mix_(seed.clone() if isinstance(seed, Tensor) else torch.tensor(seed, device=indices.device))
    return _mix_((indices * _as_signed(SPLITMIX_INCREMENT)).add_(offset))


def _mix_(bits: Tensor) -> Tensor:
    """The finaliser of splitmix64, in place."""
    for shift, factor in SPLITMIX_ROUNDS:
        bits.bitwise_xor_(_unsigned_shift(bits, shift)).mul_(_as_signed(factor))
    return bits.bitwise_xor_(_unsigned_shift(bits, SPLITMIX_LAST_SHIFT))


def _unsigned_shift(bits: Tensor, by: int) -> Tensor:
    """Shift right as if unsigned; torch's own shift copies the sign."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def _as_signed(number: int) -> int:
    """The int64 with the bits of a uint64."""
    return number - (1 << 64) if number >> 63 else number


def _hash_numbers(numbers: NDArray[np.int32], *key: Key) -> NDArray[np.uint64]:
    """64 hashed bits per number: the finaliser of splitmix64 in numpy. Products wrap around, as the algorithm requires."""
    mixed = numbers.astype(np.uint64) ^ np.uint64(derive_seed(*key))
    for shift, factor in SPLITMIX_ROUNDS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(SPLITMIX_LAST_SHIFT))
