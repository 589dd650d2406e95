"""A training step as a CUDA graph: recorded once, then launched as a whole.

An update of a small network is about a hundred kernels of a few microseconds; launching them one by one takes longer than
they run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_recording_lock = threading.Lock()
"""One recording at a time in the process: memory that other threads allocate must not become part of it."""


class GraphedStep:
    """A function without arguments that is called many times.

    With `record`, the first call runs it as it is (optimisers and libraries allocate their state then), the second records
    it, and all later calls replay the recording. Between calls only the contents of tensors may change.

    Args:
        step: The function.
        record: Whether to record; otherwise every call runs the function. Recording needs a GPU.
    """

    def __init__(self, step: Callable[[], None], record: bool) -> None:
        self._step, self._record_step = step, record
        self._has_run = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if not self._record_step or not self._has_run:
            self._has_run = True
            self._step()
            return
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()

    def release(self) -> None:
        """Free the memory of the recording. The next call would record again."""
        self._graph = None

    def _record(self) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), _recording_stream()
        with _recording_lock, _garbage_collection_paused():
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                graph.capture_begin(pool=_memory_pool(), capture_error_mode="thread_local")
                try:
                    self._step()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        return graph


_thread_data = threading.local()


def _memory_pool() -> Any:
    """One memory pool for all recordings of a thread; only one of them is in use at a time.

    Without a shared pool every recording allocates memory of its own, which torch frees only when the device is full. An
    otherwise unused recording keeps the pool alive.
    """
    if not hasattr(_thread_data, "pool_owner"):
        _thread_data.pool_owner = torch.cuda.CUDAGraph()
        _thread_data.pool_owner.capture_begin(capture_error_mode="thread_local")
        torch.zeros(1, device="cuda")
        _thread_data.pool_owner.capture_end()
    return _thread_data.pool_owner.pool()


def _recording_stream() -> torch.cuda.Stream:
    """The stream to record on: the thread's own, or a shared one if that is the default stream, which cannot be recorded.

    Never a new stream per recording: torch hands out the same 32 streams in turns, so one of them would sooner or later be
    in use by another thread.
    """
    current = torch.cuda.current_stream()
    return current if current != torch.cuda.default_stream() else _shared_stream()


@functools.cache
def _shared_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Freeing an old recording while a new one is made would invalidate the new one."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
