"""What the modules of the Ray engine share: the import of Ray, retries and timeouts, messages about failures."""

from __future__ import annotations

import os
from typing import Any

from mbcal.distributed.engines import WorkerResources
from mbcal.errors import EngineError, OptionError

MAX_RETRIES = 3
"""How often a task, or a group of workers, is started again after a worker was lost."""
START_TIMEOUT = 300.0
"""Seconds to wait for a first worker; clusters that grow on demand take minutes."""
POLL_INTERVAL = 0.2
"""Seconds between two looks for messages and finished tasks."""

WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # one core per worker: networks here are many small operations, which more threads slow down
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # keep CUDA_VISIBLE_DEVICES for tasks without a GPU, and do not warn
    "RAY_NUM_REDIS_GET_RETRIES": "3",  # of ten seconds each, to reach the head of a cluster; Ray's default is twenty
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Environment variables of the driver and its workers, unless they are set already."""


def ray_module() -> Any:
    """Import Ray on first use, after setting `WORKER_ENVIRONMENT`.

    Raises:
        OptionError: If Ray is not installed.
    """
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise OptionError("engine: ray is not installed; pip install 'mbcal[ray]'") from None
    return ray


def cluster_failed(error: Exception) -> EngineError:
    """The error to raise when the cluster failed, not the job."""
    return EngineError(f"ray: the cluster failed ({first_line(error)}); check that it is up, and start again")


def describe_resources(resources: WorkerResources) -> str:
    """`1 CPU and 0 GPU`, for messages."""
    return f"{resources.cpus:g} CPU and {resources.gpus:g} GPU"


def describe_cluster() -> str:
    """The CPUs and GPUs of the whole cluster, for messages."""
    total = ray_module().cluster_resources()
    return f"the cluster has {total.get('CPU', 0):g} CPU and {total.get('GPU', 0):g} GPU in all, free or busy"


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's message, or the name of its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
