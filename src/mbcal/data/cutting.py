"""How a log is cut: who belongs to which part, and where one session ends and the next begins. Pure functions on arrays."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import OptionError

MINUTE = 60_000_000
"""Microseconds."""
LONGEST = 10_000
"""Steps a session or a history may have: sessions are padded to the horizon when they are read."""


@dataclass(frozen=True)
class SessionConfig:
    """How sessions are made of a log.

    Each user's interactions, in time order, are cut into windows of `horizon`; where the log names its sessions, or where
    `gap` minutes pass without a step, a new window begins as well. Windows shorter than `min_length` are not sessions, but
    remain part of the history of those that follow.
    """

    horizon: int = 20
    history: int = 20
    min_length: int = 1
    gap: float | None = None
    split: tuple[float, float, float] = (0.4, 0.4, 0.2)
    seed: int = 0
    max_rejected: float = 0.2

    def __post_init__(self) -> None:
        if not 1 <= self.horizon <= LONGEST:
            raise OptionError(f"horizon: must lie in 1..{LONGEST}, got {self.horizon}")
        if not 0 <= self.history <= LONGEST:
            raise OptionError(f"history: must lie in 0..{LONGEST}, got {self.history}")
        if not 1 <= self.min_length <= self.horizon:
            raise OptionError(f"min-length: must lie in 1..{self.horizon} (the horizon), got {self.min_length}")
        if self.gap is not None and not 0 < self.gap < float("inf"):
            raise OptionError(f"gap: must be a positive number of minutes, got {self.gap}")
        if len(self.split) != 3 or not all(share >= 0 for share in self.split) or abs(sum(self.split) - 1) > 1e-6:
            raise OptionError(f"split: must be three shares (simulator, train, test) that add up to 1, got {self.split}")
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed: must lie in 0..2^63-1, got {self.seed}")
        if not 0 <= self.max_rejected <= 1:
            raise OptionError(f"max-rejected: must be a share from 0 to 1, got {self.max_rejected}")

    def record(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return asdict(self)

    @property
    def thresholds(self) -> tuple[int, int]:
        """A user whose key is below the first fits the simulator, below the second trains agents, else tests."""
        return round(self.split[0] * 2**64), round((self.split[0] + self.split[1]) * 2**64)

    def part(self, key: int) -> int:
        """0, 1 or 2: index of the part in `PARTS`."""
        first, second = self.thresholds
        return int(key >= first) + int(key >= second)


def stable_hash(name: str, seed: int, purpose: str) -> int:
    """A seeded 64-bit hash of a name, the same in Python and in SQL (`stable_hash_sql`), today and after any upgrade."""
    return int.from_bytes(hashlib.md5(f"{purpose}:{seed}:{name}".encode(), usedforsecurity=False).digest()[8:], "little")


def stable_hash_sql(column: str, seed: int, purpose: str) -> str:
    """`key` for DuckDB."""
    return f"md5_number_lower('{purpose}:{seed}:' || {column}::VARCHAR)"


@dataclass(frozen=True)
class Steps:
    """Interactions of whole users, user by user, each in time order with ties broken: the order of the log is gone."""

    user: NDArray[Any]
    time: NDArray[np.int64]
    session: NDArray[np.uint64] | None = None


@dataclass(frozen=True)
class Windows:
    """Where sessions lie, and the steps just before each in time.

    Without sessions of the log's own, steps stay as they are and a history is the `history_length` steps before `start`.
    With them, sessions of one user may overlap: steps are then to be kept in `order` (session by session), `start` counts in
    that order, and `history` (N, H) names the steps of each history one by one, -1 where there are fewer.
    """

    user: NDArray[np.int32]
    start: NDArray[np.int64]
    length: NDArray[np.int32]
    history_length: NDArray[np.int32]
    dropped: int
    order: NDArray[np.int64] | None = None
    history: NDArray[np.int64] | None = None


def cut(steps: Steps, config: SessionConfig) -> Windows:
    """Cut into sessions.

    ::

        user     7  7  7  7  7  8  8        horizon 3
        window   0  0  0  1  1  2  2
        start    0        3     5
        history  0        3     0           steps of the same user just before, at most `config.history`
    """
    count = len(steps.user)
    user, time = steps.user, steps.time
    first_of_user = np.r_[True, user[1:] != user[:-1]][:count]
    breaks, order = first_of_user, None
    if steps.session is not None:
        group = _groups(first_of_user, steps.session)
        order = np.argsort(group, kind="stable")  # users stay in place: groups are numbered by their first step
        breaks = np.r_[True, np.diff(group[order]) != 0][:count]
        time = time[order]
    if config.gap is not None:
        breaks = breaks | np.r_[True, np.diff(time) > config.gap * MINUTE][:count]
    begin = np.flatnonzero(breaks)
    size = np.diff(begin, append=count)
    windows = -(-size // config.horizon)  # windows in each stretch between two breaks, rounded up
    within = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
    start = np.repeat(begin, windows) + within * config.horizon
    length = np.minimum(np.repeat(begin + size, windows) - start, config.horizon)
    kept = length >= config.min_length
    earliest = np.repeat(_last(first_of_user[begin], begin), windows)[kept]  # first step of the session's user
    start, length, dropped = start[kept], length[kept], int(np.sum(~kept))
    moment = start if order is None else order[start]  # when the session begins, counted in time order
    before = np.minimum(moment - earliest, config.history).astype(np.int32)
    history = None if order is None else _history(order, moment, before, config.history)
    return Windows(user[start].astype(np.int32), start, length.astype(np.int32), before, dropped, order, history)


def _history(order: NDArray[np.int64], moment: NDArray[np.int64], before: NDArray[np.int32], most: int) -> NDArray[np.int64]:
    """(N, most): the steps just before each moment, oldest first, by their place in `order`; -1 where there are fewer."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    steps = np.arange(most)
    earlier = moment[:, None] - before[:, None] + steps
    return np.where(steps < before[:, None], place[np.minimum(earlier, len(order) - 1)], -1)


def _last(flags: NDArray[np.bool_], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The latest flagged position at or before each; positions rise, the first is flagged."""
    return np.maximum.accumulate(np.where(flags, positions, 0))


def _groups(first_of_user: NDArray[np.bool_], session: NDArray[np.uint64]) -> NDArray[np.int64]:
    """For each step the position of the first step of its (user, session)."""
    owner = np.cumsum(first_of_user)
    by = np.lexsort((session, owner))  # stable: within a group the first position comes first
    new = np.r_[True, (owner[by][1:] != owner[by][:-1]) | (session[by][1:] != session[by][:-1])]
    group = np.empty(len(session), np.int64)
    group[by] = by[_last(new, np.arange(len(by)))]
    return group
