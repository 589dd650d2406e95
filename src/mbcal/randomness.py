"""Randomness is an argument: every draw comes from a generator named by what it is for, and nothing seeds globally."""

from __future__ import annotations

import hashlib

import torch

Key = int | str


def seed_of(*key: Key) -> int:
    """A seed from a name: the same key gives the same number everywhere, another key an unrelated one."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=7).digest(), "little")


def generator(device: str | torch.device, *key: Key) -> torch.Generator:
    """A generator on a device for one purpose: `generator("cpu", seed, "masking", epoch)`."""
    return torch.Generator(device).manual_seed(seed_of(*key))
