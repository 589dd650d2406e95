"""What the service remembers between requests.

Of a session: its history and the items shown with their behaviours. Of a decision: its items and its session, so that
feedback finds the session. Kept in memory for one server (`memory_state`), by the supervisor for its workers (`hub`), or in
Redis for several servers (`redis_state`), so that feedback may go to another process than the one that ranked. A session
expires after `lifetime` seconds without a request, a decision `lifetime` seconds after it was made. Steps are keyed by
(decision, item), so feedback that arrives twice, late or out of order leads to the same session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from sys import getsizeof
from typing import Protocol, TypeVar

import msgspec

from mbcal.errors import MbcalError, OptionError

MAX_STEPS = 1_000
"""Steps kept of a session; of a longer one the latest."""
MAX_NAMES = 64 * 1024
"""Bytes of names kept of a session's history, and as many of its steps, the latest: both are logged with every decision."""
MAX_STEP_NAMES = 2 * 4 * 256
"""Most bytes of the names of one step, an item and a behaviour of 256 characters each."""
MAX_CONTEXT = 64 * 1024
"""Characters of contexts kept of a session, the latest."""
CLAIM_SECONDS = 10.0
"""Seconds after which the claim of a server that may be gone is void. A supervisor knows which workers are gone."""
SESSION_BYTES, STEP_BYTES = 300, 200
"""Estimated sizes of a session and of a step without their texts."""

T = TypeVar("T")
OnEvent = Callable[..., None]


def ignore_event(_: str, **__: object) -> None:
    """Do nothing with an event."""


class StateAwayError(MbcalError):
    """Sessions cannot be recalled or remembered at the moment."""


class OtherUserError(MbcalError):
    """The session of a request belongs to another user."""


class Step(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One item shown and its behaviour. Steps are ordered by the time of their decision, then by rank."""

    time: int
    """Of the decision, in microseconds since 1970; after all steps that it knew, though a clock was set back."""
    rank: int
    """Position of the item in its decision, from 0."""
    decision: str
    item: str
    behaviour: str
    context: str = ""
    """Context of the decision, as JSON; empty if it had none."""


class Session(msgspec.Struct, frozen=True, array_like=True):
    """The remembered part of a session."""

    user: str
    history: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...] = ()
    version: str = ""
    """The canary that the session began with; empty for the live version."""
    user_features: str = ""
    """Features of the user, as JSON; empty if none were given."""

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """(item, behaviour) pairs, oldest first."""
        return tuple((step.item, step.behaviour) for step in self.steps)

    @property
    def shown_context(self) -> tuple[str, ...]:
        """The context of each step, as JSON; empty if none has any."""
        contexts = tuple(step.context for step in self.steps)
        return contexts if any(contexts) else ()

    def behaviour_of(self, decision: str, item: str) -> str | None:
        """Return the behaviour towards an item of a decision; None if the session has no such step."""
        return next((step.behaviour for step in self.steps if (step.decision, step.item) == (decision, item)), None)

    def require_user(self, user: str, name: str) -> None:
        """Refuse a request of another user than the one who began the session. Either may be unknown: users log in and out.

        Args:
            user: The user of the request; empty if it names none.
            name: The session's name.

        Raises:
            OtherUserError: If both are known and differ.
        """
        if self.user and user and self.user != user:
            raise OtherUserError(f"session: {name!r} is a session of another user; give every user sessions of their own")

    def time_of_next(self, now: int) -> int:
        """Return the time of a decision made now in the session: later than that of every step, whatever the clock."""
        return max(now, self.steps[-1].time + 1) if self.steps else now

    def after(self, step: Step) -> Session:
        """Return the session with this step added; unchanged if it has a step of the same decision and item.

        Steps and contexts are logged again with every later decision of the session, so only the newest are kept:
        `MAX_STEPS` steps with `MAX_NAMES` bytes of names, and `MAX_CONTEXT` characters of contexts.
        """
        if any(step.decision == other.decision and step.item == other.item for other in self.steps):
            return self
        steps = tuple(sorted((*self.steps, step)))[-MAX_STEPS:]
        if len(steps) * MAX_STEP_NAMES > MAX_NAMES:
            steps = steps[_n_too_many([(step.item, step.behaviour) for step in steps]) :]
        return msgspec.structs.replace(self, steps=_with_newest_contexts(steps) if step.context else steps)


def latest_steps(steps: tuple[tuple[str, str], ...], length: int) -> tuple[tuple[str, str], ...]:
    """Return the latest steps of a history: at most `length`, with at most `MAX_NAMES` bytes of names.

    Args:
        steps: (item, behaviour) pairs, oldest first.
        length: Steps that a version reads.
    """
    steps = steps[max(len(steps) - length, 0) :]
    return steps if len(steps) * MAX_STEP_NAMES <= MAX_NAMES else steps[_n_too_many(steps) :]


def _n_too_many(steps: Sequence[tuple[str, str]]) -> int:
    """How many of the oldest steps must go, so that `MAX_NAMES` bytes of names are left at most."""
    sizes = accumulate(len(item.encode()) + len(behaviour.encode()) for item, behaviour in reversed(steps))
    return sum(size > MAX_NAMES for size in sizes)


def _with_newest_contexts(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps without the contexts of the oldest, so that `MAX_CONTEXT` characters of contexts are left at most."""
    sizes = list(accumulate(len(step.context) for step in reversed(steps)))  # of each step and all newer ones, newest first
    n_old = sum(size > MAX_CONTEXT for size in sizes)
    return (*(msgspec.structs.replace(step, context="") for step in steps[:n_old]), *steps[n_old:])


class DecisionRef(msgspec.Struct, frozen=True, array_like=True):
    """A decision that feedback can refer to."""

    session: str | None
    time: int
    """In microseconds since 1970."""
    items: list[str]
    version: str
    request: str = ""
    """Hash of the request, if it had an id."""
    answer: bytes = b""
    """The answer as MessagePack, if the request had an id and the store is shared."""
    context: str = ""
    """Context of the decision, as JSON; empty if it had none."""

    @property
    def is_final(self) -> bool:
        """Whether no other decision may take its place: it has its answer, or an id that the service made for it."""
        return bool(self.answer) or not self.request


class SessionStore(Protocol):
    """Storage of sessions and decisions. Every method but `close` raises StateAwayError if the storage cannot be reached."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes use it, too."""

    @property
    def is_required(self) -> bool:
        """Whether no id may be answered while it is away: nobody else knows what the other processes answered."""

    @property
    def available(self) -> bool:
        """Whether the storage could be reached when it was last tried."""

    @property
    def outages(self) -> int:
        """How often the storage could no longer be reached."""

    @property
    def used_bytes(self) -> int:
        """Estimated bytes held in this process."""

    async def get(self, name: str) -> Session | None:
        """Return a session, which is kept for another lifetime; None if it is unknown or has expired."""

    async def begin(self, name: str, session: Session) -> Session:
        """Store a session unless there is one of this name; return the stored one: this very object if it began now."""

    async def add(self, name: str, step: Step) -> Session | None:
        """Add a step to a session and return the session; None if it is unknown or has expired."""

    async def remember_decision(self, decision: str, reference: DecisionRef) -> DecisionRef:
        """Store a decision, unless there is a final one; return the stored one. Its claim ends."""

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        """Return a decision, or None if it is unknown or has expired."""

    async def claim_decision(self, decision: str) -> DecisionRef | bool:
        """Claim the id of a request that is to be answered.

        Returns:
            The decision, if it is stored and final; else whether the caller has the claim now, until it stores the
            decision or gives the claim up; in Redis for `CLAIM_SECONDS` at most.
        """

    async def release_decision(self, decision: str) -> None:
        """Give up the claim on an id."""

    async def close(self) -> None:
        """Close connections."""


def session_store(
    address: str, lifetime: float, max_bytes: int = 256 << 20, on_event: OnEvent = ignore_event
) -> SessionStore:
    """Make the session store of an address.

    Args:
        address: `memory`, or a redis://, rediss:// or unix:// address.
        lifetime: Seconds after its last request at which a session expires.
        max_bytes: Bytes of sessions and decisions that this process keeps, in memory or in Redis.
        on_event: Called with `state away` and `state back` when Redis cannot be reached, and when it can again.

    Raises:
        OptionError: If the address is neither, or the Redis client is not installed.
    """
    if address == "memory":
        from mbcal.serving.memory_state import MemoryStore

        return MemoryStore(lifetime, max_bytes)
    if address.startswith(("redis://", "rediss://", "unix://")):
        from mbcal.serving.redis_state import RedisStore

        return RedisStore(address, lifetime, max_bytes, on_event)
    scheme = address.partition(":")[0]  # the rest may hold a password
    raise OptionError(f"state: {scheme!r} is neither memory nor a redis:// address; give one of them")


def reference_bytes(reference: DecisionRef) -> int:
    """Return the size of a decision in memory."""
    names = sum(map(getsizeof, reference.items)) + 8 * len(reference.items)
    return SESSION_BYTES + getsizeof(reference.session) + names + len(reference.answer) + len(reference.context)
