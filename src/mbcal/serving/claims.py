"""Claims on the id of a request: of several workers or servers that are asked the same at the same moment, one answers.

::

    claim ──▶ no process has it: this one makes the answer, and remembers it
          ├─▶ it was answered: that answer
          └─▶ another process is at it: ask again, for a while
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from mbcal.serving.state import DecisionRef, SessionStore, StateAwayError

WAIT_SECONDS = 2.0
"""Longest wait for the answer of another process."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two questions whether it has come: doubled each time."""


class IdBusyError(StateAwayError):
    """Another process is answering the request with this id, and its answer does not come."""


class Claim:
    """The right to answer the request with an id, in every store in which others might look for it."""

    def __init__(self, stores: Iterable[SessionStore], decision: str) -> None:
        self._stores, self._decision = stores, decision
        self._taken: list[SessionStore] = []

    async def take(self) -> DecisionRef | None:
        """Take the claim; return the decision if the request was answered already. Redis is left out while it is away.

        Raises:
            IdBusyError: If another process has the claim and does not answer in time.
            StateAwayError: If a store that is required is away.
        """
        for store in self._stores:
            try:
                claimed = await self._ask(store)
            except StateAwayError:
                if store.is_required:
                    raise
                continue
            if isinstance(claimed, DecisionRef):
                return claimed
            if not claimed:
                raise IdBusyError(f"id: the request with id {self._decision!r} is being answered; try again in a second")
            self._taken.append(store)
        return None

    async def _ask(self, store: SessionStore) -> DecisionRef | bool:
        """The answer; True if this process has the claim now; False if another one still has it at the end of the wait."""
        deadline, pause = asyncio.get_running_loop().time() + WAIT_SECONDS, FIRST_PAUSE
        while (claimed := await store.claim_decision(self._decision)) is False:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return claimed

    async def release(self) -> None:
        """Leave the claim to others, after a failure."""
        for store in self._taken:
            with contextlib.suppress(StateAwayError):
                await store.release_decision(self._decision)
