"""Batches: several requests in one body, `{"batch": [...]}`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

Turn = Callable[[], Awaitable[None]]
"""Waits until a request may be handled (`turns`)."""
T = TypeVar("T")
R = TypeVar("R")


class _Members(msgspec.Struct):
    """A batch whose members are counted, not decoded."""

    batch: list[msgspec.Raw]


_count_members = msgspec.json.Decoder(_Members).decode


def is_batch(body: bytes) -> bool:
    """Whether the first key is `batch`; a single request has no such key."""
    return body[:64].lstrip(b" \t\r\n{").startswith(b'"batch"')


def members_of(body: bytes) -> int:
    """Return the number of requests in a body; 1 for a single request.

    Raises:
        msgspec.DecodeError: If the body is a batch but not valid JSON.
    """
    return max(len(_count_members(body).batch), 1) if is_batch(body) else 1


async def no_turn() -> None:
    """Go on after a pass of the event loop."""
    await asyncio.sleep(0)


async def handle_members(
    handle: Callable[[T], Awaitable[R]], members: Sequence[T], at_a_time: int, turn: Turn = no_turn
) -> list[R]:
    """Handle the members of a batch, in order but several at a time, and return their answers.

    Args:
        handle: Handles one member.
        members: The members.
        at_a_time: How many are in progress at once.
        turn: Awaited before each, so that requests of others are handled in between.

    Raises:
        Exception: The error of a member that failed; members after it are not begun, and none is in progress any more.
    """
    answers: list[R | None] = [None] * len(members)
    waiting = iter(range(len(members)))
    failures: list[Exception] = []

    async def work() -> None:
        for number in waiting:
            await turn()
            if failures:
                return
            try:
                answers[number] = await handle(members[number])
            except Exception as error:
                failures.append(error)

    await asyncio.gather(*(work() for _ in range(min(at_a_time, len(members)))))
    if failures:
        raise failures[0]
    return answers  # type: ignore[return-value] # every member was handled
