"""The answers of `/v1/stats`, `/v1/model` and `/v1/registry`: what an operator should know. Null is unknown, never 0."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from mbcal.errors import MbcalError
from mbcal.registry.pointer import read_pointer
from mbcal.registry.registry import Registry
from mbcal.registry.summary import version_summaries
from mbcal.registry.updates import read_trial, read_updates
from mbcal.registry.version import Version
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import ModelAnswer
from mbcal.serving.pool import LogStats, Pool
from mbcal.serving.sentences import without_paths
from mbcal.serving.traffic import BOUNDS, DELAY_BOUNDS, SLOT_SECONDS, SLOTS, Rewards, Slot, VersionCounts, quantile
from mbcal.types import Fields

if TYPE_CHECKING:
    from mbcal.serving.service import Service

WINDOW_SLOTS = 30
"""Slots of `RecentTraffic`: five minutes."""
REWARD_SLOTS = (6, 12, 30, 60)
"""Slots of one point of the reward over time: one to ten minutes."""
SESSIONS_PER_POINT = 30
"""Sessions that a point should have on average."""
EXAMPLES = 12
"""Items named by `/v1/model`."""
MAX_VERSIONS = 50
"""Versions listed by `/v1/registry`."""


class VersionStats(msgspec.Struct):
    """Traffic of one version since the server started."""

    decisions: int
    sessions: int
    feedback: int
    reward_per_session: float | None
    """Of sessions with a name, or of all if none has one; null before the first session."""
    low: float | None = None
    """Lower end of the 95% interval of the reward per session; null if fewer than two sessions had a name."""
    high: float | None = None


class RecentTraffic(msgspec.Struct):
    """Requests to rank and with feedback, of the last five minutes."""

    seconds: float
    """Length of the window; shorter than five minutes after a start."""
    requests: int
    per_second: float
    p50: float | None
    """Median duration in seconds, of requests that were not refused."""
    p99: float | None
    refusals: dict[str, int]
    """Refusals and errors by status."""
    candidates: int
    unknown: int
    """Candidates that are not in the catalogue."""
    decisions: int
    with_feedback: int
    """How many of these decisions have feedback."""
    delay_p50: float | None
    """Median seconds from decision to feedback."""
    delay_p90: float | None


class TrafficSeries(msgspec.Struct):
    """The last hour in slots, oldest first, without the slot that is not over."""

    begin: float
    """Start of the first slot, in seconds since 1970."""
    step: float
    """Seconds of a slot."""
    requests: list[int]
    refused: list[int]
    """Requests that were refused or failed."""
    p50: list[float | None]
    p99: list[float | None]


class RewardPoint(msgspec.Struct):
    """Sessions of one version that began within some minutes."""

    begin: float
    seconds: float
    """Length of that time: 60 to 600."""
    sessions: int
    mean: float
    low: float | None
    high: float | None


class StatsAnswer(msgspec.Struct):
    """Traffic since the server started, and in the last minutes."""

    seconds: float
    """Since the server started."""
    live: str | None
    """The live version; null if none is published."""
    epsilon: float
    versions: dict[str, VersionStats]
    recent: RecentTraffic
    series: TrafficSeries
    rewards: dict[str, list[RewardPoint]]
    """Reward per session of the last hour, by version: sessions with a name, by the time they began."""
    sessions: int | None = None
    """Sessions remembered; null if another process remembers them."""
    registry_age: float | None = None
    """Seconds since the registry was last read without an error."""
    log: LogStats | None = None
    """Null if nothing is logged."""
    workers: int = 1
    """Processes whose traffic this is."""
    elsewhere: int = 0
    """Feedback in sessions that began on another server, or before this one: not in `rewards`, nor in the intervals."""
    canary: str | None = None
    """The canary that gets sessions here; null if there is none."""
    canary_share: float = 0.0
    """Share of users, or of sessions without a user, that a canary gets here."""


class RegistryAnswer(msgspec.Struct):
    """The registry's versions and the last updates."""

    live: str | None
    canary: str | None
    """The version that gets a share of users, or of sessions without a user, beside the live one."""
    trial: dict[str, Any] | None
    """The last look at the canary: time, action, reason, comparison; null if there was none."""
    before: list[str]
    """Versions that were live before, oldest first; a rollback makes the last one live."""
    versions: list[dict[str, Any]]
    """Oldest first: version, state, agent, published, parent, metrics; or version, state, damaged."""
    updates: list[dict[str, Any]]
    """Newest first: number, time, live, answer, action, version, reason, checks, page."""
    problem: str | None = None
    """Why the registry cannot be read."""


def stats_answer(service: Service, pool: Pool) -> StatsAnswer:
    """Return what a service and its other workers have counted."""
    slots = pool.slots
    return StatsAnswer(
        seconds=time.monotonic() - (pool.started or service.started),
        live=None if service.ranker is None else service.ranker.version.name,
        epsilon=service.epsilon,
        versions={name: _version_stats(counts, pool.totals.get(name)) for name, counts in pool.counts.items()},
        recent=recent_traffic(slots),
        series=traffic_series(slots),
        rewards=reward_points(pool.rewards),
        sessions=service.sessions.n_sessions if isinstance(service.sessions, MemoryStore) else None,
        registry_age=service.follower.age,
        log=pool.log,
        workers=len(pool.snapshots),
        elsewhere=pool.elsewhere,
        canary=service.canary.name,
        canary_share=service.canary.settings.share,
    )


def _kinds(fields: Fields) -> dict[str, str]:
    return {field.name: field.kind for field in fields}


def model_answer(service: Service) -> ModelAnswer:
    """Describe a service's live version; raises NotReadyError if there is none."""
    version = service.live.version
    assert isinstance(version, Version)  # noqa: S101 - services open nothing else
    return ModelAnswer(
        version=version.name,
        agent=version.manifest["agent"],
        items=len(version.catalog),
        behaviours=list(version.behaviours.names),
        rewards=list(version.behaviours.rewards),
        metrics=dict(version.metrics),
        parent=version.parent,
        epsilon=service.epsilon,
        context=_kinds(service.live.fields.fields.context),
        user_features=_kinds(service.live.fields.fields.user),
        refused={name: without_paths(reason, service.folders) for name, reason in service.refused.items()},
        examples=list(version.catalog.items[:: max(len(version.catalog) // EXAMPLES, 1)][:EXAMPLES]),
    )


def recent_traffic(slots: list[Slot]) -> RecentTraffic:
    """Summarise the last five minutes of the slots."""
    window = slots[-WINDOW_SLOTS:]
    total = Slot(0)
    for slot in window:
        total.merge(slot)
    seconds = max(time.time() - window[0].number * SLOT_SECONDS, 1.0)
    return RecentTraffic(
        seconds=seconds,
        requests=total.requests,
        per_second=total.requests / seconds,
        p50=quantile(total.durations, BOUNDS, 0.5),
        p99=quantile(total.durations, BOUNDS, 0.99),
        refusals={str(status): count for status, count in sorted(total.refusals.items())},
        candidates=total.candidates,
        unknown=total.unknown,
        decisions=total.decisions,
        with_feedback=total.with_feedback,
        delay_p50=quantile(total.delays, DELAY_BOUNDS, 0.5),
        delay_p90=quantile(total.delays, DELAY_BOUNDS, 0.9),
    )


def traffic_series(slots: list[Slot]) -> TrafficSeries:
    """Return the last hour as columns."""
    done = slots[:-1]
    durations = [_p50_p99(tuple(slot.durations)) for slot in done]
    return TrafficSeries(
        begin=slots[0].number * float(SLOT_SECONDS),
        step=float(SLOT_SECONDS),
        requests=[slot.requests for slot in done],
        refused=[sum(slot.refusals.values()) for slot in done],
        p50=[quantiles[0] for quantiles in durations],
        p99=[quantiles[1] for quantiles in durations],
    )


@lru_cache(maxsize=2 * SLOTS)
def _p50_p99(durations: tuple[int, ...]) -> tuple[float | None, float | None]:
    """Quantiles of a slot; slots that are over do not change."""
    return quantile(durations, BOUNDS, 0.5), quantile(durations, BOUNDS, 0.99)


def reward_points(slots: Mapping[int, Mapping[str, Rewards]]) -> dict[str, list[RewardPoint]]:
    """Return the reward per session by version and time; times are longer where there are few sessions."""
    for size in REWARD_SLOTS:
        cells: dict[tuple[str, int], Rewards] = {}
        for number, versions in slots.items():
            for version, rewards in versions.items():
                cells.setdefault((version, number // size), Rewards()).merge(rewards)
        if sum(rewards.sessions for rewards in cells.values()) >= SESSIONS_PER_POINT * len(cells):
            break
    points: dict[str, list[RewardPoint]] = {}
    seconds = float(size * SLOT_SECONDS)
    for (version, number), rewards in sorted(cells.items()):
        low, high = rewards.interval() or (None, None)
        point = RewardPoint(number * seconds, seconds, rewards.sessions, rewards.total / rewards.sessions, low, high)
        points.setdefault(version, []).append(point)
    return points


def _version_stats(counts: VersionCounts, named: Rewards | None) -> VersionStats:
    """The traffic of one version; mean and interval are those of the sessions with a name, if there are any."""
    if named is not None and named.sessions:
        mean, (low, high) = named.total / named.sessions, named.interval() or (None, None)
        return VersionStats(counts.decisions, counts.sessions, counts.feedback, mean, low, high)
    mean_of_all = counts.reward / counts.sessions if counts.sessions else None
    return VersionStats(counts.decisions, counts.sessions, counts.feedback, mean_of_all)


def log_stats(folder: Path, waiting: int) -> LogStats:
    """Measure the folder of a decision log, and its disk."""
    try:
        used = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
        disk = shutil.disk_usage(folder)
    except OSError:
        return LogStats(None, None, None, waiting)
    return LogStats(used, disk.free, disk.total, waiting)


def registry_answer(registry: Registry) -> RegistryAnswer:
    """Read the registry's pointer, the manifests of its newest versions, and its newest updates."""
    updates = read_updates(registry.path)
    try:
        pointer = read_pointer(registry.path)
        versions = [_without_paths(entry) for entry in version_summaries(registry, MAX_VERSIONS)]
    except MbcalError:
        return RegistryAnswer(None, None, None, [], [], updates, "the registry cannot be read; the server's log says why")
    trial = None if pointer.canary is None else read_trial(registry.path, pointer.canary, pointer.canary_began)
    if trial is not None:
        trial.pop("logs", None)  # paths of this machine
    return RegistryAnswer(pointer.current, pointer.canary, trial, list(pointer.before), versions, updates)


def _without_paths(summary: Mapping[str, Any]) -> dict[str, Any]:
    damaged = {"damaged": "its manifest cannot be read; 'mbcal registry list' says why"} if "damaged" in summary else {}
    return {**summary, **damaged}


T = TypeVar("T")


class Shared(Generic[T]):
    """The result of a coroutine function for all who ask at the same time; made again when it is older than `seconds`.

    Args:
        compute: The coroutine function.
        seconds: Age at which its result is made again; a failure is made again at once.
        patience: Seconds after its begin at which whoever waits for it gives up; None to wait. While it hangs, it is not
            begun again, and whoever asks gets an answer at once.
    """

    def __init__(self, compute: Callable[[], Coroutine[Any, Any, T]], seconds: float, patience: float | None = None) -> None:
        self._compute, self._seconds, self._patience, self._at = compute, seconds, patience, -1e9
        self._task: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Return the result; those who ask while it is made wait for the same one.

        Raises:
            TimeoutError: If it takes longer than `patience`.
        """
        task = self._task
        is_old = task is None or time.monotonic() - self._at > self._seconds
        if task is None or (task.done() and (is_old or task.cancelled() or task.exception() is not None)):
            task = self._task = asyncio.create_task(self._compute())
            self._at = time.monotonic()
        if self._patience is not None:
            await asyncio.wait([task], timeout=max(self._at + self._patience - time.monotonic(), 0.0))
            if not task.done():
                raise TimeoutError("it takes too long")
        return await asyncio.shield(task)
