"""A log replayed day by day, in which items arrive: what growing with them is worth.

    python benchmarks/catalog.py --store build/data/kuairand     a store of a real log, by its dates
    python benchmarks/catalog.py                                 the generated newsfeed; its articles get days of arrival

Three policies begin from the same model of the first days and learn from the same sessions every evening (a warm start on
the day's sessions):

    growth      takes the items of the day with their features before it judges, and learns their ids in the evening
    one score   never grows: items that arrived after the first days are the unknown item, so that all have one score
    refusing    as `one score`, but ranks items first seen that day after all others

Each morning, before it learns, a policy re-ranks the sessions of the day that show an item first seen that day: the items
that were shown are ranked by the state before the session, and the better half is kept. Logged rewards say what that half
earned. The table has, with 95% intervals by user, per session: the reward of the half, the part of it from items first seen
that day and the mean reward of these, and the share of pairs ordered as their rewards are, of pairs with an item first seen
that day, and of pairs with one that came after the first days.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal import Catalog, NewsfeedConfig, Sessions, Store, TrainingConfig, prepare_newsfeed
from mbcal.agents import Agent, agent_class
from mbcal.data.store_format import PARTS
from mbcal.metrics import Mean, mean_interval
from mbcal.storage.catalog_io import catalog_table, table_catalog
from mbcal.types import FIRST_ITEM_ROW, UNKNOWN_ROW
from mbcal.types.translation import over_catalog

DAY = 86_400_000_000
BATCH = 128
POLICIES = ("growth", "one score", "refusing")


@dataclass(frozen=True)
class DatedLog:
    """Sessions with the day of each, and the day on which each catalogue row was first seen."""

    sessions: Sessions
    day: NDArray[np.int64]
    """(N,) from 0."""
    first_day: NDArray[np.int64]
    """(rows,)."""

    def of(self, day: int) -> Sessions:
        """The sessions of a day."""
        return self.sessions[self.day == day]

    def items(self, first: int, last: int) -> Catalog:
        """The items first seen from one day to another, with their features."""
        rows = np.flatnonzero((self.first_day >= first) & (self.first_day <= last))
        return table_catalog(catalog_table(self.sessions.catalog).take(rows[rows >= FIRST_ITEM_ROW] - FIRST_ITEM_ROW))


def read_log(store: Store, limit: int | None) -> DatedLog:
    """A store by its dates: a session belongs to the day of its first step."""
    parts = [replace(store.sessions(part), candidates=None)[:limit] for part in PARTS if store.n_sessions(part)]
    sessions = Sessions.concat(parts)
    assert sessions.timestamps is not None
    days = sessions.timestamps // DAY
    begin = int(days[:, 0].min())
    first_day = np.full(sessions.catalog.n_rows, np.iinfo(np.int64).max)
    np.minimum.at(first_day, sessions.items[sessions.mask], days[sessions.mask])
    before = first_day[sessions.history_items] > days[:, :1]  # a step of the history is older than its session
    before &= sessions.history_mask
    np.minimum.at(first_day, sessions.history_items[before], np.broadcast_to(days[:, :1], before.shape)[before])
    return DatedLog(sessions, days[:, 0] - begin, first_day - begin)


def generate_log(folder: Path, n_days: int, first_days: int) -> DatedLog:
    """The newsfeed: sessions get days at random, and 60% of its articles arrive after the first days.

    Steps that show an article before it has arrived are left out.
    """
    store = prepare_newsfeed(folder / "newsfeed", NewsfeedConfig(sessions=12_000, items=2_000))
    sessions = replace(Sessions.concat([store.sessions(part) for part in PARTS]), candidates=None, propensities=None)
    draw, rows = np.random.default_rng(0), sessions.catalog.n_rows
    first_day = np.where(draw.random(rows) < 0.6, draw.integers(first_days, n_days, rows), 0)
    day = draw.integers(0, n_days, len(sessions))
    present = sessions.mask & (first_day[sessions.items] <= day[:, None])
    past = sessions.history_mask & (first_day[sessions.history_items] <= day[:, None])
    kept = np.flatnonzero(present.any(1))
    arrays: dict[str, Any] = {"user": sessions.user[kept]}
    for names, mask in (
        (("items", "behaviours", "length"), present),
        (("history_items", "history_behaviours", "history_length"), past),
    ):
        order = np.argsort(~mask, axis=1, kind="stable")  # steps that stay come first
        for name in names[:2]:
            moved = np.take_along_axis(np.where(mask, getattr(sessions, name), 0), order, 1)
            arrays[name] = moved[kept].astype(getattr(sessions, name).dtype)
        arrays[names[2]] = mask.sum(1)[kept].astype(np.int32)
    return DatedLog(Sessions(sessions.catalog, sessions.behaviour_set, **arrays), day[kept], first_day)


@dataclass
class Found:
    """What a policy earned in the sessions it re-ranked, one entry per session."""

    user: list[NDArray[Any]] = field(default_factory=list)
    reward: list[NDArray[Any]] = field(default_factory=list)
    new_reward: list[NDArray[Any]] = field(default_factory=list)
    new_kept: list[NDArray[Any]] = field(default_factory=list)
    pairs: list[NDArray[Any]] = field(default_factory=list)
    """(n, 4): pairs ordered right and all pairs, with an item of the day, then with one that came after the first days."""


def judge(
    agent: Agent, sessions: Sessions, first_day: NDArray[np.int64], day: int, first_days: int, refuses: bool, found: Found
) -> None:
    """Re-rank the sessions of a day that show an item first seen that day."""
    is_new = (first_day[sessions.items] == day) & sessions.mask
    chosen = np.flatnonzero(is_new.any(1) & (sessions.length >= 2))
    if not len(chosen):
        return
    sessions, is_new = sessions[chosen], is_new[chosen]
    came_later = (first_day[sessions.items] >= first_days) & sessions.mask
    translated = over_catalog(sessions, agent.domain.catalog)
    batch = translated.tensors()
    scores = agent.score(agent.begin(*batch.history), translated.items).astype(float)
    scores += np.random.default_rng(day).random(scores.shape) * 1e-6  # equal scores are in random order
    scores = np.where(sessions.mask, scores - 1e6 * (is_new if refuses else 0), -np.inf)
    rank = np.argsort(np.argsort(-scores, axis=1), axis=1)
    in_half = (rank < (sessions.length[:, None] + 1) // 2) & sessions.mask
    rewards = sessions.rewards
    found.user.append(sessions.user)
    found.reward.append((rewards * in_half).sum(1))
    found.new_reward.append((rewards * (in_half & is_new)).sum(1))
    found.new_kept.append((in_half & is_new).sum(1))
    better = rewards[:, :, None] > rewards[:, None, :]  # (n, T, T): the first of a pair earned more
    better &= sessions.mask[:, :, None] & sessions.mask[:, None, :]
    right = better & (scores[:, :, None] > scores[:, None, :])
    counts = []
    for marked in (is_new, came_later):
        involved = marked[:, :, None] | marked[:, None, :]
        counts += [(right & involved).sum((1, 2)), (better & involved).sum((1, 2))]
    found.pairs.append(np.stack(counts, 1))


def replay(log: DatedLog, first_days: int, n_days: int, method: str, epochs: int, seed: int) -> dict[str, Found]:
    """Judge and learn day by day."""
    features = tuple(log.sessions.catalog.features)
    base = over_catalog(log.sessions[log.day < first_days], log.items(0, first_days - 1))
    agents = {
        name: agent_class(method)(
            features=features, hidden=32, embedding=16, epochs=8, batch=BATCH, seed=seed, device="cpu"
        ).fit(base)
        for name in ("growth", "one score")
    }
    evening = TrainingConfig(epochs=epochs, batch=BATCH, validation=0.0)
    found = {name: Found() for name in POLICIES}
    for day in range(first_days, n_days):
        today, began = log.of(day), time.perf_counter()
        if not len(today):
            continue
        agents["growth"].extend_catalog(log.items(day, day))
        for name in POLICIES:
            agent = agents["growth" if name == "growth" else "one score"]
            judge(agent, today, log.first_day, day, first_days, name == "refusing", found[name])
        for agent in agents.values():
            agent.fit(over_catalog(today, agent.domain.catalog), training=evening)
        n_new = int((log.first_day[FIRST_ITEM_ROW:] == day).sum())
        print(f"day {day}: {len(today):,} sessions, {n_new} new items, {time.perf_counter() - began:.1f} s", flush=True)
    assert agents["one score"].domain.catalog.rows_of(log.items(first_days, n_days).items).max() == UNKNOWN_ROW
    return found


def show(found: dict[str, Found]) -> None:
    """Print the table."""
    columns = ("reward of the half", "of it from new items", "of each of these", "pairs with a new item", "with a later one")
    print(f"policy       sessions  {''.join(f'{column:<26}' for column in columns)}")
    for name, entry in found.items():
        users, pairs = np.concatenate(entry.user), np.concatenate(entry.pairs)
        means = [mean_interval(np.concatenate(values), users) for values in (entry.reward, entry.new_reward)]
        shares = [_share(np.concatenate(entry.new_reward), np.concatenate(entry.new_kept), users)]
        shares += [_share(pairs[:, k], pairs[:, k + 1], users) for k in (0, 2)]
        cells = [f"{mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]" for mean in (*means, *shares)]
        print(f"{name:<12} {len(users):>8,}  {''.join(f'{cell:<26}' for cell in cells)}")
    reference = found["growth"]
    for name in POLICIES[1:]:
        users = np.concatenate(reference.user)
        gains = []
        for column in ("reward", "new_reward"):
            difference = np.concatenate(getattr(reference, column)) - np.concatenate(getattr(found[name], column))
            gain = mean_interval(difference, users)
            gains.append(f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]")
        print(f"growth - {name}: reward of the half {gains[0]}, from new items {gains[1]}")


def _share(right: NDArray[Any], total: NDArray[Any], users: NDArray[Any]) -> Mean:
    """A ratio of two sums, with its interval."""
    share = right.sum() / max(total.sum(), 1)
    residual = mean_interval((right - share * total) / max(total.mean(), 1e-9), users)
    return replace(
        residual, mean=share, low=share + residual.low - residual.mean, high=share + residual.high - residual.mean
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="a store with times; the newsfeed if there is none")
    parser.add_argument("--first-days", type=int, default=2, help="days before items arrive")
    parser.add_argument("--days", type=int, default=15)
    parser.add_argument("--agent", default="gru4rec")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the sessions of a day")
    parser.add_argument("--limit", type=int, help="most sessions of each part")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.store is None or not options.store.is_dir():
            log = generate_log(Path(folder), options.days, options.first_days)
        else:
            log = read_log(Store.open(options.store), options.limit)
        n_days = min(options.days, int(log.day.max()) + 1)
        show(replay(log, options.first_days, n_days, options.agent, options.epochs, options.seed))


if __name__ == "__main__":
    main()
