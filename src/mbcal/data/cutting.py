"""Where sessions begin and end. Pure functions on arrays."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.errors import OptionError
from mbcal.types import Behaviours

MINUTE = 60_000_000
"""Microseconds in a minute."""
LONGEST = 10_000
"""Largest horizon and history: sessions are padded to them when they are read."""
HISTORY_SESSION = "#history"
"""Name of a session that came before the log: its steps are in the user's histories, and never a session themselves."""
_HISTORY_HASH = np.uint64(
    int.from_bytes(hashlib.md5(HISTORY_SESSION.encode(), usedforsecurity=False).digest()[8:], "little")
)
MOST_NEGATIVES = 100
"""Largest mean number of items that are added to a row of the log."""
_IF_SET = {"recorded": "if set"}
"""Metadata of options that the manifest names only where they were given."""
ENDS_LENGTH = "length"
"""Value of `SessionConfig.ends` with which the length of a session shows that the user left."""


@dataclass(frozen=True)
class SessionConfig:
    """How a log is cut into sessions, and its users are split into parts.

    Each user's interactions, in time order, are cut into windows of `horizon` steps. A new window also begins where the
    log's own session changes, if it has sessions, after a pause of `gap` minutes, and after a behaviour in `ends`.

    Raises:
        OptionError: If a value is out of range.
    """

    horizon: int = 20
    """Most steps in a session (the paper's T)."""
    history: int = 20
    """Most steps kept from before a session."""
    min_length: int = 1
    """Shorter windows are not sessions, but remain in the history of later ones."""
    gap: float | None = None
    """Minutes without a step that end a session; None for no limit."""
    split: tuple[float, float, float] = (0.4, 0.4, 0.2)
    """Shares of users in the parts simulator, train and test."""
    seed: int = 0
    """Decides the part of each user, and the order of steps at the same time."""
    max_rejected: float = 0.2
    """Ingestion fails if a larger share of rows is rejected."""
    max_per_user: int | None = field(default=None, metadata=_IF_SET)
    """Only the latest so many steps of each user are kept; None keeps all."""
    split_by_time: bool = field(default=False, metadata=_IF_SET)
    """Whether parts are cut by time as well as by user (`data.time_split`)."""
    time_cuts: tuple[int, int] | None = field(default=None, metadata=_IF_SET)
    """Where parts are cut by time, in microseconds since 1970: the simulator part ends at the first, the train part ends and
    the test part begins at the second. None finds them by the shares in `split`."""
    alive: float | None = field(default=None, metadata=_IF_SET)
    """Days after its first step during which an item is a candidate; None for any time after it. Needed only where
    candidates are sampled."""
    ends: tuple[str, ...] = field(default=(), metadata=_IF_SET)
    """Labels with which a user leaves: the session ends there. Or `("length",)`: a session shorter than the horizon is one
    that the user left, and every behaviour gets a terminal variant (`Behaviours.with_leaving`)."""
    negatives: int = field(default=0, metadata=_IF_SET)
    """Mean number of items that are added to each row: alive, and not chosen by the user (docs/clicks.md)."""
    none_reward: float = field(default=0.0, metadata=_IF_SET)
    """Reward of the behaviour `none` of these items."""
    next_click: bool = field(default=False, metadata=_IF_SET)
    """Whether the behaviour is the time to the next row of the session; set by ingestion."""
    level_cuts: tuple[float, ...] = field(default=(), metadata=_IF_SET)
    """Cut points of levels that have other behaviours beside them; set by ingestion."""

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
        if self.max_per_user is not None and self.max_per_user < 1:
            raise OptionError(f"max-per-user: must be at least 1 step, got {self.max_per_user}")
        if self.time_cuts is not None and not (self.split_by_time and 0 <= self.time_cuts[0] <= self.time_cuts[1]):
            raise OptionError(f"time_cuts: must be two rising times, with split_by_time, got {self.time_cuts}")
        if self.alive is not None and not 0 < self.alive < float("inf"):
            raise OptionError(f"alive: must be a positive number of days, got {self.alive}")
        if not 0 <= self.negatives <= MOST_NEGATIVES:
            raise OptionError(f"negatives: must lie in 0..{MOST_NEGATIVES} for each row, got {self.negatives}")

        if ENDS_LENGTH in self.ends and len(self.ends) > 1:
            raise OptionError(f"ends: give labels, or {ENDS_LENGTH!r} alone, got {', '.join(self.ends)}")

    @property
    def needs_item_times(self) -> bool:
        """Whether the store keeps when each item was first seen."""
        return self.split_by_time or self.alive is not None or self.negatives > 0

    def record(self) -> dict[str, Any]:
        """Return the options as they are written to the manifest, without optional ones that were not given."""
        absent = {entry.name for entry in fields(self) if entry.metadata and getattr(self, entry.name) == entry.default}
        return {name: value for name, value in asdict(self).items() if name not in absent}

    @property
    def ends_by_length(self) -> bool:
        """Whether a session that is shorter than the horizon is one that the user left."""
        return self.ends == (ENDS_LENGTH,)

    def ended(self, behaviours: Behaviours) -> Behaviours:
        """Return the behaviours of a log, those declared by `ends` terminal.

        Raises:
            OptionError: If `ends` names a label that the log does not have.
        """
        if self.ends_by_length:
            return behaviours.with_leaving()
        return replace(behaviours, terminal=self.ends) if self.ends else behaviours


@dataclass(frozen=True)
class Steps:
    """All interactions of some users, user by user, in time order with ties broken."""

    user: NDArray[Any]
    """(S,) numbers of the users."""
    time: NDArray[np.int64]
    """(S,) microseconds."""
    session: NDArray[np.uint64] | None = None
    """(S,) hashes of the log's own sessions, if it has any."""
    is_end: NDArray[np.bool_] | None = None
    """(S,) whether the user left with this step, if some behaviours are terminal."""


@dataclass(frozen=True)
class Windows:
    """Positions of N sessions among S steps, and of the steps before each.

    If the log has no sessions of its own, a session's history is the `history_length` steps before `start`. If it has, the
    sessions of a user may overlap in time: the steps must then be stored in `order`, session by session, `start` counts in
    that order, and `history` lists the steps of each history.
    """

    user: NDArray[np.int32]
    """(N,) numbers of the users."""
    start: NDArray[np.int64]
    """(N,) first step."""
    length: NDArray[np.int32]
    """(N,) steps in the session."""
    history_length: NDArray[np.int32]
    """(N,) steps in its history."""
    dropped: int
    """Windows that were too short."""
    order: NDArray[np.int64] | None = None
    """(S,) steps in the order in which they must be stored; None to leave them."""
    history: NDArray[np.int64] | None = None
    """(N, H) positions in `order` of the steps of each history, padded with -1."""


def cut(steps: Steps, config: SessionConfig, opens: int | None = None) -> Windows:
    """Cut steps into sessions.

    Args:
        steps: The steps of some users.
        config: How to cut.
        opens: Sessions begin at this time or later, in microseconds; earlier steps are history only. None for no limit.

    ::

        user     7  7  7  7  7  8  8        horizon 3
        window   0  0  0  1  1  2  2
        start    0        3     5
        history  0        3     0           length of the history: earlier steps of the user, at most `config.history`
    """
    count, user = len(steps.user), steps.user
    first_of_user = np.r_[True, user[1:] != user[:-1]][:count]
    order, breaks = session_breaks(steps, config)
    time = steps.time if order is None else steps.time[order]
    if opens is not None:
        breaks = breaks | np.r_[True, (time[1:] >= opens) & (time[:-1] < opens)][:count]
    begin = np.flatnonzero(breaks)
    size = np.diff(begin, append=count)
    windows = -(-size // config.horizon)  # between two breaks, rounded up
    within = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
    start = np.repeat(begin, windows) + within * config.horizon
    length = np.minimum(np.repeat(begin + size, windows) - start, config.horizon)
    kept, is_history = length >= config.min_length, np.zeros(len(start), np.bool_)
    if opens is not None:
        is_history |= time[start] < opens
    if steps.session is not None and order is not None:
        is_history |= steps.session[order[start]] == _HISTORY_HASH
    dropped = int(np.sum(~kept & ~is_history))
    kept &= ~is_history
    earliest = np.repeat(_last(first_of_user[begin], begin), windows)[kept]  # first step of the session's user
    start, length = start[kept], length[kept]
    time_position = start if order is None else order[start]  # of the first step, in time order
    before = np.minimum(time_position - earliest, config.history).astype(np.int32)
    history = None if order is None else _history(order, time_position, before, config.history)
    return Windows(user[start].astype(np.int32), start, length.astype(np.int32), before, dropped, order, history)


def session_breaks(steps: Steps, config: SessionConfig) -> tuple[NDArray[np.int64] | None, NDArray[np.bool_]]:
    """Find where sessions begin, before they are cut at the horizon.

    Args:
        steps: The steps of some users.
        config: Has the gap.

    Returns:
        (S,) the steps session by session, None if they are so already; and (S,) whether a session begins at each, in that
        order.
    """
    count, user, time = len(steps.user), steps.user, steps.time
    breaks, order = np.r_[True, user[1:] != user[:-1]][:count], None
    if steps.session is not None:
        group = _groups(breaks, steps.session)
        order = np.argsort(group, kind="stable")  # users stay in place: groups are numbered by their first step
        breaks = np.r_[True, np.diff(group[order]) != 0][:count]
        time = time[order]
    if config.gap is not None:
        breaks = breaks | np.r_[True, np.diff(time) > config.gap * MINUTE][:count]
    if steps.is_end is not None:
        is_end = steps.is_end if order is None else steps.is_end[order]
        breaks = breaks | np.r_[True, is_end[:-1]][:count]
    return order, breaks


def _history(
    order: NDArray[np.int64], time_position: NDArray[np.int64], before: NDArray[np.int32], width: int
) -> NDArray[np.int64]:
    """(N, width) positions in `order` of the steps before each time position, oldest first, padded with -1."""
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    steps = np.arange(width)
    earlier = time_position[:, None] - before[:, None] + steps
    return np.where(steps < before[:, None], position[np.minimum(earlier, len(order) - 1)], -1)


def _last(flags: NDArray[np.bool_], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the latest flagged position at or before each; positions ascend, and the first is flagged."""
    return np.maximum.accumulate(np.where(flags, positions, 0))


def _groups(first_of_user: NDArray[np.bool_], session: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each step the position of the first step of its (user, session)."""
    owner = np.cumsum(first_of_user)
    sorting = np.lexsort((session, owner))  # stable: within a group the first position comes first
    new = np.r_[True, (owner[sorting][1:] != owner[sorting][:-1]) | (session[sorting][1:] != session[sorting][:-1])]
    group = np.empty(len(session), np.int64)
    group[sorting] = sorting[_last(new, np.arange(len(sorting)))]
    return group
