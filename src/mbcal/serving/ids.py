"""Ids of decisions."""

from __future__ import annotations

import secrets
import time


class IdSource:
    """Unique ids that increase with time. Random bytes are read in blocks: a system call lets other threads run."""

    def __init__(self) -> None:
        self._random: list[str] = []

    def __call__(self) -> str:
        if not self._random:
            block = secrets.token_hex(8 * 256)
            self._random = [block[start : start + 16] for start in range(0, len(block), 16)]
        return f"{time.time_ns() // 1_000_000:012x}{self._random.pop()}"
