"""Which worker answers the request with which id, as their supervisor knows it.

A claim ends with an answer, when its worker gives it up, or when its worker has ended and the supervisor has looked up what
it logged (`settle`); never by time alone, since a worker that is slow may still answer.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from mbcal.serving.state import DecisionRef, SessionStore


class _Claimed(NamedTuple):
    worker: str
    """Who answers; `_ended` of it, once it is gone."""
    time: float
    """Seconds since 1970."""


class WorkerClaims:
    """Claims of workers in the store of their supervisor."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions
        self._claimed: dict[str, _Claimed] = {}  # by id; as many as requests in progress

    async def claim(self, worker: str, decision: str) -> DecisionRef | bool:
        """Claim an id for a worker; returns what `SessionStore.claim_decision` does."""
        claimed = await self._sessions.claim_decision(decision)
        if claimed is True:
            self._claimed[decision] = _Claimed(worker, time.time())
        return claimed

    async def remember(self, decision: str, reference: DecisionRef) -> DecisionRef:
        """Store a decision, which ends its claim; returns what `SessionStore.remember_decision` does."""
        self._claimed.pop(decision, None)
        return await self._sessions.remember_decision(decision, reference)

    async def release(self, worker: str, decision: str) -> None:
        """Give up a claim; nothing if another worker has it, since one that waited in vain for its claim cannot tell."""
        if decision in self._claimed and self._claimed[decision].worker == worker:
            del self._claimed[decision]
            await self._sessions.release_decision(decision)

    def end(self, worker: str) -> None:
        """Note that a worker is gone. Nobody can claim what it had claimed until that is settled."""
        for decision, claimed in self._claimed.items():
            if claimed.worker == worker:
                self._claimed[decision] = claimed._replace(worker=_ended(worker))

    def left_by(self, worker: str) -> dict[str, float]:
        """Return the ids that a worker had claimed and neither answered nor given up when it ended, and since when."""
        ended = _ended(worker)
        return {decision: claimed.time for decision, claimed in self._claimed.items() if claimed.worker == ended}

    async def settle(self, worker: str, decision: str, answered: DecisionRef | None) -> None:
        """End the claim of a worker that is gone; nothing if it has ended before.

        Args:
            worker: The worker.
            decision: The id.
            answered: What it had logged, which is what everyone answers from now on; None to let another worker answer.
        """
        if decision not in self.left_by(worker):
            return
        if answered is None:
            await self.release(_ended(worker), decision)
        else:
            await self.remember(decision, answered)


def _ended(worker: str) -> str:
    """Who has the claims of a worker that is gone: not the one that is started in its place."""
    return f"{worker} ended"
