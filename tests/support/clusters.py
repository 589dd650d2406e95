"""Ray clusters of the tests, and what is left of their processes."""

from __future__ import annotations

import time

import psutil


def gone(pid: int, seconds: float) -> bool:
    """Whether a process ends within so many seconds."""
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and time.monotonic() < end:
        time.sleep(0.1)
    return not psutil.pid_exists(pid)


def address_of_cluster() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)
