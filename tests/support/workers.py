"""Workers of a group as threads of this process, for tests without an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from mbcal.distributed.group import Group

PATIENCE = 60.0
"""Seconds after which a worker that waits for the others gives up."""


class _Table:
    """The tensors of all workers in one sum."""

    def __init__(self, size: int) -> None:
        self.tensors: list[tuple[Tensor, ...]] = [()] * size
        self.barrier = threading.Barrier(size, timeout=PATIENCE)


class Threaded:
    """One worker, a thread."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank, self.size, self.table = rank, size, table

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        self.table.tensors[self.rank] = tensors
        self.table.barrier.wait()
        sums = [sum(parts[1:], parts[0].clone()) for parts in zip(*self.table.tensors, strict=True)]
        self.table.barrier.wait()
        for tensor, total in zip(tensors, sums, strict=True):
            tensor.copy_(total)


def together(size: int, job: Callable[[Group], Any]) -> list[Any]:
    """Run a job on every worker of a group; return the results by rank. When one fails, the others stop waiting for it."""
    table = _Table(size)

    def work(rank: int) -> Any:
        try:
            return job(Threaded(rank, size, table))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, rank) for rank in range(size)]
        errors = [error for future in futures if (error := future.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]


class ThreadedEngine:
    """An engine whose workers are threads."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run_spmd(self, job: Callable[[Group], Any], *_: Any) -> Any:
        return together(self.workers, job)[0]

    def require_shared_file(self, file: Path) -> None:
        assert file.is_file()
