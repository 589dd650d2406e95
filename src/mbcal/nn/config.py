"""Sizes and inputs of a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from mbcal.errors import OptionError, nearest

Cell = Literal["gru", "lstm", "transformer"]
"""The family of a network: `recurrent.RecurrentNet` with either cell, or `transformer.TransformerNet`."""

UserEncoder = Literal["history", "id", "none"]
"""What the state before the first step comes from: the history, an embedding of the user, or nothing."""

MAX_SIZE = 4096
HIDDEN, LARGE_HIDDEN = 64, 128
"""Widths of the hidden state that are chosen by data."""
LARGE_LOG_STEPS = 2_000_000
"""Steps to learn from for which the large one is chosen."""


@dataclass(frozen=True)
class NetConfig:
    """Sizes and inputs of one network.

    Raises:
        OptionError: If a size is outside 1..4096, or a name is unknown.
    """

    cell: Cell = "gru"
    hidden: int | None = None
    """Width of the hidden state, H. None: 64, or 128 if there are two million steps to learn from."""
    embedding: int = 32
    """Width of each embedding: of behaviours, of item ids, and of every item feature."""
    features: tuple[str, ...] | None = None
    """Item features read beside the id. None: those the store proposes for agents, or none without a store."""
    context: tuple[str, ...] | None = None
    """Fields of steps that are read. None: all that the sessions have."""
    user_features: tuple[str, ...] | None = None
    """Fields of users that are read, beside what `user` says. None: all that the sessions have."""
    user: UserEncoder = "history"
    embedding_scale: float = 0.2
    """Standard deviation of initial embeddings. torch's default of 1 drowns what is learned (docs/training.md)."""

    def __post_init__(self) -> None:
        for name, value in (("hidden", self.width), ("embedding", self.embedding)):
            if not 1 <= value <= MAX_SIZE:
                raise OptionError(f"{name}: must be at least 1 and at most {MAX_SIZE}, got {value}")
        for name, choice, known in (("cell", self.cell, get_args(Cell)), ("user", self.user, get_args(UserEncoder))):
            if choice not in known:
                raise OptionError(f"{name}: {choice!r} is unknown; known are {', '.join(known)}.{nearest(choice, known)}")

    @property
    def width(self) -> int:
        """Width of the hidden state: as given or chosen, else the smaller one."""
        return HIDDEN if self.hidden is None else self.hidden

    def sized(self, steps: int) -> NetConfig:
        """Return the config with a width of the hidden state, chosen by the steps to learn from if none is given."""
        if self.hidden is not None:
            return self
        return replace(self, hidden=HIDDEN if steps < LARGE_LOG_STEPS else LARGE_HIDDEN)
