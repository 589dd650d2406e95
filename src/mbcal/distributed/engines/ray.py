"""A Ray cluster: one that is there already, or one of this machine's that lives as long as the engine.

Ray places tasks, moves what they return and tells which workers were lost. What is left to do here: few tasks in flight at a
time, those of lost workers again, errors as their own kinds, and an end in bounded time where no worker can be had. Ray's
ports execute what they are sent, so a cluster of our own listens on this machine's loopback alone (docs/scale.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from mbcal.distributed.engines import ONE_CORE, OnMessage, Result, Task, WorkerResources, messages_to
from mbcal.distributed.group import Group
from mbcal.errors import EngineError, OptionError
from mbcal.version import __version__

RETRIES = 3
"""How often a task may lose its worker."""
PATIENCE = 300.0
"""Seconds to wait for a first worker; clusters that grow on demand take minutes."""
POLL = 0.2
"""Seconds between looking for what tasks said."""
FAREWELL = 10.0
"""Seconds for cancelled tasks to be gone."""
OBJECTS = 256 << 20
"""Bytes of shared memory of a cluster of our own: tasks and what they return are small; more goes to disk."""
CONNECT = 10.0
"""Seconds for the first answer from an address."""
INHERITED = {
    "OMP_NUM_THREADS": "1",  # a worker is a core: networks here are many small operations, which threads only hinder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # leave CUDA_VISIBLE_DEVICES alone where no GPU is asked for, and do not warn
    "RAY_NUM_REDIS_GET_RETRIES": "3",  # of ten seconds each, to reach the head of a cluster; by default it is twenty
    "RAY_USAGE_STATS_ENABLED": "0",
}
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray listen on the loopback alone, on Linux too; told 127.0.0.1 in any other way it listens to everybody."""


class RayEngine:
    """`with RayEngine(4) as engine:`, or `RayEngine(address="10.0.0.5:6379")` for a cluster that is there."""

    def __init__(self, workers: int | None = None, address: str | None = None, *, patience: float = PATIENCE) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"workers: must be at least 1, got {workers}")
        self._asked, self._address, self.patience = workers, address, patience
        self._calls, self._mail, self._ours = itertools.count(), None, False
        self.workers = workers or 1

    def __enter__(self) -> Self:
        if self._address is None:
            os.environ.update(ON_LOOPBACK)
        ray = ray_module()
        if not ray.is_initialized():  # somebody's, within this process, is used as it is and left alone
            self._ours = True
            self._connect()
        try:
            self.workers = self._asked or max(int(ray.cluster_resources().get("CPU", 1)), 1)
            if self._address is not None:
                self._greet()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._mail = None
        if self._ours:
            self._ours = False
            ray_module().shutdown()

    def _connect(self) -> None:
        """To the address, or to a cluster of our own. Ray takes over SIGTERM; whoever had it gets it back."""
        ray = ray_module()
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM) if main else None
        how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._address is None:
            how |= {"num_cpus": self._asked or os.cpu_count(), "object_store_memory": OBJECTS, "include_dashboard": False}
        else:
            passed = {name: os.environ[name] for name in ("PYTHONPATH", *INHERITED) if name in os.environ}
            how["runtime_env"] = {"env_vars": passed}
        try:
            if self._address is not None:
                _knock(self._address)
            ray.init(self._address or "local", **how)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            where = "on this machine" if self._address is None else f"at {self._address}"
            raise EngineError(f"ray: no cluster can be had {where} ({first_line(error)})") from error
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)
        # what Ray tells of lost workers it prints among our results, whatever it is told about logs
        ray._private.worker._worker_logs_enabled = False

    def _greet(self) -> None:
        """Every node must have this very mbcal."""
        for node, found in self._on_every_node(_version):
            if found != __version__:
                rule = f"node {node} has mbcal {found}, this machine {__version__}"
                raise EngineError(f"ray: {rule}; install the same version on every node")

    def require_shared_file(self, file: Path) -> None:
        """See `Engine`: its first bytes must be seen from every node."""
        if self._address is None:
            return
        path = str(file.resolve())
        wanted = _opening(path)
        if wanted is None:
            raise EngineError(f"{file}: there is no such file, so workers cannot see it either")
        for node, found in self._on_every_node(_opening, path):
            if found != wanted:
                rule = (
                    f"{file}: node {node} {'does not see this file' if found is None else 'sees another file of this name'}"
                )
                raise EngineError(f"{rule}; put its folder on storage that all nodes mount at the same place")

    def _on_every_node(self, ask: Callable[..., Any], *arguments: Any) -> Iterator[tuple[str, Any]]:
        ray = ray_module()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for node in [node for node in ray.nodes() if node["Alive"]]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked = ray.remote(ask).options(num_cpus=0, max_retries=1, scheduling_strategy=there).remote(*arguments)
            try:
                yield node["NodeManagerAddress"], ray.get(asked, timeout=self.patience)
            except ray.exceptions.RayError as error:
                rule = f"node {node['NodeManagerAddress']} cannot run mbcal ({first_line(error)})"
                raise EngineError(f"ray: {rule}; install mbcal {__version__} and Ray {ray.__version__} there") from error

    def map_unordered(
        self,
        job: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: WorkerResources = ONE_CORE,
        on_message: OnMessage | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """See `Engine`."""
        ray, call = ray_module(), next(self._calls)
        mail = self._mail = self._mail or ray.remote(num_cpus=0)(_Mail).remote()
        remote = ray.remote(_do).options(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0)
        waiting, lost = list(enumerate(tasks))[::-1], [0] * len(tasks)
        running: dict[Any, int] = {}
        begun: set[int] = set()
        alive = time.monotonic()
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    number, task = waiting.pop()
                    running[remote.remote(job, task, mail, call, number, os.getcwd())] = number
                done, _ = ray.wait(list(running), timeout=POLL)
                for number, what in ray.get(mail.take.remote(call), timeout=self.patience):
                    if number in running.values():
                        begun.add(number)
                        if on_message is not None and what is not None:
                            on_message(number, what)
                for task_of in done:
                    number = running.pop(task_of)
                    begun.discard(number)
                    try:
                        made = ray.get(task_of)
                    except _lost_worker() as error:
                        lost[number] += 1
                        if lost[number] > RETRIES:
                            raise EngineError(_given_up(number, RETRIES, error)) from error
                        waiting.append((number, tasks[number]))
                        continue
                    yield number, made
                if done or begun or not running:
                    alive = time.monotonic()
                elif time.monotonic() - alive > self.patience:
                    raise EngineError(_nobody(resources, self.patience, ray.cluster_resources()))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, Exception) and not isinstance(cause, ray.exceptions.RayError):
                raise cause from error  # the job's own
            raise cluster_failed(error) from error
        finally:
            _cancel(list(running))

    def run_spmd(
        self,
        job: Callable[[Group], Result],
        resources: WorkerResources = ONE_CORE,
        on_message: Callable[[Any], None] | None = None,
    ) -> Result:
        """See `Engine`."""
        from mbcal.distributed.engines.ray_train import run_spmd

        return run_spmd(job, self.workers, resources, self.patience, on_message)


class _Mail:
    """An actor: what tasks say, kept until it is fetched."""

    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[int, Any]]] = {}

    def put(self, call: int, number: int, what: Any) -> None:
        self._kept.setdefault(call, []).append((number, what))

    def take(self, call: int) -> list[tuple[int, Any]]:
        return self._kept.pop(call, [])


def _do(job: Callable[[Any], Any], task: Any, mail: Any, call: int, number: int, place: str) -> Any:
    """On a worker: one task, in the driver's own folder where there is one, so that relative paths mean the same."""
    with contextlib.suppress(OSError):
        os.chdir(place)
    mail.put.remote(call, number, None)  # begun
    with messages_to(lambda what: mail.put.remote(call, number, what)):
        return job(task)


def _version() -> str:
    return __version__


def _opening(path: str) -> str | None:
    """A hash of a file's size and first bytes; None where there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(b"%d " % os.path.getsize(path) + file.read(1 << 20)).hexdigest()
    except OSError:
        return None


def _cancel(running: list[Any]) -> None:
    """Nothing is left running."""
    ray = ray_module()
    if not running or not ray.is_initialized():
        return
    with contextlib.suppress(ray.exceptions.RayError):
        for task in running:
            ray.cancel(task, force=True)
        ray.wait(running, num_returns=len(running), timeout=FAREWELL)


def _lost_worker() -> tuple[type[Exception], ...]:
    """What Ray raises where a worker, its machine or what it returned is gone; the job itself is not to blame."""
    kinds = ray_module().exceptions
    return kinds.WorkerCrashedError, kinds.NodeDiedError, kinds.OutOfMemoryError, kinds.ObjectLostError


def _given_up(number: int, retries: int, error: Exception) -> str:
    rule = f"ray: task {number} lost its worker {retries + 1} times ({first_line(error)})"
    return f"{rule}; it may want more memory than a worker has: take fewer workers, or larger ones, and start again"


def _nobody(resources: WorkerResources, seconds: float, there: dict[str, float]) -> str:
    wanted = f"{resources.cpus:g} CPU and {resources.gpus:g} GPU"
    found = f"{there.get('CPU', 0):g} CPU and {there.get('GPU', 0):g} GPU, busy or not"
    rule = f"ray: no worker could be had in {seconds:g} seconds for a task of {wanted}; the cluster has {found}"
    return f"{rule}; ask for less, add nodes, or start again when it is free"


def _knock(address: str) -> None:
    """Fail at once where nobody answers, instead of after Ray's own minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()


def cluster_failed(error: Exception) -> EngineError:
    """What to say where it was no job's fault."""
    return EngineError(f"ray: the cluster failed ({first_line(error)}); see that it is up, and start again")


def first_line(error: BaseException) -> str:
    """The first line that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def ray_module() -> Any:
    """Ray, imported when it is used; what workers inherit is set before."""
    for name, value in INHERITED.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise OptionError("engine: ray is not installed; pip install 'mbcal[ray]'") from None
    return ray
