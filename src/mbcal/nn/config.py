"""Sizes and inputs of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mbcal.errors import OptionError, nearest

Cell = Literal["gru", "lstm", "transformer"]
"""The family of a network: `recurrent.RecurrentNet` with either cell, or `transformer.TransformerNet`."""

UserEncoder = Literal["history", "id", "none"]
"""What the state before the first step comes from: the history, an embedding of the user, or nothing."""

MAX_SIZE = 4096


@dataclass(frozen=True)
class NetConfig:
    """Sizes and inputs of one network.

    Raises:
        OptionError: If a size is outside 1..4096, or a name is unknown.
    """

    cell: Cell = "gru"
    hidden: int = 64
    """Width of the hidden state, H."""
    embedding: int = 32
    """Width of each embedding: of behaviours, of item ids, and of every item feature."""
    features: tuple[str, ...] | None = None
    """Item features read beside the id. None: those the store proposes for agents, or none without a store."""
    user: UserEncoder = "history"
    embedding_scale: float = 0.2
    """Standard deviation of initial embeddings. torch's default of 1 drowns what is learned (docs/training.md)."""

    def __post_init__(self) -> None:
        for name in ("hidden", "embedding"):
            if not 1 <= getattr(self, name) <= MAX_SIZE:
                raise OptionError(f"{name}: must be at least 1 and at most {MAX_SIZE}, got {getattr(self, name)}")
        for name, known in (("cell", get_args(Cell)), ("user", get_args(UserEncoder))):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"{name}: {value!r} is unknown; known are {', '.join(known)}.{nearest(value, known)}")
