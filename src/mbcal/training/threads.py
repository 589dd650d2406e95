"""Threads of PyTorch on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, unless OMP_NUM_THREADS says how many; also a decorator.

    Networks here are many small operations: a second thread gains little, and where other work runs, each operation waits
    for threads that have no core. On a busy machine of two cores a fit took 197 s with two threads, and 8 s with one.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
