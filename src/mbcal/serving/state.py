"""What the service remembers between requests.

Of a session: its history and the items shown with their behaviours. Of a decision: its items and its session, so that
feedback finds the session. Kept in memory for one server, or in Redis for several, so that feedback may go to another
server than the one that ranked. Both expire after `lifetime` seconds without a request. Steps are keyed by (decision,
item), so feedback that arrives twice, late or out of order leads to the same session.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from mbcal.errors import OptionError

MAX_STEPS = 1_000
"""Steps kept of a session; of a longer one the latest."""


class Step(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One item shown and its behaviour. Steps are ordered by the time of their decision, then by rank."""

    time: int
    """Of the decision, in microseconds since 1970."""
    rank: int
    """Position of the item in its decision, from 0."""
    decision: str
    item: str
    behaviour: str


class Session(msgspec.Struct, frozen=True, array_like=True):
    """The remembered part of a session."""

    user: str
    history: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...] = ()

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """(item, behaviour) pairs, oldest first."""
        return tuple((step.item, step.behaviour) for step in self.steps)

    def after(self, step: Step) -> Session:
        """Return the session with this step added; unchanged if it has a step of the same decision and item."""
        if any(step.decision == other.decision and step.item == other.item for other in self.steps):
            return self
        return msgspec.structs.replace(self, steps=tuple(sorted((*self.steps, step)))[-MAX_STEPS:])


class DecisionRef(msgspec.Struct, frozen=True, array_like=True):
    """A decision that feedback can refer to."""

    session: str | None
    time: int
    """In microseconds since 1970."""
    items: list[str]
    version: str


class SessionStore(Protocol):
    """Storage of sessions and decisions."""

    async def get(self, name: str) -> Session | None:
        """Return a session, or None if it is unknown or has expired."""

    async def begin(self, name: str, session: Session) -> Session:
        """Store a session unless there is one of this name; return the stored one."""

    async def add(self, name: str, step: Step) -> Session | None:
        """Add a step to a session and return the session; None if it is unknown or has expired."""

    async def remember_decision(self, decision: str, reference: DecisionRef) -> None:
        """Store a decision."""

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        """Return a decision, or None if it is unknown or has expired."""

    async def close(self) -> None:
        """Close connections."""


class MemoryStore:
    """Sessions and decisions in this process's memory; the least recently used are dropped when there are too many."""

    def __init__(
        self,
        lifetime: float = 1800.0,
        max_sessions: int = 200_000,
        max_decisions: int = 50_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            lifetime: Seconds after its last request at which a session expires.
            max_sessions: Number of sessions kept.
            max_decisions: Number of decisions kept.
            clock: Seconds, from any start.
        """
        self._lifetime, self._max_sessions, self._max_decisions, self._clock = lifetime, max_sessions, max_decisions, clock
        self._sessions: OrderedDict[str, tuple[float, Session]] = OrderedDict()
        self._decisions: OrderedDict[str, DecisionRef] = OrderedDict()

    @property
    def n_sessions(self) -> int:
        """Number of sessions held, expired ones included until the next write."""
        return len(self._sessions)

    async def get(self, name: str) -> Session | None:
        return self._recall(name, self._clock())

    async def begin(self, name: str, session: Session) -> Session:
        now = self._clock()
        return self._keep(name, self._recall(name, now) or session, now)

    async def add(self, name: str, step: Step) -> Session | None:
        now = self._clock()
        session = self._recall(name, now)
        return None if session is None else self._keep(name, session.after(step), now)

    def _recall(self, name: str, now: float) -> Session | None:
        entry = self._sessions.get(name)
        if entry is None or entry[0] < now:
            self._sessions.pop(name, None)
            return None
        return entry[1]

    def _keep(self, name: str, session: Session, now: float) -> Session:
        self._sessions[name] = (now + self._lifetime, session)
        self._sessions.move_to_end(name)
        while len(self._sessions) > self._max_sessions or next(iter(self._sessions.values()))[0] < now:
            self._sessions.popitem(last=False)
        return session

    async def remember_decision(self, decision: str, reference: DecisionRef) -> None:
        self._decisions[decision] = reference
        if len(self._decisions) > self._max_decisions:
            self._decisions.popitem(last=False)

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        return self._decisions.get(decision)

    async def close(self) -> None:
        """Do nothing."""


class RedisStore:
    """Sessions and decisions in Redis, for several servers.

    A session is one value, changed under WATCH, so that no step is lost when two servers add steps at the same time.
    """

    def __init__(self, address: str, lifetime: float = 1800.0) -> None:
        """Prepare a connection; it is opened by the first call.

        Args:
            address: A redis://, rediss:// or unix:// address.
            lifetime: Seconds after its last request at which a session expires.

        Raises:
            OptionError: If the Redis client is not installed.
        """
        try:
            import redis.asyncio as redis
        except ImportError as error:
            raise OptionError("state: Redis needs the package redis; pip install 'mbcal[serve]'") from error
        self._redis: Any = redis.Redis.from_url(address, socket_timeout=2.0, socket_connect_timeout=2.0)
        self._lifetime = int(lifetime)

    async def get(self, name: str) -> Session | None:
        return _decoded(await self._redis.get(_key(name)))

    async def remember_decision(self, decision: str, reference: DecisionRef) -> None:
        await self._redis.set(f"mbcal:decision:{decision}", msgspec.msgpack.encode(reference), ex=self._lifetime)

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        value = await self._redis.get(f"mbcal:decision:{decision}")
        return None if value is None else msgspec.msgpack.decode(value, type=DecisionRef)

    async def begin(self, name: str, session: Session) -> Session:
        created = await self._redis.set(_key(name), msgspec.msgpack.encode(session), ex=self._lifetime, nx=True)
        if created:
            return session
        return await self.get(name) or session

    async def add(self, name: str, step: Step) -> Session | None:
        import redis.exceptions

        key = _key(name)
        async with self._redis.pipeline(transaction=True) as pipe:
            while True:
                await pipe.watch(key)
                stored = _decoded(await pipe.get(key))
                if stored is None:
                    await pipe.unwatch()
                    return None
                session = stored.after(step)
                pipe.multi()
                pipe.set(key, msgspec.msgpack.encode(session), ex=self._lifetime)
                try:
                    await pipe.execute()
                except redis.exceptions.WatchError:  # another server changed it in between; read it again
                    continue
                return session

    async def close(self) -> None:
        await self._redis.aclose()


def session_store(address: str, lifetime: float) -> SessionStore:
    """Make the session store of an address.

    Args:
        address: `memory`, or a redis://, rediss:// or unix:// address.
        lifetime: Seconds after its last request at which a session expires.

    Raises:
        OptionError: If the address is neither, or the Redis client is not installed.
    """
    if address == "memory":
        return MemoryStore(lifetime)
    if address.startswith(("redis://", "rediss://", "unix://")):
        return RedisStore(address, lifetime)
    raise OptionError(f"state: {address!r} is neither memory nor a redis:// address; give one of them")


def _key(name: str) -> str:
    return f"mbcal:session:{name}"


def _decoded(value: bytes | None) -> Session | None:
    return None if value is None else msgspec.msgpack.decode(value, type=Session)
