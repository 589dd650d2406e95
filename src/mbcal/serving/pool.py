"""The traffic of all workers of a server: each counts for itself, the supervisor counts sessions, and any of them answers.

::

    worker 0 ── Snapshot (slots, counts, events of sessions) ──▶ TrafficPool (supervisor) ── Pool ──▶ /v1/stats of worker 0
"""

from __future__ import annotations

import time
from copy import copy
from typing import TYPE_CHECKING

import msgspec

from mbcal.serving.traffic import SLOTS, Rewards, SessionEvent, SessionRewards, Slot, VersionCounts

if TYPE_CHECKING:
    from mbcal.serving.service import Service


class LogStats(msgspec.Struct):
    """The decision log on disk; of several workers the sum."""

    bytes: int | None
    """Null if a folder cannot be read."""
    free: int | None
    """Bytes free on its disk."""
    disk: int | None
    """Size of its disk."""
    waiting: int
    """Records that are not on disk yet."""


class Snapshot(msgspec.Struct, array_like=True):
    """What one worker has counted."""

    slots: list[Slot]
    counts: dict[str, VersionCounts]
    """By version, since the worker started."""
    log: LogStats | None
    events: list[SessionEvent]
    """Of sessions, since the last snapshot."""


class Pool(msgspec.Struct, array_like=True):
    """What all workers have counted."""

    snapshots: list[Snapshot]
    """The latest of every worker, without events."""
    rewards: dict[int, dict[str, Rewards]]
    """As `SessionRewards.slots`."""
    totals: dict[str, Rewards]
    elsewhere: int
    ended: Snapshot | None = None
    """Of all workers that have ended, what they had counted when they last reported."""
    started: float | None = None
    """When the supervisor started, by the clock that all processes of a machine share and nobody sets (`time.monotonic`);
    None if there is none."""

    @property
    def _all(self) -> list[Snapshot]:
        return self.snapshots if self.ended is None else [*self.snapshots, self.ended]

    @property
    def slots(self) -> list[Slot]:
        """The slots of all workers added, oldest first."""
        snapshots = self._all
        if len(snapshots) == 1:
            return snapshots[0].slots
        slots: dict[int, Slot] = {}
        for snapshot in snapshots:
            for slot in snapshot.slots:
                if slot.number in slots:
                    slots[slot.number].merge(slot)
                else:
                    slots[slot.number] = msgspec.structs.replace(slot, refusals=dict(slot.refusals))
        last = max(snapshot.slots[-1].number for snapshot in self.snapshots)  # `ended` may be of a clock ahead
        first = min(last, max(min(slots), last - SLOTS + 1))  # a snapshot of before the clock was set may be far away
        return [slots.get(number) or Slot(number) for number in range(first, last + 1)]

    @property
    def counts(self) -> dict[str, VersionCounts]:
        """The counts of all workers added, by version."""
        counts: dict[str, VersionCounts] = {}
        for snapshot in self._all:
            for version, other in snapshot.counts.items():
                counts[version] = counts.get(version, VersionCounts()) + other
        return counts

    @property
    def log(self) -> LogStats | None:
        """The logs of all workers together; None if nothing is logged."""
        logs = [snapshot.log for snapshot in self.snapshots if snapshot.log is not None]
        if not logs:
            return None
        sizes = [log.bytes for log in logs]
        used = None if None in sizes else sum(size or 0 for size in sizes)
        return LogStats(used, logs[0].free, logs[0].disk, sum(log.waiting for log in logs))


class TrafficPool:
    """Where the traffic of all workers comes together."""

    def __init__(self) -> None:
        self._snapshots: dict[str, Snapshot] = {}
        self._ended: Snapshot | None = None
        self._started = time.monotonic()
        self._rewards = SessionRewards()

    def exchange(self, worker: str, snapshot: Snapshot) -> Pool:
        """Take a worker's snapshot and return those of all."""
        for event in snapshot.events:
            self._rewards.apply(event)
        self._snapshots[worker] = msgspec.structs.replace(snapshot, events=[])
        return self._pool()

    def remove(self, worker: str) -> None:
        """Keep what a worker that has ended had counted when it last reported."""
        if worker in self._snapshots:
            both = Pool([self._snapshots.pop(worker)], {}, {}, 0, self._ended)
            self._ended = Snapshot(both.slots, both.counts, None, [])

    def _pool(self) -> Pool:
        rewards = self._rewards
        snapshots = list(self._snapshots.values())
        return Pool(snapshots, rewards.slots, rewards.totals, rewards.elsewhere, self._ended, self._started)


def snapshot_of(service: Service, log: LogStats | None) -> Snapshot:
    """Return what this process has counted; events of sessions are taken out."""
    counts = {name: copy(one) for name, one in service.counts.items()}
    return Snapshot(service.traffic.slots(), counts, log, service.traffic.take_events() if service.workers else [])


def pool_of_one(snapshot: Snapshot, rewards: SessionRewards) -> Pool:
    """Return the pool of a server that is one process."""
    return Pool([snapshot], rewards.slots, rewards.totals, rewards.elsewhere)
