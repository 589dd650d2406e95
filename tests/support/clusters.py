"""Ray clusters of the tests, and the processes that they leave behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil

WAIT_BOUND = 300.0
"""Seconds in which anything awaited by a test must happen, even on a busy machine."""
TASK_TITLE = "ray::_run_task"
"""Title of a worker process while it runs a task of `map_unordered`."""


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; a zombie has ended, and only waits for its parent."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(pid: int, seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    deadline = time.monotonic() + seconds
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait_for(happened: Callable[[], object]) -> None:
    """Wait until a condition holds; fail the test after `WAIT_BOUND` seconds."""
    deadline = time.monotonic() + WAIT_BOUND
    while not happened():
        assert time.monotonic() < deadline, "the awaited condition never held"
        time.sleep(0.05)


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Running processes that have this environment variable, inherited by all that a process starts."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def address_of_cluster() -> str:
    """The address of the cluster that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)
