"""Sizes and choices of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mbcal.errors import OptionError, nearest

Cell = Literal["gru", "lstm", "transformer"]
"""The family of a network; the transformer lives in `attention.py`."""


UserEncoder = Literal["history", "id", "none"]


@dataclass(frozen=True)
class NetConfig:
    """Sizes and choices of one network."""

    cell: Cell = "gru"
    hidden: int = 32
    embedding: int = 32
    features: tuple[str, ...] | None = None
    """Item features seen beside the id. None: those the store proposes for agents, or none without a store."""
    user: UserEncoder = "history"

    def __post_init__(self) -> None:
        for name in ("hidden", "embedding"):
            if not 1 <= getattr(self, name) <= 4096:
                raise OptionError(f"{name}: must be at least 1 and at most 4096, got {getattr(self, name)}")
        for name, known in (("cell", get_args(Cell)), ("user", get_args(UserEncoder))):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"{name}: {value!r} is unknown; known are {', '.join(known)}.{nearest(value, known)}")
