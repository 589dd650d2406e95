"""What the server does, without HTTP: rank, take feedback, follow the registry, count.

::

    request ──▶ session remembered ──▶ Ranker (one version) ──▶ decision logged, on disk ──▶ answer
    feedback ──▶ logged, on disk ──▶ session remembered
    registry ──▶ watched twice a second ──▶ a new version is opened and checked aside, then takes over between two requests
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from mbcal.decision_log.records import Decision, Feedback
from mbcal.decision_log.writer import DecisionLog
from mbcal.errors import InputError, MbcalError
from mbcal.registry.registry import Registry, Version
from mbcal.serving.messages import (
    FeedbackAnswer,
    FeedbackRequest,
    RankAnswer,
    RankRequest,
)
from mbcal.serving.ranker import Ranker
from mbcal.serving.state import DecisionRef, Session, SessionStore, Step

WATCH_EVERY = 0.4
"""Seconds between looks at the registry's pointer."""
ANSWERED = 50_000
"""Decisions whose answers are kept, for clients that ask again and for feedback."""

OnEvent = Callable[..., None]
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a request may ask for."""

    candidates: int = 1000
    body: int = 512 * 1024
    """Bytes."""
    seconds: float = 5.0
    """To send a body in."""
    at_once: int = 64
    """Requests in work; more are told to come again."""
    rate: float = 0.0
    """Requests a second and client; 0 is no limit."""


@dataclass
class VersionCounts:
    """What a version has done since the server began."""

    decisions: int = 0
    sessions: int = 0
    feedback: int = 0
    reward: float = 0.0


@dataclass
class Service:
    """One process that ranks. All of it runs in one event loop; only opening versions and syncing the log happen aside."""

    registry: Registry
    sessions: SessionStore
    log: DecisionLog | None
    epsilon: float
    limits: Limits = field(default_factory=Limits)
    on_event: OnEvent = lambda *_, **__: None
    """Where events go: tell("swapped", version=…)."""

    def __post_init__(self) -> None:
        self.ranker: Ranker | None = None
        self.refused: dict[str, str] = {}
        self.tallies: dict[str, VersionCounts] = {}
        self.began = time.time()
        self._new_id = _Ids()
        self._random = np.random.default_rng(secrets.randbits(128))
        self._answers: OrderedDict[str, asyncio.Future[RankAnswer]] = OrderedDict()
        self._told: OrderedDict[tuple[str, str], asyncio.Future[FeedbackAnswer]] = OrderedDict()

    # ---- versions

    async def follow_registry(self) -> None:
        """Look at the registry for ever; what is wrong with a new version is told, and the old one serves on."""
        while True:
            await self.refresh_version()
            await asyncio.sleep(WATCH_EVERY)

    async def refresh_version(self) -> None:
        """Take the registry's current version unless it is the one at work."""
        try:
            name = self.registry.current()
            if name is None or name in self.refused or (self.ranker is not None and self.ranker.version.name == name):
                return
            self.ranker = await asyncio.to_thread(lambda: Ranker(self.registry.open(name)))
            self.tallies.setdefault(name, VersionCounts())
            self.on_event("swapped", version=name)
        except MbcalError as error:
            self.refused[str(name)] = str(error)
            self.on_event("refused", version=name, error=str(error))

    @property
    def live(self) -> Ranker:
        """The version at work."""
        if self.ranker is None:
            raise NotReadyError("no version is published yet; publish one with 'mbcal registry publish'")
        return self.ranker

    # ---- ranking

    async def rank(self, request: RankRequest) -> RankAnswer:
        """Rank for one user. Asked twice with one id, the first answer is given twice."""
        if request.id is None:
            return await self._rank(request, self._new_id())
        return await _once(self._answers, request.id, lambda: self._rank(request, str(request.id)))

    async def _rank(self, request: RankRequest, decision: str) -> RankAnswer:
        known = await self._session(request)
        ranker, epsilon = self.live, self.epsilon  # one version for the whole answer, whatever happens meanwhile
        candidates = ranker.reader.read(request.candidates, request.k, self.limits.candidates)
        shown = known.shown if request.shown is None else tuple(request.shown)
        uniform = self._random.random((min(request.k, len(candidates.rows)), 2))
        items = ranker.rank(known.history, shown, candidates, request.k, epsilon, uniform, request.session)
        names, version, now = [entry.item for entry in items], ranker.version.name, time.time_ns() // 1000
        if self.log is not None:
            await self.log.append_async(
                Decision(
                    id=decision,
                    time=now,
                    session=request.session or "",
                    user=known.user,
                    step=len(shown),
                    version=version,
                    epsilon=epsilon,
                    history=list(known.history),
                    shown=list(shown),
                    candidates=candidates.logged(),
                    items=names,
                    propensities=[entry.propensity for entry in items],
                )
            )
        await self.sessions.remember_decision(decision, DecisionRef(request.session, now, names, version))
        tally = self.tallies[version]
        tally.decisions += 1
        tally.sessions += not shown
        return RankAnswer(decision, version, epsilon, items)

    async def _session(self, request: RankRequest) -> Session:
        said = Session(request.user or "", tuple(request.history))
        return said if request.session is None else await self.sessions.begin(request.session, said)

    # ---- feedback

    async def feedback(self, request: FeedbackRequest) -> FeedbackAnswer:
        """Take what came of an item. The same again changes nothing."""
        made = await self.sessions.recall_decision(request.decision)
        if made is None and request.item is None:
            raise InputError("item: this decision is not remembered any more; name the item the feedback is about")
        item = request.item if request.item is not None or made is None else made.items[0]
        if made is not None and item not in made.items:
            raise InputError(f"item: {item!r} is not among those of decision {request.decision}")
        behaviours = self.live.version.behaviours
        reward = behaviours.rewards[behaviours.index(request.behaviour)]
        return await _once(
            self._told, (request.decision, str(item)), lambda: self._feedback(request, str(item), made, reward)
        )

    async def _feedback(
        self, request: FeedbackRequest, item: str, made: DecisionRef | None, reward: float
    ) -> FeedbackAnswer:
        if self.log is not None:
            now = time.time_ns() // 1000
            await self.log.append_async(Feedback(request.decision, item, request.behaviour, now, self._new_id()))
        if made is None:
            return FeedbackAnswer(request.decision, False)
        tally = self.tallies.setdefault(made.version, VersionCounts())
        tally.feedback += 1
        tally.reward += reward
        if made.session is None:
            return FeedbackAnswer(request.decision, True)
        step = Step(made.time, made.items.index(item), request.decision, item, request.behaviour)
        return FeedbackAnswer(request.decision, await self.sessions.add(made.session, step) is not None)

    # ---- what people see

    def model(self) -> dict[str, Any]:
        """The live version in plain values."""
        version = self.live.version
        assert isinstance(version, Version)  # noqa: S101 - what `look` put there
        return {
            "version": version.name,
            "agent": version.manifest["agent"],
            "items": len(version.catalog),
            "behaviours": list(version.behaviours.names),
            "rewards": list(version.behaviours.rewards),
            "metrics": dict(version.metrics),
            "parent": version.parent,
            "epsilon": self.epsilon,
            "refused": dict(self.refused),
        }

    def stats(self) -> dict[str, Any]:
        """Traffic and reward, by version."""
        return {
            "seconds": time.time() - self.began,
            "live": None if self.ranker is None else self.ranker.version.name,
            "epsilon": self.epsilon,
            "versions": {
                name: {
                    "decisions": tally.decisions,
                    "sessions": tally.sessions,
                    "feedback": tally.feedback,
                    "reward per session": tally.reward / tally.sessions if tally.sessions else None,
                }
                for name, tally in self.tallies.items()
            },
        }

    async def close(self) -> None:
        """Everything acknowledged is on disk; let go of the rest."""
        await self.sessions.close()
        if self.log is not None:
            await asyncio.to_thread(self.log.close)


class NotReadyError(MbcalError):
    """There is nothing to rank by yet."""


async def _once(kept: OrderedDict[Any, asyncio.Future[T]], key: Any, work: Callable[[], Awaitable[T]]) -> T:
    """What the work gives, done once a key while it is remembered; work that fails is forgotten."""
    if key in kept:
        return await asyncio.shield(kept[key])
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    kept[key] = future
    if len(kept) > ANSWERED:
        kept.popitem(last=False)
    try:
        future.set_result(await work())
    except BaseException as error:
        kept.pop(key, None)
        future.set_exception(error)
        with contextlib.suppress(BaseException):
            future.exception()  # seen: nobody else may be waiting
        raise
    return future.result()


class _Ids:
    """Unique, and rising with time. Chance is fetched in advance: asking the kernel each time lets other threads in."""

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def __call__(self) -> str:
        if not self._drawn:
            drawn = secrets.token_hex(8 * 256)
            self._drawn = [drawn[start : start + 16] for start in range(0, len(drawn), 16)]
        return f"{time.time_ns() // 1_000_000:012x}{self._drawn.pop()}"
