"""Requests with an id of the client: the same request gets the same answer, another request with that id is refused.

::

    id unknown in this process ──▶ claimed in the shared store ──▶ known there: answered from there
                               ├─▶ not shared yet (recovered from the log): that answer, shared
                               └─▶ ranked, logged with a hash of the request, remembered
    id known ──▶ same hash: the first answer          another hash, or made by the service: IdConflictError

What is remembered is bounded in bytes and in time. When a server starts, it recovers the latest answers from the decision
log, so a restart changes nothing; and with several workers or servers, the store they share knows the answers of all, and
who is making one (`claims`). What that store knows comes before what was recovered: a process that was killed may have
logged an answer that nobody saw, and another one may have answered since. An answer that was given while the shared store
was away counts as not shared, too: it is looked up and shared when the request comes again and the store is back. A single
process asks the servers' store even for what it knows itself: the store may have been emptied, and others have answered.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from mbcal.decision_log.records import Decision
from mbcal.errors import MbcalError
from mbcal.serving.answers import RememberedAnswers
from mbcal.serving.candidates import Candidates
from mbcal.serving.claims import Claim
from mbcal.serving.fields import as_text, require_64_bits
from mbcal.serving.messages import RankAnswer, RankedItem, RankRequest, steps_as_text
from mbcal.serving.state import DecisionRef, SessionStore, StateAwayError, reference_bytes
from mbcal.types import to_name

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RankAnswer).decode


class IdConflictError(MbcalError):
    """A request has the id of another request."""


class _Stored(NamedTuple):
    known: DecisionRef
    """With the hash of the request and the answer. If it is not shared yet, also all else but the items, which the answer
    has, too."""
    expires: float
    """By the clock of `RepeatedRequests`."""


class RepeatedRequests:
    """Answers by the id of their request."""

    def __init__(
        self, sessions: SessionStore, max_bytes: int, lifetime: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start empty.

        Args:
            sessions: The store that other workers and servers may share.
            max_bytes: Bound on all answers; the oldest of the client that holds most are dropped.
            lifetime: Seconds for which an answer is remembered.
            clock: Seconds, from any start: a clock that is set must not make answers unknown.
        """
        self._sessions, self._lifetime, self._clock = sessions, lifetime, clock
        self.supervisor: SessionStore | None = None
        """Where the workers of one command share answers while sessions are in Redis, which may be away or lose them."""
        self._known: RememberedAnswers[_Stored] = RememberedAnswers(
            max_bytes, lambda stored: reference_bytes(stored.known), lambda stored: stored.expires > clock()
        )

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of all answers."""
        return self._known.used_bytes

    async def once(self, decision: str, request: str, work: Callable[[], Awaitable[RankAnswer]]) -> RankAnswer:
        """Return the answer to a request; it is made once, and again if that failed.

        Args:
            decision: The request's id.
            request: The request's hash.
            work: Makes the answer.

        Raises:
            IdConflictError: If another request has this id.
            IdBusyError: If another process is answering it and does not come to an end.
            StateAwayError: If the supervisor cannot say whether another worker has answered it.
        """

        async def recall_or_make() -> _Stored:
            shared = [store for store in (self.supervisor, self._sessions) if store is not None and store.is_shared]
            claim = Claim(shared, decision)
            try:
                first = await self._first_answer(decision, request, await claim.take())
                answer = first or await work()
            except BaseException:
                await claim.release()
                raise
            reference = DecisionRef(None, 0, [], "", request, _encode(answer))
            if self.supervisor is not None:  # away, it cannot say whether another worker has answered: the client asks again
                reference = await self.supervisor.remember_decision(decision, reference)
            return _Stored(reference, self._clock() + self._lifetime)

        if self._sessions.available and self._known.get(decision) and self._known.get(_key_unshared(decision)):
            self._known.pop(decision)  # the store is back: others may have answered since
        known = self._known.get(decision)
        stored = await self._known.once(decision, recall_or_make, request)
        _require_same(decision, request, stored.known.request)
        answer = _decode(stored.known.answer)
        if stored is known and self._sessions.is_shared and self.supervisor is None and not self._sessions.is_required:
            return await self._confirm(decision, stored, answer)
        return answer

    async def _confirm(self, decision: str, stored: _Stored, answer: RankAnswer) -> RankAnswer:
        """Return the answer that other servers give: a store that lost it gets it again, unless one has answered since."""
        items = [entry.item for entry in answer.items]
        reference = msgspec.structs.replace(stored.known, time=time.time_ns() // 1000, items=items, version=answer.version)
        try:
            first = await self._sessions.remember_decision(decision, reference)
        except StateAwayError:
            return answer
        if first.answer == stored.known.answer:
            return answer
        _require_same(decision, stored.known.request, first.request)
        self._known.put(decision, stored._replace(known=msgspec.structs.replace(stored.known, answer=first.answer)))
        return _decode(first.answer)

    async def _first_answer(self, decision: str, request: str, known: DecisionRef | None) -> RankAnswer | None:
        """The answer that was given before: what other processes know, else what was not shared yet, which is shared."""
        unshared = self._known.get(_key_unshared(decision))
        if not self._sessions.is_shared and (made := await self._sessions.recall_decision(decision)) is not None:
            _require_same(decision, request, made.request)  # the answer may be forgotten; the id is still taken
        first = known or (unshared and unshared.known)
        if first is None:
            return None
        _require_same(decision, request, first.request)
        answer = _decode(first.answer)
        if unshared is None or first.answer != unshared.known.answer:
            self._known.pop(_key_unshared(decision))
            return answer
        complete = msgspec.structs.replace(unshared.known, items=[entry.item for entry in answer.items])
        return await self.remember(decision, complete, answer)

    async def remember(self, decision: str, reference: DecisionRef, answer: RankAnswer) -> RankAnswer:
        """Store a decision where feedback and other processes find it.

        Args:
            decision: Its id.
            reference: What is stored.
            answer: The answer; it says whether the decision is remembered.

        Returns:
            The answer that counts: the first one, if another process stored one.

        Raises:
            IdConflictError: If that was the answer to another request.
        """
        try:
            first = await self._sessions.remember_decision(decision, reference)
        except StateAwayError:
            answer.remembered = False
            if reference.request and self._known.get(_key_unshared(decision)) is None:
                unshared = msgspec.structs.replace(reference, items=[], answer=_encode(answer))
                self._known.put(_key_unshared(decision), _Stored(unshared, self._clock() + self._lifetime))
            return answer
        self._known.pop(_key_unshared(decision))
        if first.answer == reference.answer:
            return answer
        _require_same(decision, reference.request, first.request)
        return _decode(first.answer)

    def reference(self, request: str, session: str | None, now: int, answer: RankAnswer, context: str = "") -> DecisionRef:
        """Return what the session store keeps of a decision; with its answer if the store is shared.

        Args:
            request: The request's hash; empty if it had no id.
            session: The session's name.
            now: Time of the decision, in microseconds since 1970.
            answer: The answer.
            context: The context of the decision, as JSON.
        """
        shared = _encode(answer) if request and self._sessions.is_shared else b""
        return DecisionRef(session, now, [entry.item for entry in answer.items], answer.version, request, shared, context)

    def recover(self, decisions: Iterable[Decision]) -> int:
        """Keep the answers of logged decisions, of several with one id the latest; return how many there were."""
        count, now, expires = 0, time.time(), self._clock() + self._lifetime
        for decision in decisions:
            reference, key = logged_reference(decision), _key_unshared(decision.id)
            if reference is not None:
                earlier = self._known.get(key)
                if earlier is None or earlier.known.time <= reference.time:
                    kept = msgspec.structs.replace(reference, items=[])
                    age = max(now - reference.time / 1e6, 0.0)
                    self._known.put(key, _Stored(kept, expires - age))
                count += 1
        return count


def request_hash(request: RankRequest, candidates: Candidates) -> str:
    """Return a hash of what a request asks for, however its JSON was written.

    Args:
        request: The request.
        candidates: Its candidates.

    Raises:
        InputError: If a name is neither text nor a whole number, or a whole number is beyond 64 bits.
    """
    shown = None if request.shown is None else steps_as_text(request.shown, "shown")
    names = [None if name is None else to_name(name, "name") for name in (request.session, request.user)]
    fields = _encode((steps_as_text(request.history, "history"), shown, request.k, *names))
    if request.context or request.user_features or request.shown_context:
        given = (request.context, request.user_features, request.shown_context)
        try:
            fields += _encode(given)
        except OverflowError:
            require_64_bits(request.context, "context")
            require_64_bits(request.user_features, "user_features")
            for values in request.shown_context:
                require_64_bits(values, "shown_context")
            raise
    return hashlib.blake2b(fields + candidates.packed(), digest_size=16).hexdigest()


def answer_fields(request: str, items: Sequence[RankedItem]) -> dict[str, Any]:
    """Return the fields of a logged decision from which its answer can be made again; none if the request had no id."""
    if not request:
        return {}
    parts = {name: [entry.parts[name] for entry in items] for name in (items[0].parts if items else ())}
    scores, seen = [entry.score for entry in items], [entry.known for entry in items]
    return {"request": request, "scores": scores, "parts": parts, "seen": seen}


def logged_reference(decision: Decision) -> DecisionRef | None:
    """Return what is remembered of a logged decision, with its answer; None if it has none, as without an id."""
    columns: tuple[list[float] | list[bool], ...] = (decision.scores, decision.seen, *decision.parts.values())
    if not decision.request or any(len(values) != len(decision.items) for values in columns):
        return None
    items = [
        RankedItem(
            item,
            decision.scores[rank],
            {name: values[rank] for name, values in decision.parts.items()},
            decision.propensities[rank],
            decision.seen[rank],
        )
        for rank, item in enumerate(decision.items)
    ]
    answer = _encode(RankAnswer(decision.id, decision.version, decision.epsilon, items))
    known = (decision.session or None, decision.time, decision.items, decision.version)
    return DecisionRef(*known, decision.request, answer, as_text(decision.context))


def _key_unshared(decision: str) -> tuple[str, str]:
    """Where the answer to a request with this id is kept until it is shared: from the log, or from an outage."""
    return "unshared", decision


def _require_same(decision: str, request: str, first: str) -> None:
    if request != first:
        raise IdConflictError(f"id: {decision!r} is the id of another request; give every request an id of its own")
