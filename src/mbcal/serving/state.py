"""What the service remembers between requests: of a session its history, and what was shown with which behaviour; of a
decision what was shown to whom, so that feedback finds its session.

In memory for one process, in Redis for several: whoever of them ranked, any may be told what came of it. What has not been
heard of for `lifetime` seconds is forgotten. Steps are kept by (decision, item), so feedback that comes twice, late or out
of order changes nothing it should not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from mbcal.errors import OptionError

LONGEST = 1_000
"""Steps remembered of a session; of a longer one the newest."""


class Step(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One item shown, and what came of it. Steps are in order of time, then of place in their decision."""

    time: int
    place: int
    decision: str
    item: str
    behaviour: str


class Session(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a session."""

    user: str
    history: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...] = ()

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """(item, behaviour), oldest first."""
        return tuple((step.item, step.behaviour) for step in self.steps)

    def after(self, step: Step) -> Session:
        """With this step in its place; the same session where the step is already there."""
        if any(step.decision == known.decision and step.item == known.item for known in self.steps):
            return self
        return msgspec.structs.replace(self, steps=tuple(sorted((*self.steps, step)))[-LONGEST:])


class DecisionRef(msgspec.Struct, frozen=True, array_like=True):
    """A decision that feedback can refer to."""

    session: str | None
    time: int
    items: list[str]
    version: str


class SessionStore(Protocol):
    """Where sessions and decisions are remembered."""

    async def get(self, name: str) -> Session | None:
        """A session, if it has been heard of lately."""

    async def begin(self, name: str, session: Session) -> Session:
        """Remember a session unless it is known; what is remembered now."""

    async def add(self, name: str, step: Step) -> Session | None:
        """Remember a step of a known session; None where the session is forgotten."""

    async def remember_decision(self, decision: str, made: DecisionRef) -> None:
        """Remember a decision."""

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        """A decision, if it is remembered."""

    async def close(self) -> None:
        """Let go of connections."""


class MemoryStore:
    """In this process; the longest silent go first when there are too many."""

    def __init__(
        self,
        lifetime: float = 1800.0,
        most: int = 200_000,
        decisions: int = 50_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lifetime, self._most, self._most_decisions, self._clock = lifetime, most, decisions, clock
        self._sessions: OrderedDict[str, tuple[float, Session]] = OrderedDict()
        self._decisions: OrderedDict[str, DecisionRef] = OrderedDict()

    async def get(self, name: str) -> Session | None:
        return self._recall(name, self._clock())

    async def begin(self, name: str, session: Session) -> Session:
        now = self._clock()
        return self._keep(name, self._recall(name, now) or session, now)

    async def add(self, name: str, step: Step) -> Session | None:
        now = self._clock()
        known = self._recall(name, now)
        return None if known is None else self._keep(name, known.after(step), now)

    def _recall(self, name: str, now: float) -> Session | None:
        known = self._sessions.get(name)
        if known is None or known[0] < now:
            self._sessions.pop(name, None)
            return None
        return known[1]

    def _keep(self, name: str, session: Session, now: float) -> Session:
        self._sessions[name] = (now + self._lifetime, session)
        self._sessions.move_to_end(name)
        while len(self._sessions) > self._most or next(iter(self._sessions.values()))[0] < now:
            self._sessions.popitem(last=False)
        return session

    async def remember_decision(self, decision: str, made: DecisionRef) -> None:
        self._decisions[decision] = made
        if len(self._decisions) > self._most_decisions:
            self._decisions.popitem(last=False)

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        return self._decisions.get(decision)

    async def close(self) -> None:
        """Nothing to let go of."""


class RedisStore:
    """In Redis, for several servers. A session is one value, changed under WATCH, so that two servers lose no step."""

    def __init__(self, address: str, lifetime: float = 1800.0) -> None:
        try:
            import redis.asyncio as redis
        except ImportError as error:
            raise OptionError("state: Redis needs its client; pip install 'mbcal[serve]'") from error
        self._redis: Any = redis.Redis.from_url(address, socket_timeout=2.0, socket_connect_timeout=2.0)
        self._lifetime = int(lifetime)

    async def get(self, name: str) -> Session | None:
        return _decoded(await self._redis.get(_key(name)))

    async def remember_decision(self, decision: str, made: DecisionRef) -> None:
        await self._redis.set(f"mbcal:decision:{decision}", msgspec.msgpack.encode(made), ex=self._lifetime)

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        value = await self._redis.get(f"mbcal:decision:{decision}")
        return None if value is None else msgspec.msgpack.decode(value, type=DecisionRef)

    async def begin(self, name: str, session: Session) -> Session:
        made = await self._redis.set(_key(name), msgspec.msgpack.encode(session), ex=self._lifetime, nx=True)
        if made:
            return session
        return await self.get(name) or session

    async def add(self, name: str, step: Step) -> Session | None:
        import redis.exceptions

        key = _key(name)
        async with self._redis.pipeline(transaction=True) as pipe:
            while True:
                await pipe.watch(key)
                known = _decoded(await pipe.get(key))
                if known is None:
                    await pipe.unwatch()
                    return None
                session = known.after(step)
                pipe.multi()
                pipe.set(key, msgspec.msgpack.encode(session), ex=self._lifetime)
                try:
                    await pipe.execute()
                except redis.exceptions.WatchError:  # another server was faster; look again
                    continue
                return session

    async def close(self) -> None:
        await self._redis.aclose()


def session_store(address: str, lifetime: float) -> SessionStore:
    """`memory`, or the address of a Redis server."""
    if address == "memory":
        return MemoryStore(lifetime)
    if address.startswith(("redis://", "rediss://", "unix://")):
        return RedisStore(address, lifetime)
    raise OptionError(f"state: {address!r} is neither memory nor a redis:// address")


def _key(name: str) -> str:
    return f"mbcal:session:{name}"


def _decoded(value: bytes | None) -> Session | None:
    return None if value is None else msgspec.msgpack.decode(value, type=Session)
