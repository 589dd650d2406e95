"""The newsfeed's log: its users served by the logging policy, as sessions in memory or as a store.

::

    world ──▶ candidates sampled ──▶ logging policy chooses ──▶ user responds ──▶ four sessions per user ──▶ shards

Users are numbered as in every store (by part, then by hash), and a user has the same number in the store and in the world:
the world can be asked about every session of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.data.cutting import SessionConfig
from mbcal.data.shards import ShardPlan
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Shard
from mbcal.data.store_writer import StoreWriter
from mbcal.data.user_split import order_users
from mbcal.data.workspace import Workspace
from mbcal.environments.newsfeed.world import LEVELS, Leaving, Newsfeed, UserState
from mbcal.errors import OptionError
from mbcal.progress import SILENT, Progress
from mbcal.types import FIRST_ITEM_ROW, Sessions

SESSIONS_PER_USER = 4
USER_BLOCK = 2048
"""Users served at a time: few enough for the cache, enough to keep two cores busy."""
SECOND = 1_000_000
DAY = 86_400 * SECOND
FIRST_DAY = 1_704_067_200 * SECOND
"""2024-01-01 in microseconds. Every user's first session begins within the 30 days that follow."""


@dataclass(frozen=True)
class NewsfeedConfig:
    """How much to generate; what the world is like is in `NewsfeedConstants`."""

    sessions: int = 20_000
    """Sessions in all; every user has four, the last user may have fewer."""
    items: int = 2_000
    """Items in the catalogue, at least 100 and at least twice the horizon."""
    leaving: bool = False
    """Whether users can leave before the end of a session (`world.Leaving`)."""

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise OptionError(f"sessions: must be at least 1, got {self.sessions}")

    @property
    def users(self) -> int:
        """How many users that many sessions take."""
        return -(-self.sessions // SESSIONS_PER_USER)


def prepare_newsfeed(
    out: str | Path,
    newsfeed: NewsfeedConfig | None = None,
    config: SessionConfig | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Store:
    """Generate the newsfeed as a store: `prepare_newsfeed("feed", NewsfeedConfig(sessions=100_000))`.

    Every session has 2 * horizon candidates of its own, stored with it as are the propensities of the logging policy.

    Args:
        out: The store's folder.
        newsfeed: How much to generate.
        config: Horizon, history, split by user, and seed. Nothing else can be set: sessions are generated, not cut.
        overwrite: Replace a store that is there.
        progress: Notified of sessions.

    Returns:
        The store. `Newsfeed.from_options(store.manifest["options"])` is its world.

    Raises:
        OptionError: If a setting is out of range, or there are fewer items than candidates.
        OutputError: If the folder exists or cannot be written.
    """
    newsfeed, config = newsfeed or NewsfeedConfig(), config or SessionConfig()
    if config.ends:
        raise OptionError("newsfeed: its users leave by themselves or not at all; give --leaving in place of --ends")
    plain = SessionConfig(config.horizon, config.history, split=config.split, seed=config.seed)
    if config != replace(plain, max_rejected=config.max_rejected):
        unused = "--gap, --min-length, --max-per-user, --alive, --negatives, --none-reward and time:"
        raise OptionError(f"newsfeed: its sessions are generated, not cut from a log; leave out {unused}")
    if 2 * config.horizon > newsfeed.items:
        problem = f"{config.horizon} steps need {2 * config.horizon} candidates, the feed has {newsfeed.items} items"
        raise OptionError(f"horizon: {problem}; choose a shorter horizon or more items")
    with Workspace(Path(out), overwrite=overwrite) as workspace:
        _write_store(newsfeed, config, StoreWriter(workspace.build), progress)
        workspace.publish()
    return Store.open(out)


def generate_sessions(world: Newsfeed, config: SessionConfig, seed: int = 0) -> Sessions:
    """Generate the log of a world in memory: four sessions of every user, under the logging policy.

    Args:
        world: The world.
        config: Horizon and history.
        seed: Seed of candidates, choices and responses.
    """
    users = np.arange(world.users)
    shard = _generate_shard(world, users, config, torch.Generator().manual_seed(seed + 1))
    return shard.to_sessions(world.catalog, world.behaviours, config.horizon, config.history)


def sample_candidate_sets(popularity: Tensor, size: int, count: int, generator: torch.Generator) -> Tensor:
    """Sample sets of distinct items by popularity; repeated items are sampled again.

    Args:
        popularity: Weight of each item, (items,).
        size: How many sets.
        count: Items per set.
        generator: Where the random numbers come from.

    Returns:
        Catalogue rows, (size, count), each set in rising order.
    """
    cumulative = torch.cumsum(popularity.double(), 0)
    cumulative /= cumulative[-1].clone()

    def sample(number: int) -> Tensor:
        return torch.searchsorted(cumulative, torch.rand(number, generator=generator, dtype=torch.float64), right=True)

    items = sample(size * count).view(size, count)
    while True:
        items = items.sort(1).values
        repeated = torch.zeros_like(items, dtype=torch.bool)
        repeated[:, 1:] = items[:, 1:] == items[:, :-1]
        missing = int(repeated.sum())
        if missing == 0:
            return items + FIRST_ITEM_ROW
        items[repeated] = sample(missing)


def _generate_shard(world: Newsfeed, users: NDArray[np.int64], config: SessionConfig, generator: torch.Generator) -> Shard:
    """All sessions of some users, (users,) in rising order."""
    blocks = np.array_split(users, -(-len(users) // USER_BLOCK))
    return _to_shard([_serve_users(world, torch.from_numpy(block), config, generator) for block in blocks], users, config)


def _serve_users(world: Newsfeed, users: Tensor, config: SessionConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """All S sessions of users (B,): candidates (B, S, C), length (B, S); items, behaviours, … (B, S, T)."""
    size = len(users)
    sessions: list[dict[str, Tensor]] = []
    past = _Past(size, config.history)
    clock = FIRST_DAY + torch.randint(30 * DAY, (size,), generator=generator)
    for _ in range(SESSIONS_PER_USER):
        state = world.begin(users, past.items, past.behaviours, past.length)
        candidates = sample_candidate_sets(world.popularity, size, 2 * config.horizon, generator)
        session = _serve_session(world, state, candidates, config.horizon, generator)
        levels = session["behaviours"].to(torch.int64) % LEVELS
        dwell = (3 + 8 * levels) * SECOND  # three seconds, and eight more per level
        session["timestamps"] = clock.unsqueeze(1) + torch.cumsum(dwell, 1) - dwell
        last = session["timestamps"].gather(1, session["length"].unsqueeze(1) - 1).squeeze(1)
        clock = last + DAY // 2 + torch.randint(DAY, (size,), generator=generator)
        past.add(session["items"], session["behaviours"], session["length"])
        sessions.append(session)
    return {name: torch.stack([session[name] for session in sessions], 1) for name in sessions[0]}


class _Past:
    """The last H steps of B users, oldest first."""

    def __init__(self, users: int, history: int) -> None:
        self.items = torch.zeros(users, history, dtype=torch.int64)
        self.behaviours = torch.zeros(users, history, dtype=torch.uint8)
        self.length = torch.zeros(users, dtype=torch.int64)

    def add(self, items: Tensor, behaviours: Tensor, length: Tensor) -> None:
        """Append the first steps (B, T) of a session, `length` (B,) of them."""
        history = self.items.shape[1]
        kept = (self.length + length).clamp(max=history)
        column = torch.arange(history).expand(len(kept), -1) + (self.length + length - kept).unsqueeze(
            1
        )  # in past + session
        is_past = column < self.length.unsqueeze(1)
        in_past = column.clamp(max=max(history - 1, 0))
        in_session = (column - self.length.unsqueeze(1)).clamp(0, items.shape[1] - 1)
        is_step = torch.arange(history) < kept.unsqueeze(1)
        for name, new in (("items", items), ("behaviours", behaviours)):
            steps = torch.where(is_past, getattr(self, name).gather(1, in_past), new.gather(1, in_session))
            setattr(self, name, torch.where(is_step, steps, 0))
        self.length = kept


def _serve_session(
    world: Newsfeed, state: UserState, candidates: Tensor, horizon: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """One session of B users under the logging policy, from candidates (B, C): items, behaviours, propensities (B, T).

    Users who leave are served to the end all the same; `length` (B,) says which steps count.
    """
    available = torch.ones_like(candidates, dtype=torch.bool)
    items, behaviours, propensities = [], [], []
    for _ in range(horizon):
        probabilities = world.logging_probabilities(world.utility(state, candidates), available)
        cumulative = torch.cumsum(probabilities, 1)
        # the first candidate whose cumulative probability exceeds a uniform number; never one of probability 0
        uniform = torch.rand(len(candidates), 1, generator=generator) * cumulative[:, -1:]
        chosen = (cumulative <= uniform).sum(1, keepdim=True).clamp_(max=candidates.shape[1] - 1)
        item = candidates.gather(1, chosen).squeeze(1)
        behaviour, state = world.respond(state, item, torch.rand(len(item), generator=generator))
        available.scatter_(1, chosen, False)
        items.append(item)
        behaviours.append(behaviour)
        propensities.append(probabilities.gather(1, chosen).squeeze(1))
    return {
        "items": torch.stack(items, 1),
        "behaviours": torch.stack(behaviours, 1),
        "propensities": torch.stack(propensities, 1),
        "candidates": candidates,
        "length": _length(torch.stack(behaviours, 1)),
    }


def _length(behaviours: Tensor) -> Tensor:
    """Steps (B,) up to and with the first terminal one, of behaviours (B, T)."""
    left = behaviours >= LEVELS
    return torch.where(left.any(1), left.int().argmax(1) + 1, behaviours.shape[1])


def _to_shard(blocks: Sequence[dict[str, Tensor]], users: NDArray[np.int64], config: SessionConfig) -> Shard:
    """Blocks of whole users as flat steps, and the sessions that point into them."""
    arrays = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
    length = arrays["length"].numpy()  # (users, S)
    is_step = torch.arange(config.horizon) < arrays["length"].unsqueeze(2)
    steps_before = (np.cumsum(length, 1) - length).flatten()  # of the user, before each session
    return Shard(
        items=arrays["items"][is_step].to(torch.int32).numpy(),
        behaviours=arrays["behaviours"][is_step].numpy(),
        timestamps=arrays["timestamps"][is_step].numpy(),
        propensities=arrays["propensities"][is_step].numpy(),
        user=np.repeat(users, SESSIONS_PER_USER).astype(np.int32),
        start=np.cumsum(length.flatten(), dtype=np.int64) - length.flatten(),
        length=length.flatten().astype(np.int32),
        history_length=np.minimum(steps_before, config.history).astype(np.int32),
        candidates=arrays["candidates"].to(torch.int32).flatten(0, 1).numpy(),
    )


# ---- as a store


def _write_store(newsfeed: NewsfeedConfig, config: SessionConfig, writer: StoreWriter, progress: Progress) -> None:
    """Write all files of the store: users, items, shards, manifest."""
    world = Newsfeed(newsfeed.users, newsfeed.items, config.seed, leaving=Leaving() if newsfeed.leaving else None)
    names, part = _order_users(newsfeed.users, config)
    writer.table("users.parquet", pa.table({"user": names, "part": [PARTS[number] for number in part]}))
    writer.catalog(world.catalog)
    rejected = pa.schema([(column, pa.string()) for column in ("user", "item", "time", "behaviour", "reason")])
    writer.table("rejected.parquet", rejected.empty_table())
    plan = ShardPlan.from_users(part, np.full(newsfeed.users, SESSIONS_PER_USER * config.horizon))
    progress.phase("generating sessions", newsfeed.sessions)
    behaviour_counts = np.zeros(len(world.behaviours), np.int64)
    parts = {name: {"users": int(np.sum(part == k)), "sessions": 0, "steps": 0} for k, name in enumerate(PARTS)}
    shards, full_sessions = _generate_shards(world, plan, newsfeed, config), 0
    for (name, number), shard in zip(plan.locations, shards, strict=True):
        writer.shard(name, number, shard)
        behaviour_counts += np.bincount(shard.behaviours, minlength=len(behaviour_counts))
        parts[name]["sessions"] += len(shard.start)
        parts[name]["steps"] += len(shard.items)
        full_sessions += int(np.sum(shard.length == config.horizon))
        progress.advance(len(shard.start))
    steps = sum(int(part["steps"]) for part in parts.values())
    writer.finish(
        world.behaviours,
        source="newsfeed",
        options={**config.record(), **world.options(), "features": list(world.catalog.features)},
        source_hashes={"items": writer.digest("items.parquet")},
        rejected={},
        counts={
            "rows": steps,
            "rows_read": steps,
            "users": newsfeed.users,
            "items": newsfeed.items,
            "sessions": newsfeed.sessions,
            "full_sessions": full_sessions,
            "short_windows": 0,
            "ties": 0,
            "labels": behaviour_counts.tolist(),
            "parts": parts,
        },
    )


def _order_users(count: int, config: SessionConfig) -> tuple[list[str], NDArray[np.uint8]]:
    """Names of all users in the order of a store (by part, then by hash), and the part of each, (count,)."""
    width = len(str(count - 1))
    return order_users((f"user-{k:0{width}d}" for k in range(count)), config.split, config.seed)


def _generate_shards(world: Newsfeed, plan: ShardPlan, newsfeed: NewsfeedConfig, config: SessionConfig) -> Iterator[Shard]:
    """The shards of a plan, one after another."""
    generator = torch.Generator().manual_seed(config.seed + 1)  # the seed itself named the world
    for begin, end in pairwise(plan.user_bounds.tolist()):
        shard = _generate_shard(world, np.arange(begin, end), config, generator)
        yield _first_sessions(shard, newsfeed.sessions - SESSIONS_PER_USER * begin)


def _first_sessions(shard: Shard, count: int) -> Shard:
    """The first `count` sessions of a shard: the last user may have fewer than the others."""
    if len(shard.start) <= count:
        return shard
    n_steps = int(shard.start[count])
    lengths = {"items": n_steps, "behaviours": n_steps, "timestamps": n_steps, "propensities": n_steps}
    arrays = {name: array[: lengths.get(name, count)] for name, array in vars(shard).items() if array is not None}
    return replace(shard, **arrays)
