"""Which part of a store each user belongs to: simulator, train or test.

A user's part depends on nothing but the name, the seed and the shares. So it stays the same when the log grows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def part_thresholds(split: tuple[float, float, float]) -> tuple[int, int]:
    """Return two bounds of hashes: users below the first are in part simulator, below the second in train, others in test.

    Args:
        split: Shares of users in the three parts.
    """
    return round(split[0] * 2**64), round((split[0] + split[1]) * 2**64)


def part_of(user_hash: int, split: tuple[float, float, float]) -> int:
    """Return the index in `PARTS` of the part of a user.

    Args:
        user_hash: `stable_hash` of the user's name.
        split: Shares of users in the three parts.
    """
    first, second = part_thresholds(split)
    return int(user_hash >= first) + int(user_hash >= second)


def order_users(names: Iterable[str], split: tuple[float, float, float], seed: int) -> tuple[list[str], NDArray[np.uint8]]:
    """Put users into the order of a store: by part, then by hash.

    Args:
        names: Names of the users, U of them.
        split: Shares of users in the three parts.
        seed: Seed of the hashes.

    Returns:
        The names in order, and the index in `PARTS` of each one's part, (U,).
    """
    hashes = {name: stable_hash(name, seed, "part") for name in names}
    ordered = sorted(hashes, key=lambda name: (part_of(hashes[name], split), hashes[name], name))
    return ordered, np.asarray([part_of(hashes[name], split) for name in ordered], np.uint8)


def stable_hash(name: str, seed: int, purpose: str) -> int:
    """Return a seeded 64-bit hash of a name that never changes, the same in Python and in SQL (`stable_hash_sql`)."""
    return int.from_bytes(hashlib.md5(f"{purpose}:{seed}:{name}".encode(), usedforsecurity=False).digest()[8:], "little")


def stable_hash_sql(column: str, seed: int, purpose: str) -> str:
    """Return a DuckDB expression for `stable_hash` of a column."""
    return f"md5_number_lower('{purpose}:{seed}:' || {column}::VARCHAR)"
