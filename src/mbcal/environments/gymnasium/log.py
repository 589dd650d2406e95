"""The log of a world: episodes played by a policy, as a store. Every episode is a user of its own.

Users are numbered as in every store (by part, then by hash), and the episode with index k is that of user k.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mbcal.data.cutting import SessionConfig
from mbcal.data.shards import ShardPlan
from mbcal.data.store import Store
from mbcal.data.store_format import PARTS, Shard
from mbcal.data.store_writer import StoreWriter
from mbcal.data.user_split import order_users
from mbcal.data.workspace import Workspace
from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.environments.rollout import Policy
from mbcal.errors import OptionError
from mbcal.progress import SILENT, Progress
from mbcal.training.random import derive_seed
from mbcal.types import Sessions

DEFAULT_SPLIT = SessionConfig().split


def write_log(
    world: GymnasiumWorld,
    policy: Policy,
    out: str | Path,
    *,
    sessions: int,
    epsilon: float,
    seed: int = 0,
    split: tuple[float, float, float] = DEFAULT_SPLIT,
    policy_name: str = "",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Store:
    """Play episodes and write them as a store, with the propensity of every choice.

    Args:
        world: The world.
        policy: Who chooses the items.
        out: The store's folder.
        sessions: Number of episodes.
        epsilon: Probability of a uniformly random item at each step; 1 is a random policy.
        seed: Seed of the episodes and the choices; it also decides the part of each.
        split: Shares of episodes in the parts simulator, train and test.
        policy_name: Name of the policy in the store's options.
        overwrite: Replace a store that is there.
        progress: Notified of episodes.

    Returns:
        The store. Its options name the world, and how it was played.

    Raises:
        OptionError: If there are no sessions, or epsilon, the split or the seed is out of range.
        OutputError: If the folder exists or cannot be written.
    """
    if sessions < 1:
        raise OptionError(f"sessions: must be at least 1, got {sessions}")
    if not 0 <= epsilon <= 1:
        raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
    config = SessionConfig(world.horizon, history=0, split=split, seed=seed)
    options = {
        **config.record(),
        "world": world.name,
        "repeats": world.repeats,
        "policy": policy_name,
        "epsilon": epsilon,
        "features": list(world.catalog.features),
    }
    with Workspace(Path(out), overwrite=overwrite) as workspace:
        writer = StoreWriter(workspace.build)
        width = len(str(sessions - 1))
        names, part = order_users((f"episode-{number:0{width}d}" for number in range(sessions)), split, seed)
        writer.table("users.parquet", pa.table({"user": names, "part": [PARTS[number] for number in part]}))
        writer.catalog(world.catalog)
        rejected = pa.schema([(column, pa.string()) for column in ("user", "item", "time", "behaviour", "reason")])
        writer.table("rejected.parquet", rejected.empty_table())

        def play(begin: int, end: int) -> Sessions:
            title, play_seed = f"episodes {begin + 1:,} to {end:,} of {sessions:,}", derive_seed(seed, "log")
            return world.play(
                policy, end - begin, epsilon=epsilon, seed=play_seed, first_index=begin, title=title, progress=progress
            )

        writer.finish(
            world.behaviours,
            source="gymnasium",
            options=options,
            counts=_write_shards(writer, world, part, play),
            source_hashes={"items": writer.digest("items.parquet")},
            rejected={},
        )
        workspace.publish()
    return Store.open(out)


def _write_shards(
    writer: StoreWriter, world: GymnasiumWorld, part: NDArray[np.uint8], play: Callable[[int, int], Sessions]
) -> dict[str, Any]:
    """Play the episodes of users (U,) with these parts, write them, and return the counts of the manifest."""
    plan = ShardPlan.from_users(part, np.full(len(part), world.horizon))
    behaviour_counts, full_sessions = np.zeros(len(world.behaviours), np.int64), 0
    parts = {name: {"users": int(np.sum(part == k)), "sessions": 0, "steps": 0} for k, name in enumerate(PARTS)}
    for (name, number), (begin, end) in zip(plan.locations, pairwise(plan.user_bounds.tolist()), strict=True):
        played = play(begin, end)
        shard = _to_shard(played)
        writer.shard(name, number, shard)
        behaviour_counts += np.bincount(shard.behaviours, minlength=len(behaviour_counts))
        full_sessions += int(np.sum(played.length == world.horizon))
        parts[name]["sessions"] += len(played)
        parts[name]["steps"] += len(shard.items)
    steps = int(behaviour_counts.sum())
    return {
        "rows": steps,
        "rows_read": steps,
        "users": len(part),
        "items": len(world.catalog),
        "sessions": len(part),
        "full_sessions": full_sessions,
        "short_windows": 0,
        "ties": 0,
        "labels": behaviour_counts.tolist(),
        "parts": parts,
    }


def _to_shard(played: Sessions) -> Shard:
    """Sessions without history as flat steps, and the sessions that point into them."""
    mask, ends = played.mask, np.cumsum(played.length, dtype=np.int64)
    assert played.propensities is not None  # noqa: S101 - a world records them
    return Shard(
        items=played.items[mask],
        behaviours=played.behaviours[mask],
        timestamps=None,
        propensities=played.propensities[mask],
        user=played.user,
        start=ends - played.length,
        length=played.length,
        history_length=played.history_length,
    )
