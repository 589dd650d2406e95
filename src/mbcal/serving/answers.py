"""Answers that are remembered so that a repeated request is handled once, within a bound on their bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from mbcal.serving.bounded import BoundedDict

T = TypeVar("T")

WAITING_BYTES = 2_000
"""Estimated size of an answer that is being made."""


class RememberedAnswers(Generic[T]):
    """Awaits the work of a request once per key, and gives its result to every caller."""

    def __init__(self, max_bytes: int, size_of: Callable[[T], int]) -> None:
        """Start empty.

        Args:
            max_bytes: Bound on all answers; the oldest are dropped.
            size_of: Estimated bytes of an answer.
        """
        self._futures: BoundedDict[Hashable, asyncio.Future[T]] = BoundedDict(max_bytes)
        self._size_of = size_of

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of all answers."""
        return self._futures.used_bytes

    async def once(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of this key; work that fails is done again by the next caller."""
        known = self._futures.get(key)
        if known is not None:
            return await asyncio.shield(known)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._futures.put(key, future, WAITING_BYTES)
        try:
            answer = await work()
        except BaseException as error:
            self._futures.pop(key)
            future.set_exception(error)
            with contextlib.suppress(BaseException):
                future.exception()  # marks it as retrieved: there may be no other caller
            raise
        future.set_result(answer)
        self._futures.put(key, future, self._size_of(answer))
        return answer
