"""A step of training recorded as a CUDA graph: launched whole, since launching small kernels takes longer than they do."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_recording = threading.Lock()
"""One recording at a time: memory asked for by others must not end up in it."""


class GraphedStep:
    """Call it again and again: on a GPU the first call runs the step as it is, the second records it, all others replay.

    Between calls nothing may change but the contents of tensors. Where there is nothing to record the step is simply called.
    """

    def __init__(self, step: Callable[[], None], record: bool) -> None:
        self._step, self._records = step, record
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self._records or not self._warm:
            self._warm = True  # optimisers and libraries make what they keep in their first step
            self._step()
            return
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()

    def release(self) -> None:
        """Give back the memory of the recording."""
        self._graph = None

    def _record(self) -> torch.cuda.CUDAGraph:
        graph, aside = torch.cuda.CUDAGraph(), _stream_aside()
        with _recording, _no_collection():
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                graph.capture_begin(pool=_memory(), capture_error_mode="thread_local")
                try:
                    self._step()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(aside)
        return graph


_own = threading.local()


def _memory() -> Any:
    """One pool for all recordings of a thread, since only one of them is in use at a time.

    A recording of nothing keeps the pool: left to itself each would take new memory, and give it back only when all is full.
    """
    if not hasattr(_own, "keeper"):
        _own.keeper = torch.cuda.CUDAGraph()
        _own.keeper.capture_begin(capture_error_mode="thread_local")
        torch.zeros(1, device="cuda")
        _own.keeper.capture_end()
    return _own.keeper.pool()


def _stream_aside() -> torch.cuda.Stream:
    """Where to record: this thread's own stream, or one kept for threads on the default stream, which cannot be recorded.

    Never a new one each time: torch hands out the same thirty-two streams again and again, so that sooner or later it would
    be one that another thread is working on.
    """
    current = torch.cuda.current_stream()
    return current if current != torch.cuda.default_stream() else _kept_stream()


@functools.cache
def _kept_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """An old recording that is collected while a new one is made would spoil it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
