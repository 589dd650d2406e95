"""The newsfeed's log: its users served by the noisy-myopic policy, written as a store like any other log.

Users are numbered as in every store (by part, then by key), and a user's number is also the world's, so that the world can
be asked about any session of the store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from mbcal.data.cutting import SessionConfig, stable_hash
from mbcal.data.shards import ShardPlan
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Shard
from mbcal.data.store_writer import StoreWriter
from mbcal.data.workspace import Workspace
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.errors import OptionError
from mbcal.progress import SILENT, Progress
from mbcal.types import FIRST_ITEM_ROW, Sessions

SESSIONS_PER_USER = 4
USERS_AT_A_TIME = 2048
"""A block small enough for the cache, large enough to keep two cores busy."""
FIRST_DAY = 1_704_067_200_000_000
"""2024-01-01, in microseconds."""
SECOND = 1_000_000
DAY = 86_400 * SECOND


@dataclass(frozen=True)
class NewsfeedConfig:
    """How much of it to generate. Each session chooses from its own candidates, twice as many as it has steps."""

    sessions: int = 20_000
    items: int = 2_000

    def __post_init__(self) -> None:
        if self.sessions < 1:
            raise OptionError(f"sessions: must be at least 1, got {self.sessions}")

    @property
    def users(self) -> int:
        return -(-self.sessions // SESSIONS_PER_USER)


def prepare_newsfeed(
    out: str | Path,
    log: NewsfeedConfig | None = None,
    config: SessionConfig | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Store:
    """Generate the embedded newsfeed: `prepare_newsfeed("feed", NewsfeedConfig(sessions=100_000))`."""
    log, config = log or NewsfeedConfig(), config or SessionConfig()
    if config.gap is not None or config.min_length > 1:
        raise OptionError("newsfeed: its sessions are generated whole; --gap and --min-length do not apply")
    if 2 * config.horizon > log.items:
        raise OptionError(
            f"horizon: {config.horizon} steps need {2 * config.horizon} candidates, the feed has {log.items} items"
        )
    with Workspace(Path(out), overwrite=overwrite) as work:
        _write(log, config, StoreWriter(work.build), progress)
        work.publish()
    return Store.open(out)


def _write(log: NewsfeedConfig, config: SessionConfig, writer: StoreWriter, progress: Progress) -> None:
    world = Newsfeed(log.users, log.items, config.seed)
    width = len(str(log.users - 1))
    keys = {name: stable_hash(name, config.seed, "part") for name in (f"user-{user:0{width}d}" for user in range(log.users))}
    names = sorted(keys, key=lambda name: (config.part(keys[name]), keys[name], name))
    part = np.asarray([config.part(keys[name]) for name in names], np.uint8)
    writer.table("users.parquet", pa.table({"user": names, "part": [PARTS[p] for p in part]}))
    writer.catalog(world.catalog)
    nothing = pa.schema([(column, pa.string()) for column in ("user", "item", "time", "behaviour", "reason")])
    writer.table("rejected.parquet", nothing.empty_table())
    plan = ShardPlan.from_users(part, np.full(log.users, SESSIONS_PER_USER * config.horizon))
    generator = torch.Generator().manual_seed(config.seed + 1)  # the world itself was drawn from the seed
    progress.phase("generating sessions", log.sessions)
    labels = np.zeros(len(world.behaviours), np.int64)
    parts = {p: {"users": int(np.sum(part == k)), "sessions": 0, "steps": 0} for k, p in enumerate(PARTS)}
    for (name, number), (begin, end) in zip(plan.locations, pairwise(plan.user_bounds.tolist()), strict=True):
        users = np.arange(begin, end)
        blocks = [
            generate(world, torch.from_numpy(block), config, generator)
            for block in np.array_split(users, -(-len(users) // USERS_AT_A_TIME))
        ]
        shard = _trim(_shard(blocks, users, config), log.sessions - SESSIONS_PER_USER * int(users[0]))
        writer.shard(name, number, shard)
        labels += np.bincount(shard.behaviours, minlength=len(labels))
        parts[name]["sessions"] += len(shard.start)
        parts[name]["steps"] += len(shard.items)
        progress.advance(len(shard.start))
    steps = log.sessions * config.horizon
    writer.finish(
        world.behaviours,
        source="newsfeed",
        options={**config.record(), **world.options(), "features": list(world.catalog.features)},
        source_hashes={"items": writer.digest("items.parquet")},
        rejected={},
        counts={
            "rows": steps,
            "rows_read": steps,
            "users": log.users,
            "items": log.items,
            "sessions": log.sessions,
            "full_sessions": log.sessions,
            "short_windows": 0,
            "ties": 0,
            "labels": labels.tolist(),
            "parts": parts,
        },
    )


def generate_sessions(world: Newsfeed, config: SessionConfig, seed: int = 0) -> Sessions:
    """The log of a world in memory, without a store: every user's sessions under the logging policy."""
    users = np.arange(world.users)
    generator = torch.Generator().manual_seed(seed + 1)
    blocks = [
        generate(world, torch.from_numpy(block), config, generator)
        for block in np.array_split(users, -(-len(users) // USERS_AT_A_TIME))
    ]
    return _shard(blocks, users, config).to_sessions(world.catalog, world.behaviours, config.horizon, config.history)


def generate(world: Newsfeed, users: Tensor, config: SessionConfig, generator: torch.Generator) -> dict[str, Tensor]:
    """Every session of some users (B,), one after another: arrays (B, sessions, …)."""
    made: list[dict[str, Tensor]] = []
    items, behaviours = torch.zeros(len(users), 0, dtype=torch.int64), torch.zeros(len(users), 0, dtype=torch.uint8)
    clock = FIRST_DAY + torch.randint(30 * DAY, (len(users),), generator=generator)
    for _ in range(SESSIONS_PER_USER):
        recent = max(0, items.shape[1] - config.history)
        length = torch.full((len(users),), items.shape[1] - recent)
        state = world.begin(users, items[:, recent:], behaviours[:, recent:], length)
        candidates = offer(world.weights, len(users), 2 * config.horizon, generator)
        session = _serve(world, state, candidates, config.horizon, generator)
        spent = (3 + 8 * session["behaviours"].to(torch.int64)) * SECOND  # a glance, and eight seconds a level
        session["timestamps"] = clock.unsqueeze(1) + torch.cumsum(spent, 1) - spent
        clock = session["timestamps"][:, -1] + DAY // 2 + torch.randint(DAY, (len(users),), generator=generator)
        items, behaviours = torch.cat([items, session["items"]], 1), torch.cat([behaviours, session["behaviours"]], 1)
        made.append(session)
    return {name: torch.stack([session[name] for session in made], 1) for name in made[0]}


def offer(weights: Tensor, rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Distinct items (rows, count) as rising catalogue rows, drawn by weight; what is drawn twice is drawn again."""
    edges = torch.cumsum(weights.double(), 0)
    edges /= edges[-1].clone()

    def draw(size: int) -> Tensor:
        return torch.searchsorted(edges, torch.rand(size, generator=generator, dtype=torch.float64), right=True)

    drawn = draw(rows * count).view(rows, count)
    while True:
        drawn = drawn.sort(1).values
        twice = torch.zeros_like(drawn, dtype=torch.bool)
        twice[:, 1:] = drawn[:, 1:] == drawn[:, :-1]
        missing = int(twice.sum())
        if missing == 0:
            return drawn + FIRST_ITEM_ROW
        drawn[twice] = draw(missing)


def _serve(world: Newsfeed, state: Any, candidates: Tensor, horizon: int, generator: torch.Generator) -> dict[str, Tensor]:
    """One session of each user under the logging policy."""
    available = torch.ones_like(candidates, dtype=torch.bool)
    items, behaviours, propensities = [], [], []
    for _ in range(horizon):
        chances = world.logging_probabilities(world.utility(state, candidates), available)
        reach = torch.cumsum(chances, 1)
        # the first candidate whose cumulated chance exceeds a uniform draw: never one that is gone, its chance adds nothing
        uniform = torch.rand(len(candidates), 1, generator=generator) * reach[:, -1:]
        chosen = (reach <= uniform).sum(1, keepdim=True).clamp_(max=candidates.shape[1] - 1)
        item = candidates.gather(1, chosen).squeeze(1)
        behaviour, state = world.respond(state, item, torch.rand(len(item), generator=generator))
        available.scatter_(1, chosen, False)
        items.append(item)
        behaviours.append(behaviour)
        propensities.append(chances.gather(1, chosen).squeeze(1))
    return {
        "items": torch.stack(items, 1),
        "behaviours": torch.stack(behaviours, 1),
        "propensities": torch.stack(propensities, 1),
        "candidates": candidates,
    }


def _shard(blocks: list[dict[str, Tensor]], users: np.ndarray[Any, Any], config: SessionConfig) -> Shard:
    """Blocks of whole users as steps and the sessions that point into them."""
    made = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
    sessions = len(users) * SESSIONS_PER_USER
    passed = np.tile(np.arange(SESSIONS_PER_USER) * config.horizon, len(users))  # steps of the user before each session
    return Shard(
        items=made["items"].to(torch.int32).flatten().numpy(),
        behaviours=made["behaviours"].flatten().numpy(),
        timestamps=made["timestamps"].flatten().numpy(),
        propensities=made["propensities"].flatten().numpy(),
        user=np.repeat(users, SESSIONS_PER_USER).astype(np.int32),
        start=np.arange(sessions, dtype=np.int64) * config.horizon,
        length=np.full(sessions, config.horizon, np.int32),
        history_length=np.minimum(passed, config.history).astype(np.int32),
        candidates=made["candidates"].to(torch.int32).flatten(0, 1).numpy(),
    )


def _trim(shard: Shard, sessions: int) -> Shard:
    """The first so many sessions: the last user may have fewer than the others."""
    if len(shard.start) <= sessions:
        return shard
    steps = int(shard.start[sessions])
    cut = {"items": steps, "behaviours": steps, "timestamps": steps, "propensities": steps}
    kept = {name: array[: cut.get(name, sessions)] for name, array in vars(shard).items() if array is not None}
    return replace(shard, **kept)
