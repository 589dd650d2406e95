"""Answers that are remembered so that a repeated request is handled once, within a bound on their bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from mbcal.serving.bounded import FairDict

T = TypeVar("T")

WAITING_BYTES = 2_000
"""Estimated size of an answer that is being made."""


class _Making(NamedTuple, Generic[T]):
    """An answer that is being made."""

    request: Hashable
    answer: asyncio.Future[T]


class RememberedAnswers(Generic[T]):
    """Awaits the work of a request once per key, and gives its result to every caller."""

    def __init__(self, max_bytes: int, size_of: Callable[[T], int], is_valid: Callable[[T], bool] = lambda _: True) -> None:
        """Start empty.

        Args:
            max_bytes: Bound on all answers; the oldest of the client that holds most are dropped.
            size_of: Estimated bytes of an answer.
            is_valid: Whether an answer may still be given; if not, it is made again.
        """
        self._known: FairDict[Hashable, _Making[T] | T] = FairDict(max_bytes)
        self._size_of, self._is_valid = size_of, is_valid

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of all answers."""
        return self._known.used_bytes

    def get(self, key: Hashable) -> T | None:
        """Return an answer that may still be given; None if there is none, or it is being made."""
        known = self._known.get(key)
        return None if known is None or isinstance(known, _Making) or not self._is_valid(known) else known

    def pop(self, key: Hashable) -> None:
        """Forget an answer, if it is there."""
        self._known.pop(key)

    def put(self, key: Hashable, answer: T) -> None:
        """Remember an answer that was made elsewhere."""
        self._known.put(key, answer, self._size_of(answer))

    async def once(self, key: Hashable, work: Callable[[], Awaitable[T]], request: Hashable = None) -> T:
        """Return the answer of this key; work that fails is done again by the next caller.

        Args:
            key: The key.
            work: Makes the answer.
            request: What is asked for. Callers who ask for the same share a failure; others who waited do their own work.
        """
        while isinstance(known := self._known.get(key), _Making):
            try:
                return await asyncio.shield(known.answer)
            except Exception:
                if known.request == request:
                    raise
        if known is not None and self._is_valid(known):
            return known
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._known.put(key, _Making(request, future), WAITING_BYTES)
        try:
            answer = await work()
        except BaseException as error:
            self._known.pop(key)
            future.set_exception(error)
            with contextlib.suppress(BaseException):
                future.exception()  # marks it as retrieved: there may be no other caller
            raise
        future.set_result(answer)
        self.put(key, answer)
        return answer
