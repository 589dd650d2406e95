"""What the workers of one `mbcal serve --workers N` share: sessions and decisions, an operator's settings, and metrics.

Every worker has one socket to its supervisor. A message is four bytes of length and MessagePack: a `Call`, then its `Reply`
with the same number; or a `Notice` from the supervisor, as a reply to nothing. A worker whose supervisor is gone stops.

::

    worker 0 ── HubStore ──┐
    worker 1 ── HubStore ──┼──▶ Hub (supervisor): MemoryStore, metrics of every worker
    worker 2 ── HubStore ──┘
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import msgspec

from mbcal.serving.clients import current_client
from mbcal.serving.pool import Pool, Snapshot, TrafficPool
from mbcal.serving.state import DecisionRef, Session, SessionStore, StateAwayError, Step
from mbcal.serving.worker_claims import WorkerClaims

CALL_SECONDS = 2.0
"""Longest time a call may take."""
MAX_MESSAGE = 64 << 20
"""Bytes of a message; a longer one is not from this program."""
NOTICE = -1
"""Number of a reply that is a notice."""
MAX_UNREAD = 8 << 20
"""Bytes of calls that the supervisor has not read, beyond which a worker sends only what ends a claim."""
MAX_FEEDBACK = 131_072
"""Items with feedback that are remembered, so that each is counted once; the oldest are dropped."""


class Call(msgspec.Struct, array_like=True):
    """A method of the hub, with its arguments."""

    number: int
    method: str
    key: str = ""
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    """MessagePack; null if the method has no second argument."""
    client: str = ""
    """Whose request it is for: what is stored counts as that client's."""


class Reply(msgspec.Struct, array_like=True):
    """The result of a call."""

    number: int
    value: msgspec.Raw


class Notice(msgspec.Struct, array_like=True):
    """What an operator has set at one worker, for all of them."""

    epsilon: float | None = None
    """The new exploration rate; None if it stays."""
    reload: bool = False
    """Whether versions that were refused are to be tried again."""


class WorkerMetrics(msgspec.Struct, array_like=True):
    """What a worker learns when it reports its metrics."""

    texts: dict[str, str]
    """The latest metrics of every worker, by its number."""
    restarts: int
    """Workers that ended and were started again."""


_NO_ANSWER = "state: the supervisor of this server does not answer; try again in a second"
_encode = msgspec.msgpack.encode
_decode_call = msgspec.msgpack.Decoder(Call).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode
_decode_session = msgspec.msgpack.Decoder(Session).decode
_decode_known: Callable[[msgspec.Raw], Session | None] = msgspec.msgpack.Decoder(Session | None).decode
_decode_reference: Callable[[msgspec.Raw], DecisionRef | None] = msgspec.msgpack.Decoder(DecisionRef | None).decode
_decode_claim: Callable[[msgspec.Raw], DecisionRef | bool] = msgspec.msgpack.Decoder(DecisionRef | bool).decode
_decode_notice = msgspec.msgpack.Decoder(Notice).decode
_decode_metrics = msgspec.msgpack.Decoder(WorkerMetrics).decode
_decode_pool = msgspec.msgpack.Decoder(Pool).decode


class Hub:
    """The supervisor's end."""

    def __init__(self, sessions: SessionStore) -> None:
        """Start without workers.

        Args:
            sessions: Where sessions and decisions are remembered.
        """
        self.claims, self._sessions = WorkerClaims(sessions), sessions
        self._texts: dict[str, str] = {}
        self._traffic = TrafficPool()
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._epsilon: float | None = None
        self._feedback: OrderedDict[int, None] = OrderedDict()  # hashes of decision and item, whose names may be long
        self.listened: set[str] = set()
        """Workers that have listened."""
        self.restarts = 0
        """Workers that ended and were started again."""
        self._handlers: dict[str, Callable[[str, str, msgspec.Raw], Awaitable[Any]]] = {
            "get": lambda _, key, __: sessions.get(key),
            "begin": self._begin,
            "add": lambda _, key, value: sessions.add(key, msgspec.msgpack.decode(value, type=Step)),
            "remember_decision": self._remember,
            "recall_decision": lambda _, key, __: sessions.recall_decision(key),
            "claim_decision": lambda worker, key, _: self.claims.claim(worker, key),
            "release_decision": lambda worker, key, _: self.claims.release(worker, key),
            "first_feedback": self._first_feedback,
            "notify": self._notify,
            "report": self._report,
            "exchange": self._exchange,
            "listening": self._listening,
        }

    async def serve(self, worker: str, connection: socket.socket) -> None:
        """Answer the calls of one worker until its end of the socket is closed. What it had claimed is left to `claims`."""
        reader, writer = await asyncio.open_connection(sock=connection)
        self._writers[worker] = writer
        if self._epsilon is not None:
            _write(writer, _reply(NOTICE, Notice(self._epsilon)))
        try:
            while True:
                call = _decode_call(await _read(reader))
                current_client.set(call.client)
                value = await self._handlers[call.method](worker, call.key, call.value)
                _write(writer, _reply(call.number, value))
                if writer.transport.get_write_buffer_size() > 1 << 20:
                    await writer.drain()
        except (EOFError, OSError, msgspec.DecodeError):
            pass
        finally:
            self._texts.pop(worker, None)
            self._traffic.remove(worker)
            self._writers.pop(worker, None)
            self.claims.end(worker)
            writer.close()

    async def _begin(self, _: str, name: str, value: msgspec.Raw) -> Session | None:
        """Begin a session; return the one that had begun before, None if there was none."""
        session = _decode_session(value)
        begun = await self._sessions.begin(name, session)
        return None if begun is session else begun

    async def _remember(self, _: str, decision: str, value: msgspec.Raw) -> DecisionRef | None:
        """Store a decision; return the one that was stored before, None if there was none."""
        reference = msgspec.msgpack.decode(value, type=DecisionRef)
        first = await self.claims.remember(decision, reference)
        return None if first is reference else first

    async def _first_feedback(self, _: str, decision: str, value: msgspec.Raw) -> bool:
        key = hash((decision, msgspec.msgpack.decode(value, type=str)))
        if key in self._feedback:
            return False
        self._feedback[key] = None
        if len(self._feedback) > MAX_FEEDBACK:
            self._feedback.popitem(last=False)
        return True

    async def _notify(self, _: str, __: str, value: msgspec.Raw) -> None:
        notice = _decode_notice(value)
        self._epsilon = self._epsilon if notice.epsilon is None else notice.epsilon
        for writer in self._writers.values():
            _write(writer, _reply(NOTICE, notice))

    async def _report(self, worker: str, _: str, value: msgspec.Raw) -> WorkerMetrics:
        self._texts[worker] = msgspec.msgpack.decode(value, type=str)
        return WorkerMetrics(self._texts, self.restarts)

    async def _exchange(self, worker: str, _: str, value: msgspec.Raw) -> Pool:
        return self._traffic.exchange(worker, msgspec.msgpack.decode(value, type=Snapshot))

    async def _listening(self, worker: str, _: str, __: msgspec.Raw) -> None:
        self.listened.add(worker)


class HubStore:
    """A worker's end: sessions and decisions in the supervisor's memory."""

    outages, used_bytes, is_shared, is_required = 0, 0, True, True

    def __init__(self, connection: socket.socket, on_lost: Callable[[], None]) -> None:
        """Prepare; the first call begins to use the connection.

        Args:
            connection: The worker's end of the socket.
            on_lost: Called when the supervisor is gone.
        """
        self._connection, self._on_lost = connection, on_lost
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._opening = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self.available = True
        self.on_notice: Callable[[Notice], None] = lambda _: None
        """Called with what an operator has set at any of the workers."""

    async def get(self, name: str) -> Session | None:
        return _decode_known(await self._call("get", name, None))

    async def begin(self, name: str, session: Session) -> Session:
        return _decode_known(await self._call("begin", name, session)) or session

    async def add(self, name: str, step: Step) -> Session | None:
        return _decode_known(await self._call("add", name, step))

    async def remember_decision(self, decision: str, reference: DecisionRef) -> DecisionRef:
        reply = await self._call("remember_decision", decision, reference, ends_claim=bool(reference.request))
        return _decode_reference(reply) or reference

    async def recall_decision(self, decision: str) -> DecisionRef | None:
        return _decode_reference(await self._call("recall_decision", decision, None))

    async def claim_decision(self, decision: str) -> DecisionRef | bool:
        self._require_reader()
        try:
            return _decode_claim(await self._call("claim_decision", decision, None))
        except BaseException:  # the supervisor may grant the claim all the same; it reads the release after it
            self._send("release_decision", decision, None)
            raise

    async def release_decision(self, decision: str) -> None:
        await self._call("release_decision", decision, None, ends_claim=True)

    async def first_feedback(self, decision: str, item: str) -> bool:
        """Whether no worker has counted feedback on this item yet; also True if that cannot be found out."""
        try:
            return msgspec.msgpack.decode(await self._call("first_feedback", decision, item), type=bool)
        except StateAwayError:
            return True

    async def notify(self, notice: Notice) -> None:
        """Tell all workers, this one included, and those that are started later."""
        await self._call("notify", "", notice)

    async def listening(self) -> None:
        """Say that this worker listens."""
        await self._call("listening", "", None)

    async def report(self, metrics: str) -> WorkerMetrics:
        """Report this worker's metrics and return those of all workers."""
        return _decode_metrics(await self._call("report", "", metrics))

    async def exchange(self, snapshot: Snapshot) -> Pool:
        """Report this worker's traffic and return that of all workers."""
        return _decode_pool(await self._call("exchange", "", snapshot))

    async def close(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()

    def _require_reader(self) -> None:
        """Raise StateAwayError if the supervisor does not read: what waits for it would grow with every request."""
        if self._writer is not None and self._writer.transport.get_write_buffer_size() > MAX_UNREAD:
            raise StateAwayError(_NO_ANSWER)

    async def _call(self, method: str, key: str, value: Any, ends_claim: bool = False) -> msgspec.Raw:
        if not self.available:
            raise StateAwayError("state: the supervisor of this server is gone; try again in a second")
        await self._open()
        if not ends_claim:  # there are as many claims as requests in progress, and one that did not end would block its id
            self._require_reader()
        reply: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        number = self._send(method, key, value)
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await reply
        except (TimeoutError, OSError) as error:
            raise StateAwayError(_NO_ANSWER) from error
        finally:
            self._waiting.pop(number, None)

    def _send(self, method: str, key: str, value: Any) -> int:
        """Write a call, unless the supervisor is gone; return its number."""
        number = next(self._numbers)
        if self._writer is not None and self.available:
            _write(self._writer, Call(number, method, key, msgspec.Raw(_encode(value)), current_client.get()))
        return number

    async def _open(self) -> None:
        async with self._opening:
            if self._writer is None:
                reader, self._writer = await asyncio.open_connection(sock=self._connection)
                self._reading = asyncio.create_task(self._read_replies(reader))

    async def _read_replies(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                reply = _decode_reply(await _read(reader))
                if reply.number == NOTICE:
                    self.on_notice(_decode_notice(reply.value))
                waiting = self._waiting.get(reply.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply.value)
        except (EOFError, OSError, msgspec.DecodeError):
            self.available = False
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the supervisor is gone"))
            self._on_lost()


async def _read(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_MESSAGE:
        raise ConnectionError("the message is too long")
    return await reader.readexactly(size)


def _reply(number: int, value: Any) -> Reply:
    return Reply(number, msgspec.Raw(_encode(value)))


def _write(writer: asyncio.StreamWriter, message: Call | Reply) -> None:
    data = _encode(message)
    writer.write(len(data).to_bytes(4, "big") + data)
