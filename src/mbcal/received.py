"""The answer of a ranking service as its clients receive it: bounded in bytes and in time, whoever is at the other end."""

from __future__ import annotations

import time
from typing import TypeVar

from mbcal.errors import ServiceError, printable, shortened

MAX_ANSWER = 32 << 20
"""Bytes of an answer; 10,000 items with the longest names need 20 MiB."""
LATE = "the answer was not complete in time"
MAX_PROBLEM = 1_000
"""Characters of what an answer says is wrong."""

T = TypeVar("T")


class ReceivedAnswer:
    """Status and bytes of an answer, as long as these are neither too many nor too late."""

    def __init__(self, path: str, status: int, ends: float) -> None:
        """Begin with nothing.

        Args:
            path: Route of the request.
            status: HTTP status.
            ends: When the answer must be complete, by `time.monotonic`.
        """
        self.status = status
        self._path, self._ends, self._content = path, ends, bytearray()

    def add(self, part: bytes) -> None:
        """Add the next bytes.

        Raises:
            ServiceError: If they are too many.
            TimeoutError: If they are late.
        """
        self._content += part
        if len(self._content) > MAX_ANSWER:
            raise self._error(f"the answer is longer than {MAX_ANSWER >> 20} MiB; is this 'mbcal serve'?")
        if time.monotonic() > self._ends:
            raise TimeoutError(LATE)

    def decode(self, kind: type[T]) -> T:
        """Return the answer as a value of this type.

        Raises:
            ServiceError: If the request was refused, or this is no answer of the service.
        """
        import msgspec

        try:
            if self.status == 200:
                return msgspec.json.decode(self._content, type=kind)
            problem = str(msgspec.json.decode(self._content)["error"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:  # ValueError: no JSON, no text, another type
            if self.status == 200:
                raise self._error(f"not an answer of 'mbcal serve' ({error}); is something else at its address?") from error
            problem = self._content[:200].decode(errors="replace")
        raise self._error(problem)

    def _error(self, problem: str) -> ServiceError:
        return ServiceError(f"{self._path}: {printable(shortened(problem, MAX_PROBLEM))} (HTTP {self.status})", self.status)
