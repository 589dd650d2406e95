"""Whose turn it is: requests are handled in an order that is fair to clients, by the work that they make.

A process handles one request at a time, so requests that are much work delay all others. Every client has a clock of the
work it was given, and the request whose client is least ahead after it comes next (self-clocked fair queueing)::

    client a   [ 200 ]  [ 200 ]  [ 200 ] …     clock of a: 200, 400, 600
    client b   [1]                              clock of b: 201 if it comes while the first of a is handled: it is next

After much work, the event loop makes a few passes before it goes on, in which requests of others are accepted and read.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count

WORK_AT_A_TIME = 64.0
"""Work that is begun in one pass of the event loop; a request may be more."""
PASSES = 8
"""Passes of the event loop after much work: to accept a connection, to read its request and to come to `take`."""
LITTLE_WORK = 0.5
"""Work of a request that is refused, or only asks whether the server is alive."""
BYTES_PER_WORK = 8192
"""Bytes of a body that are as much work as a small request without them (about 0.15 ms)."""
WORK_PER_PART = 0.1
"""Work of an object or a list in a body: of an item with features, or of a step of a history."""
WORK_PER_VALUE = 0.01
"""Work of a value in a list or an object: of a candidate, however short its name."""


def work_of(body: bytes) -> float:
    """Return an estimate of the work that a request makes, by its body; 1 for a small request."""
    parts, values = body.count(b"{") + body.count(b"["), body.count(b",")
    return 1.0 + len(body) / BYTES_PER_WORK + WORK_PER_PART * parts + WORK_PER_VALUE * values


class Turns:
    """The order in which requests are handled."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, float, str, asyncio.Future[None]]] = []  # a heap by clock, then by arrival
        self._numbers = count()
        self._clock = 0.0  # of the client that was served last
        self._clocks: dict[str, float] = {}  # of clients that wait
        self._passes = 0  # of the event loop until others are begun
        self._is_running = False

    async def take(self, client: str, work: float) -> None:
        """Wait for a turn; there is one pass of the event loop before it at least.

        Args:
            client: Address of the client.
            work: What the request is estimated to make (`work_of`).
        """
        loop = asyncio.get_running_loop()
        clock = self._clocks[client] = max(self._clock, self._clocks.get(client, 0.0)) + work
        turn: asyncio.Future[None] = loop.create_future()
        heappush(self._waiting, (clock, next(self._numbers), work, client, turn))
        if not self._is_running:
            self._is_running = True
            loop.call_soon(self._begin_next)
        await turn

    def _begin_next(self) -> None:
        """Begin what is next, and come back after a pass of the event loop as long as anything waits or a pause lasts."""
        if self._passes:
            self._passes -= 1
        else:
            begun = 0.0
            while self._waiting and begun < WORK_AT_A_TIME:
                self._clock, _, work, client, turn = heappop(self._waiting)
                if self._clocks[client] == self._clock:  # nothing else of this client waits
                    del self._clocks[client]
                if not turn.done():  # it may have been cancelled
                    turn.set_result(None)
                    begun += work
            self._passes = PASSES if begun >= WORK_AT_A_TIME else 0
        self._is_running = bool(self._waiting or self._passes)
        if self._is_running:
            asyncio.get_running_loop().call_soon(self._begin_next)
