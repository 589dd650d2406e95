"""Randomness is an argument: every draw comes from a generator named by what it is for, and nothing seeds globally."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

Key = int | str


def seed_of(*key: Key) -> int:
    """A seed from a name: the same key gives the same number everywhere, another key an unrelated one."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=7).digest(), "little")


def generator(device: str | torch.device, *key: Key) -> torch.Generator:
    """A generator on a device for one purpose: `generator("cpu", seed, "masking", epoch)`."""
    return torch.Generator(device).manual_seed(seed_of(*key))


@contextlib.contextmanager
def initial_weights(*key: Key) -> Iterator[None]:
    """Within, networks are made with weights drawn for this purpose, on the CPU; nobody else's luck is touched."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed_of(*key))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def hashed_order(numbers: NDArray[np.int32], *key: Key) -> NDArray[np.int64]:
    """Places of the numbers in an order drawn from the key: where a number stands depends on itself alone."""
    mixed = numbers.astype(np.uint64) ^ np.uint64(seed_of(*key))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)  # wraps round, as it should
    return np.lexsort((numbers, mixed ^ (mixed >> np.uint64(31))))
