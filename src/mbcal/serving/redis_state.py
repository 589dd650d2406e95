"""Sessions and decisions in Redis, for several servers.

Redis away is an outage of the memory, not of the service. No call takes longer than `CALL_SECONDS`. After the first call
that fails, further ones fail at once with StateAwayError, so that no request waits, until a ping in the background succeeds.
A value that this service cannot have written concerns its own key only, and counts as none.

What a process keeps alive is bounded as its own memory would be: beyond it, the client that has most loses its oldest
keys. So no client can fill Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from mbcal.errors import OptionError
from mbcal.serving.bounded import FairDict
from mbcal.serving.fields import is_object
from mbcal.serving.messages import RankAnswer
from mbcal.serving.state import CLAIM_SECONDS, DecisionRef, OnEvent, Session, StateAwayError, Step, ignore_event

CALL_SECONDS = 0.25
"""Longest time a call may take, without moments in which the event loop stood still: the answer may have come in them."""
SOCKET_SECONDS = 10.0
"""A backstop for what the client would wait for beyond that. It counts moments in which the event loop stood still, too, so
it is far longer than those are."""
TICKS = 25
"""Parts of this time; a part in which the loop stood still counts as one, whatever it took."""
PING_SECONDS = 0.2
"""Seconds between two pings of a Redis that is away."""

MAX_TRIES = 8
"""Times that a session is read again because another process has just changed it."""

REPLACE = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('set', KEYS[1], ARGV[2], 'ex', ARGV[3])
return 1
"""
"""Script that replaces a value, unless it has been changed since it was read."""

_TIMES = range(1 << 62)
"""Times in microseconds; the next one, and one of the log, must fit into 64 bits."""

T = TypeVar("T")


class KeptKeys(FairDict[str, float]):
    """The keys that this process keeps in Redis, each with the time at which it expires there.

    What has expired is forgotten: another process may have written the key anew since, and it is not this one's to delete.

    Args:
        max_bytes: Bound on the sizes given to `keep` and those of the keys.
        lifetime: Seconds after which a key expires.
        clock: Seconds, from any start.
    """

    def __init__(self, max_bytes: int, lifetime: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(max_bytes)
        self.dropped: list[str] = []
        """Keys that are too much, to be deleted in Redis."""
        self._lifetime, self._clock = lifetime, clock

    def keep(self, key: str, size: int) -> None:
        """Count a key that lives for another lifetime from now, with the bytes of its value."""
        now = self._clock()
        while (expires := self.oldest()) is not None and expires < now:
            self.drop_oldest()
        self.put(key, now + self._lifetime, size)

    def _make_room(self) -> None:
        self.dropped.append(self.next_to_go())
        super()._make_room()


class RedisStore:
    """Sessions and decisions in Redis.

    A session is one value, replaced only by whoever has read the latest one, so that no step is lost when two servers add
    steps at the same time. A script does that, not WATCH: the client ends a WATCH with a call to Redis that nothing limits.
    """

    def __init__(
        self, address: str, lifetime: float = 1800.0, max_bytes: int = 256 << 20, on_event: OnEvent = ignore_event
    ) -> None:
        """Prepare a connection; it is opened by the first call.

        Args:
            address: A redis://, rediss:// or unix:// address.
            lifetime: Seconds after its last request at which a session expires.
            max_bytes: Bytes that this process keeps in Redis.
            on_event: Called once when an outage begins and once when it ends.

        Raises:
            OptionError: If the Redis client is not installed, or the address is not valid.
        """
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError, ResponseError
        except ImportError as error:
            raise OptionError("state: Redis needs the package redis; pip install 'mbcal[serve]'") from error
        try:
            self._redis: Any = Redis.from_url(
                address,
                socket_timeout=SOCKET_SECONDS,
                socket_connect_timeout=SOCKET_SECONDS,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise OptionError(f"state: the Redis address is not valid ({error}); write redis://HOST:PORT/NUMBER") from error
        self._failures, self._response_error = (RedisError, OSError, TimeoutError), ResponseError
        self._lifetime, self._on_event = int(lifetime), on_event
        self._kept = KeptKeys(max_bytes, self._lifetime)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._away_since: float | None = None
        self._pinging: asyncio.Task[None] | None = None
        self.outages, self.used_bytes, self.is_shared, self.is_required = 0, 0, True, False

    @property
    def available(self) -> bool:
        """Whether the last call or ping succeeded."""
        return self._away_since is None

    async def get(self, name: str) -> Session | None:
        return await self._call(lambda: self._get(name))

    async def begin(self, name: str, session: Session) -> Session:
        return await self._call(lambda: self._begin(name, session))

    async def add(self, name: str, step: Step) -> Session | None:
        turn = self._turns.setdefault(name, asyncio.Lock())  # calls of this process take turns; others are seen by REPLACE
        async with turn:
            for _ in range(MAX_TRIES):  # each with the time of a call: who changes a session often is no outage
                is_done, session = await self._call(lambda: self._try_to_add(_session_key(name), step))
                if is_done:
                    return session
        raise StateAwayError("state: too many requests change this session at once; try again in a second")

    async def remember_decision(self, decision: str, reference: DecisionRef) -> DecisionRef:
        return await self._call(lambda: self._remember(_decision_key(decision), reference))

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        return await self._call(lambda: self._read(_decision_key(decision), DecisionRef))

    async def claim_decision(self, decision: str) -> DecisionRef | bool:
        return await self._call(lambda: self._claim(decision))

    async def release_decision(self, decision: str) -> None:
        await self._call(lambda: self._redis.delete(_claim_key(decision)))

    async def close(self) -> None:
        """Close all connections."""
        if self._pinging is not None:
            self._pinging.cancel()
        with contextlib.suppress(Exception):
            async with _patience():
                await self._redis.aclose()

    async def _get(self, name: str) -> Session | None:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.get(_session_key(name))
            pipe.expire(_session_key(name), self._lifetime)
            value, _ = await pipe.execute(raise_on_error=False)
        session = _decoded(found := self._value_of(value), Session)
        if found is not None and session is not None:
            await self._count(_session_key(name), found)
        return session

    async def _begin(self, name: str, session: Session) -> Session:
        key, value = _session_key(name), msgspec.msgpack.encode(session)
        if await self._set(key, value, nx=True):
            return session
        known = await self._get(name)
        if known is None:  # it has just expired, or is no session
            await self._set(key, value)
        return known or session

    async def _set(self, key: str, value: bytes, nx: bool = False) -> bool:
        """Set a value, with `nx` only if the key is free; return whether it was set."""
        is_set = bool(await self._redis.set(key, value, ex=self._lifetime, nx=nx))
        if is_set:
            await self._count(key, value)
        return is_set

    async def _count(self, key: str, value: bytes) -> None:
        """Count what lives for another lifetime, and delete what is too much."""
        self._kept.keep(key, len(value))
        dropped, self._kept.dropped = self._kept.dropped, []
        if dropped:
            await self._redis.delete(*dropped)

    async def _read(self, key: str, kind: type[T]) -> T | None:
        return _decoded(await self._stored(key), kind)

    async def _stored(self, key: str) -> bytes | None:
        """The value of a key; None if there is none, or it is no text."""
        try:
            return self._value_of(await self._redis.get(key))
        except self._response_error as error:
            return self._value_of(error)

    def _value_of(self, result: bytes | Exception | None) -> bytes | None:
        """The result of GET; None if the key holds no text. Raises any other error that Redis answered with."""
        if not isinstance(result, Exception):
            return result
        if type(result) is self._response_error and _reason(result).startswith("WRONGTYPE"):
            return None
        raise result

    async def _try_to_add(self, key: str, step: Step) -> tuple[bool, Session | None]:
        """Add a step unless another process changes the session meanwhile; whether that is done, and the session if any."""
        stored = await self._stored(key)
        known = _decoded(stored, Session)
        if known is None:
            return True, None
        session = known.after(step)
        value = msgspec.msgpack.encode(session)
        if not await self._redis.eval(REPLACE, 1, key, stored, value, self._lifetime):
            return False, None
        await self._count(key, value)
        return True, session

    async def _remember(self, key: str, reference: DecisionRef) -> DecisionRef:
        value = msgspec.msgpack.encode(reference)
        if await self._set(key, value, nx=True):
            return reference
        first = await self._read(key, DecisionRef)
        if first is not None and first.is_final:
            return first
        await self._set(key, value)  # it has just expired, or has no answer
        return reference

    async def _claim(self, decision: str) -> DecisionRef | bool:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(_claim_key(decision), b"", px=int(CLAIM_SECONDS * 1000), nx=True)
            pipe.get(_claim_key(decision))
            pipe.pttl(_claim_key(decision))
            pipe.get(_decision_key(decision))
            is_ours, claim, lasts, value = await pipe.execute(raise_on_error=False)
        known = _decoded(self._value_of(value), DecisionRef)
        if known is not None and known.is_final:
            return known
        if self._value_of(claim) is None or lasts == -1:  # it is no claim, or would never end
            await self._redis.set(_claim_key(decision), b"", px=int(CLAIM_SECONDS * 1000))
            return True
        return bool(is_ours)

    # ---- outages

    async def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await the work within its time; raises StateAwayError at once while Redis is away."""
        if self._away_since is not None:
            raise StateAwayError("state: sessions cannot be remembered at the moment; try again in a second")
        try:
            async with _patience():
                return await work()
        except Exception as error:
            if not self._is_failure(error):
                raise
            if type(error) is not self._response_error or _reason(error).startswith("MISCONF"):
                self._begin_outage(error)  # other responses are about this call: Redis has classes for those about itself
            raise StateAwayError("state: sessions cannot be remembered at the moment; try again in a second") from error

    def _is_failure(self, error: Exception) -> bool:
        """Whether an error is Redis', or that of the way to it, and not a fault of this program."""
        # the client writes to connections that the event loop has closed already, which uvloop reports as a RuntimeError
        return isinstance(error, self._failures) or type(error) is RuntimeError

    def _begin_outage(self, error: Exception) -> None:
        if self._away_since is not None:
            return  # another call noticed it first
        self._away_since = time.monotonic()
        self.outages += 1
        self._on_event("state away", error=f"{type(error).__name__}: {_reason(error)}")
        self._pinging = asyncio.get_running_loop().create_task(self._ping())

    async def _ping(self) -> None:
        """Ping until Redis does all that a session needs, then end the outage."""
        while True:
            try:
                async with _patience():
                    await self._redis.connection_pool.disconnect(inuse_connections=False)  # of a server that may be gone
                    await self._redis.set("mbcal:ping", b"", ex=1)
                    await self._redis.eval(REPLACE, 1, "mbcal:ping", b"", b"", 1)
                break
            except Exception:  # whatever it is: without a ping, the outage would never end
                await asyncio.sleep(PING_SECONDS)
        seconds = time.monotonic() - (self._away_since or 0.0)
        self._away_since = None
        self._on_event("state back", seconds=round(seconds, 3))


@contextlib.asynccontextmanager
async def _patience() -> AsyncIterator[None]:
    """Raise TimeoutError in what takes longer than `CALL_SECONDS`."""
    loop, tick_seconds = asyncio.get_running_loop(), CALL_SECONDS / TICKS
    async with asyncio.timeout(None) as timeout:
        timer = loop.call_later(tick_seconds, lambda: tick(TICKS - 1))

        def tick(left: int) -> None:
            nonlocal timer
            if left:
                timer = loop.call_later(tick_seconds, tick, left - 1)
            else:
                timeout.reschedule(loop.time())

        try:
            yield
        finally:
            timer.cancel()


def _reason(error: Exception) -> str:
    """What Redis answered, without the command and its data."""
    return str(error).rpartition("caused error: ")[2][:200]


def _session_key(name: str) -> str:
    return f"mbcal:session:{name}"


def _decision_key(decision: str) -> str:
    return f"mbcal:decision:{decision}"


def _claim_key(decision: str) -> str:
    return f"mbcal:claim:{decision}"


def _decoded(value: bytes | None, kind: type[T]) -> T | None:
    """The value; None if there is none, or it was not written by this version of the service."""
    if value is None:
        return None
    try:
        found: Any = msgspec.msgpack.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(found, Session):
        if not all(step.time in _TIMES for step in found.steps):
            return None
        steps = tuple(step if is_object(step.context) else msgspec.structs.replace(step, context="") for step in found.steps)
        features = found.user_features if is_object(found.user_features) else ""
        return msgspec.structs.replace(found, steps=steps, user_features=features)  # type: ignore[return-value]
    if isinstance(found, DecisionRef):
        if found.time not in _TIMES:
            return None
        context, answer = found.context if is_object(found.context) else "", found.answer
        if answer and _decoded(answer, RankAnswer) is None:
            answer = b""
        return msgspec.structs.replace(found, context=context, answer=answer)  # type: ignore[return-value]
    return found  # type: ignore[no-any-return]
