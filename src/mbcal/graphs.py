"""A step of training recorded as a CUDA graph: launched whole, since launching small kernels takes longer than they do."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator

import torch

_recording = threading.Lock()
"""One recording at a time: memory asked for by others must not end up in it."""


class Recorded:
    """Call it again and again: on a GPU the first call runs the step as it is, the second records it, all others replay.

    Between calls nothing may change but the contents of tensors. On a CPU the step is simply called.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._device = step, device
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._device.type != "cuda" or not self._warm:
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
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with _recording, _no_collection():
            aside.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(aside):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._step()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream(self._device).wait_stream(aside)
        return graph


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
