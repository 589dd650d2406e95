"""Calls that may hang, such as on a network drive: each in a thread of its own, which no end of the process waits for.

Those of asyncio share a few threads, so some calls that hang keep all others waiting, and the process waits for them to end.
Whoever calls sees to it that few can hang at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread and return its result. A caller who is cancelled leaves the thread to itself."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def call() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=call, name=getattr(function, "__name__", "call"), daemon=True).start()
    return await asyncio.wrap_future(future)
