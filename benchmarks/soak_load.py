"""The load of `soak.py`: rankings and feedback that arrive whether or not the server answers, and what it acknowledged."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from typing import Any

import numpy as np
from serve import answered

CONNECTIONS = 64
TIMEOUT = 10.0
SESSIONS = 500
GIVE_UP_SECONDS = 30.0
"""Seconds for which a request that is refused or broken is sent again, as a client does."""
REPEATED = 0.05
"""Share of answered rankings that are asked again later with the same id."""


class Load:
    """Open-loop load on one port; counts statuses by second and remembers what was acknowledged.

    Ranking number n has the id `soak-n`, so what was acknowledged is one byte per ranking. The server remembers the answers
    of the last `remembered` rankings; what is asked again after more may have another answer.
    """

    def __init__(self, port: int, items: list[str], labels: list[str], rate: float, remembered: int) -> None:
        self.port, self.items, self.labels, self.rate, self.remembered = port, items, labels, rate, remembered
        self.ranked, self.with_feedback = bytearray(), bytearray()
        self.repeated = self.differing = self.forgotten = self.given_up = self.waiting = 0
        self.answered = 0
        self.statuses: Counter[str] = Counter()
        self.problems: list[str] = []
        self._second: tuple[Counter[str], list[float]] = (Counter(), [])
        self._draw = np.random.default_rng(1)
        self._queue: asyncio.Queue[tuple[float, int] | None] = asyncio.Queue()
        self._recent: deque[tuple[int, dict[str, Any], dict[str, Any], int]] = deque(maxlen=40)
        self._stopped = False

    async def run(self) -> None:
        """Send requests until `stop`, then wait for those that are under way."""
        clients = [asyncio.create_task(self._client()) for _ in range(CONNECTIONS)]
        due = time.perf_counter()
        while not self._stopped:
            due += self._draw.exponential(1 / self.rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self.ranked.append(0)
            self.with_feedback.append(0)
            self._queue.put_nowait((due, len(self.ranked) - 1))
        for _ in clients:
            self._queue.put_nowait(None)
        await asyncio.gather(*clients)

    async def stop(self) -> None:
        """End the load."""
        self._stopped = True

    def take_second(self) -> tuple[Counter[str], list[float]]:
        """Return statuses and latencies since the last call."""
        taken, self._second = self._second, (Counter(), [])
        return taken

    async def probe(self) -> bool:
        """Whether a ranking is answered now."""
        body = {"candidates": self.items[:20], "k": 3}
        return (await _Connection(self.port).ask("/v1/rank", body))[0] == "200"

    async def _client(self) -> None:
        connection = _Connection(self.port)
        while (due := await self._queue.get()) is not None:
            request = self._request(due[1])
            answer = await self._until_answered(connection, "/v1/rank", request, due[0])
            if answer is None:
                continue
            self.ranked[due[1]] = 1
            self.answered += 1
            if self._draw.random() < 0.7:
                await self._give_feedback(connection, due[1], answer)
            if self._draw.random() < REPEATED:
                self._recent.append((due[1], request, answer, self.answered))
            if self._recent and self._draw.random() < REPEATED:
                await self._repeat(connection)
        connection.close()

    def _request(self, number: int) -> dict[str, Any]:
        picked = self._draw.choice(len(self.items), 60, replace=False)
        history = [[self.items[row], self.labels[int(self._draw.integers(len(self.labels)))]] for row in picked[:10]]
        candidates = [self.items[row] for row in picked[10:]]
        # history and shown travel along, so that a lost memory of sessions refuses nothing
        session = {"session": f"session-{number % SESSIONS}", "shown": []}
        return {"id": f"soak-{number}", "history": history, "candidates": candidates, "k": 10, **session}

    async def _give_feedback(self, connection: _Connection, number: int, answer: dict[str, Any]) -> None:
        label = self.labels[int(self._draw.integers(len(self.labels)))]
        body = {"decision": answer["decision"], "behaviour": label, "item": answer["items"][0]["item"]}
        if await self._until_answered(connection, "/v1/feedback", body, time.perf_counter()) is not None:
            self.with_feedback[number] = 1

    async def _repeat(self, connection: _Connection) -> None:
        """Ask again with an id that was answered: the answer must be the same, also after a restart."""
        number, request, first, answered = self._recent[int(self._draw.integers(len(self._recent)))]
        again = await self._until_answered(connection, "/v1/rank", request, time.perf_counter())
        if again is None:
            return
        self.repeated += 1
        if any(again[field] != first[field] for field in ("decision", "version", "items")):
            between = self.answered - answered
            self.forgotten += between > self.remembered
            self.differing += between <= self.remembered
            self.problems.append(f"soak-{number}: another answer when it was asked again, {between:,} rankings later")

    async def _until_answered(
        self, connection: _Connection, path: str, body: dict[str, Any], due: float
    ) -> dict[str, Any] | None:
        """Send until it is answered; None if that takes too long or it is refused for good."""
        while time.perf_counter() - due < GIVE_UP_SECONDS:
            status, answer = await connection.ask(path, body)
            self.statuses[status] += 1
            self._second[0][status] += 1
            if status == "200":
                self._second[1].append(time.perf_counter() - due)
                return answer
            if status not in ("503", "broken"):
                self.problems.append(f"{path}: {status} {answer}")
                return None
            await asyncio.sleep(0.2)
        self.given_up += 1
        return None


class _Connection:
    """One connection that is opened again after a failure."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wire: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Status, or `broken`, and answer."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        try:
            async with asyncio.timeout(TIMEOUT):
                if self._wire is None:
                    self._wire = await asyncio.open_connection("127.0.0.1", self._port)
                answer_head, answer = await answered(
                    *self._wire, f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
                )
        except (OSError, EOFError, TimeoutError):
            self.close()
            return "broken", {}
        if b"connection: close" in answer_head.lower():
            self.close()
        return answer_head[9:12].decode(), json.loads(answer)

    def close(self) -> None:
        """Close it."""
        if self._wire is not None:
            self._wire[1].close()
            self._wire = None
