"""The Ray engine: jobs on an existing Ray cluster, or on one of this machine that lives as long as the engine.

This module connects to the cluster and checks its nodes; `ray_map` runs independent tasks, `ray_train` groups of workers.
Ray's ports execute whatever they are sent, so a cluster started here listens on the loopback interface only (docs/scale.md).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from mbcal.distributed.engines import ONE_CORE, OnMessage, Result, Task, WorkerResources
from mbcal.distributed.engines.ray_runtime import START_TIMEOUT, WORKER_ENVIRONMENT, first_line, ray_module
from mbcal.distributed.group import Group
from mbcal.errors import EngineError, OptionError
from mbcal.version import __version__

OBJECT_STORE_BYTES = 256 << 20
"""Shared memory of a cluster started here: tasks and results are small; Ray writes more to disk."""
CONNECT_TIMEOUT = 10.0
"""Seconds for the first answer from an address."""
FINGERPRINT_BYTES = 1 << 20
"""Bytes of a file that `file_fingerprint` reads."""
LOOPBACK_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray listen on the loopback interface only, on Linux too. Given 127.0.0.1 in any other way, it listens on all."""


class RayEngine:
    """Runs jobs on a Ray cluster: `with RayEngine(4) as engine:`, or `RayEngine(address="10.0.0.5:6379")`.

    A cluster that this process is connected to already is used, and not shut down.

    Args:
        workers: Tasks at a time, and workers of `run_spmd`; by default one per core of the cluster.
        address: An existing cluster; by default one is started on this machine.
        start_timeout: Seconds to wait for a first worker.

    Raises:
        OptionError: If workers is below 1, or (on entering) Ray is not installed.
        EngineError: On entering, if there is no cluster at the address or a node has another version of mbcal.
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, *, start_timeout: float = START_TIMEOUT
    ) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"workers: must be at least 1, got {workers}")
        self.workers, self.start_timeout = workers or 1, start_timeout
        self._requested_workers, self._address = workers, address
        self._calls, self._mailbox, self._is_connected_here = itertools.count(), None, False

    def __enter__(self) -> Self:
        if self._address is None:
            os.environ.update(LOOPBACK_ENVIRONMENT)
        ray = ray_module()
        if not ray.is_initialized():
            self._is_connected_here = True
            self._connect()
        try:
            self.workers = self._requested_workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)
            if self._address is not None:
                self._require_same_version()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._mailbox = None
        if self._is_connected_here:
            self._is_connected_here = False
            ray_module().shutdown()

    def _connect(self) -> None:
        """Connect to the address, or start a cluster. Ray replaces the handler of SIGTERM; it is put back."""
        ray = ray_module()
        is_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM) if is_main_thread else None
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._address is None:
            options["num_cpus"] = self._requested_workers or os.cpu_count()
            options |= {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
        else:
            variables = {name: os.environ[name] for name in ("PYTHONPATH", *WORKER_ENVIRONMENT) if name in os.environ}
            options["runtime_env"] = {"env_vars": variables}
        try:
            if self._address is not None:
                _require_reachable(self._address)
            ray.init(self._address or "local", **options)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            problem = "cannot start a cluster on this machine" if self._address is None else f"no cluster at {self._address}"
            raise EngineError(f"ray: {problem} ({first_line(error)})") from error
        finally:
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
        # Ray prints reports of lost workers among our output, whatever its logging options are
        ray._private.worker._worker_logs_enabled = False

    def _require_same_version(self) -> None:
        for node, version in self._call_on_every_node(installed_version):
            if version != __version__:
                problem = f"node {node} has mbcal {version}, this machine {__version__}"
                raise EngineError(f"ray: {problem}; install the same version on every node")

    def require_shared_file(self, file: Path) -> None:
        """See `Engine`: compares the file's fingerprint on every node; a cluster of this machine needs no check."""
        if self._address is None:
            return
        path = str(file.resolve())
        expected = file_fingerprint(path)
        if expected is None:
            raise EngineError(f"{file}: no such file on this machine, so workers cannot see it either")
        for node, fingerprint in self._call_on_every_node(file_fingerprint, path):
            if fingerprint != expected:
                problem = "does not see this file" if fingerprint is None else "sees another file of this name"
                advice = "put its folder on storage that all nodes mount at the same path"
                raise EngineError(f"{file}: node {node} {problem}; {advice}")

    def _call_on_every_node(self, function: Callable[..., Any], *arguments: Any) -> Iterator[tuple[str, Any]]:
        """Yield each live node's address and result."""
        ray = ray_module()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for node in [node for node in ray.nodes() if node["Alive"]]:
            address, on_node = node["NodeManagerAddress"], NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote = ray.remote(function).options(num_cpus=0, max_retries=1, scheduling_strategy=on_node)
            try:
                yield address, ray.get(remote.remote(*arguments), timeout=self.start_timeout)
            except ray.exceptions.RayError as error:
                problem = f"node {address} cannot run mbcal ({first_line(error)})"
                raise EngineError(f"ray: {problem}; install mbcal {__version__} and Ray {ray.__version__} there") from error

    def map_unordered(
        self,
        job: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: WorkerResources = ONE_CORE,
        on_message: OnMessage | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """See `Engine`."""
        from mbcal.distributed.engines.ray_map import Mailbox, TaskPool

        self._mailbox = self._mailbox or ray_module().remote(num_cpus=0)(Mailbox).remote()
        call = next(self._calls)
        pool = TaskPool(job, tasks, self.workers, resources, self._mailbox, call, self.start_timeout, on_message)
        yield from pool.run()

    def run_spmd(
        self,
        job: Callable[[Group], Result],
        resources: WorkerResources = ONE_CORE,
        on_message: Callable[[Any], None] | None = None,
    ) -> Result:
        """See `Engine`."""
        from mbcal.distributed.engines.ray_train import run_spmd

        return run_spmd(job, self.workers, resources, self.start_timeout, on_message)


def installed_version() -> str:
    """The version of mbcal on the node that runs this."""
    return __version__


def file_fingerprint(path: str) -> str | None:
    """A hash of a file's size and first `FINGERPRINT_BYTES`; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(b"%d " % os.path.getsize(path) + file.read(FINGERPRINT_BYTES)).hexdigest()
    except OSError:
        return None


def _require_reachable(address: str) -> None:
    """Raise OSError at once if nothing answers at the address; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
