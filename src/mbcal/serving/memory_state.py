"""Sessions and decisions in the memory of one process, bounded in bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from sys import getsizeof
from typing import Generic, NamedTuple, TypeVar

from mbcal.serving.bounded import BoundedDict, FairDict, pairs_bytes
from mbcal.serving.state import SESSION_BYTES, STEP_BYTES, DecisionRef, Session, Step, reference_bytes

T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    """A session or a decision in memory."""

    expires: float
    value: T
    size: int


class MemoryStore:
    """Sessions and decisions in this process's memory; if they grow too large, the client that has most loses its oldest."""

    available, outages, is_shared, is_required = True, 0, False, False

    def __init__(
        self, lifetime: float = 1800.0, max_bytes: int = 256 << 20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start empty.

        Args:
            lifetime: Seconds after its last request at which a session expires, and after which a decision does.
            max_bytes: Bytes of all sessions (two thirds of them) and all decisions (one third).
            clock: Seconds, from any start.
        """
        self._lifetime, self._clock = lifetime, clock
        self._sessions: FairDict[str, _Kept[Session]] = FairDict(max_bytes * 2 // 3)
        self._decisions: FairDict[str, _Kept[DecisionRef]] = FairDict(max_bytes // 3)
        self._claims: set[str] = set()  # as many as requests in progress

    @property
    def n_sessions(self) -> int:
        """Number of sessions held, expired ones included until the next write."""
        return len(self._sessions)

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of all sessions and decisions."""
        return self._sessions.used_bytes + self._decisions.used_bytes

    async def get(self, name: str) -> Session | None:
        now = self._clock()
        kept = self._recall(name, now)
        return None if kept is None else self._keep(name, kept.value, kept.size, now)

    async def begin(self, name: str, session: Session) -> Session:
        now = self._clock()
        kept = self._recall(name, now) or _Kept(0.0, session, _session_bytes(session))
        return self._keep(name, kept.value, kept.size, now)

    async def add(self, name: str, step: Step) -> Session | None:
        now = self._clock()
        kept = self._recall(name, now)
        if kept is None:
            return None
        session = kept.value.after(step)
        return self._keep(name, session, _session_bytes(session), now)

    def _recall(self, name: str, now: float) -> _Kept[Session] | None:
        kept = self._sessions.get(name)
        if kept is None or kept.expires < now:
            self._sessions.pop(name)
            return None
        return kept

    def _keep(self, name: str, session: Session, size: int, now: float) -> Session:
        self._sessions.put(name, _Kept(now + self._lifetime, session, size), size)
        _drop_expired(self._sessions, now)
        return session

    async def remember_decision(self, decision: str, reference: DecisionRef) -> DecisionRef:
        self._claims.discard(decision)
        first, now = await self.recall_decision(decision), self._clock()
        if first is not None and first.is_final:
            return first
        size = reference_bytes(reference)
        self._decisions.put(decision, _Kept(now + self._lifetime, reference, size), size)
        _drop_expired(self._decisions, now)
        return reference

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        kept = self._decisions.get(decision)
        return None if kept is None or kept.expires < self._clock() else kept.value

    async def claim_decision(self, decision: str) -> DecisionRef | bool:
        known = await self.recall_decision(decision)
        if known is not None and known.is_final:
            return known
        is_free = decision not in self._claims
        self._claims.add(decision)
        return is_free

    async def release_decision(self, decision: str) -> None:
        self._claims.discard(decision)

    async def close(self) -> None:
        """Do nothing."""


def _drop_expired(kept: BoundedDict[str, _Kept[T]], now: float) -> None:
    while (oldest := kept.oldest()) is not None and oldest.expires < now:
        kept.drop_oldest()


def _session_bytes(session: Session) -> int:
    steps = sum(
        [
            STEP_BYTES + getsizeof(step.decision) + getsizeof(step.item) + getsizeof(step.behaviour) + len(step.context)
            for step in session.steps
        ]
    )
    return SESSION_BYTES + getsizeof(session.user) + len(session.user_features) + pairs_bytes(session.history) + steps
