"""One job on several workers of a Ray cluster at a time, by Ray Train: `run_spmd` of the Ray engine.

Ray Train places the workers, connects them (gloo on CPUs, NCCL on GPUs) and starts all of them again when one is lost. This
module passes the job to them, returns its result or raises its error, and gives up after a bounded time without workers.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from mbcal.distributed.engines import Result, WorkerResources, messages_to
from mbcal.distributed.engines.ray_runtime import (
    MAX_RETRIES,
    POLL_INTERVAL,
    cluster_failed,
    describe_cluster,
    describe_resources,
    first_line,
    ray_module,
)
from mbcal.distributed.group import Group
from mbcal.errors import EngineError, MbcalError, OptionError

if TYPE_CHECKING:
    from torch import Tensor

REPLY_TIMEOUT = 300
"""Seconds after which a worker that waits for another's tensors, or a driver that waits for a worker, gives up."""
TRAIN_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(REPLY_TIMEOUT),
    "RAY_TRAIN_METRICS_ENABLED": "0",  # not read here
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a preempted worker is handled like a lost one
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths mean the same as on the driver
}
"""Settings of Ray Train, which it reads from environment variables; those set already are kept."""


class TorchGroup:
    """The workers that Ray Train has connected, as a `Group`."""

    def __init__(self) -> None:
        from torch import distributed

        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._all_reduce = distributed.all_reduce

    def all_reduce_sum(self, *tensors: Tensor) -> None:
        """See `Group`."""
        for tensor in tensors:
            self._all_reduce(tensor)


def run_spmd(
    job: Callable[[Group], Result],
    workers: int,
    resources: WorkerResources,
    start_timeout: float,
    on_message: Callable[[Any], None] | None = None,
) -> Result:
    """Run one job on all workers at a time; see `Engine.run_spmd`.

    When a worker is lost, all start again, at most `MAX_RETRIES` times; the work since the job's last checkpoint is lost.

    Args:
        job: A function of the worker's group.
        workers: Number of workers.
        resources: What each worker needs.
        start_timeout: Seconds to wait for all workers to start.
        on_message: Called with what the first worker emits.

    Returns:
        The result of the first worker.

    Raises:
        EngineError: If the workers cannot be started in time, or are lost again and again.
        MbcalError: What the job raises on any worker.
    """
    ray, train = ray_module(), _ray_train()
    board = ray.remote(num_cpus=0)(ResultBoard).remote()
    with tempfile.TemporaryDirectory(prefix="mbcal-ray-") as storage, _train_environment(start_timeout):
        trainer = train.torch.TorchTrainer(
            _run_worker,
            train_loop_config={"job": job, "board": board, "folder": os.getcwd()},
            torch_config=train.torch.TorchConfig(
                "cpu:gloo,cuda:nccl" if resources.gpus else "gloo", timeout_s=REPLY_TIMEOUT
            ),
            scaling_config=train.ScalingConfig(
                num_workers=workers,
                use_gpu=bool(resources.gpus),
                resources_per_worker={"CPU": resources.cpus, **({"GPU": resources.gpus} if resources.gpus else {})},
            ),
            run_config=train.RunConfig(
                storage_path=storage,  # for Ray Train's own files; the job writes its checkpoints itself
                failure_config=train.FailureConfig(max_failures=MAX_RETRIES, controller_failure_limit=0),
                logging_config=train.LoggingConfig("ERROR"),
            ),
        )
        try:
            _call_in_thread(trainer.fit, lambda: _deliver_messages(board, on_message))
        except train.ControllerError as error:
            raise EngineError(_not_started(workers, resources, start_timeout, error)) from error
        except train.TrainingFailedError as error:
            job_error = ray.get(board.outcome.remote(), timeout=REPLY_TIMEOUT)[0]
            raise job_error or EngineError(_workers_lost(error)) from error
        except ray.exceptions.RayError as error:
            raise cluster_failed(error) from error
        _deliver_messages(board, on_message)
        job_error, result = ray.get(board.outcome.remote(), timeout=REPLY_TIMEOUT)
    if job_error:
        raise job_error
    return result  # type: ignore[no-any-return]


class ResultBoard:
    """An actor that keeps the first worker's messages and result, and the first error of any worker."""

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._outcome: tuple[MbcalError | None, Any] = None, None

    def emit(self, message: Any) -> None:
        """Keep a message."""
        self._messages.append(message)

    def take(self) -> list[Any]:
        """Return and forget the messages."""
        messages, self._messages = self._messages, []
        return messages

    def finish(self, error: MbcalError | None, result: Any = None) -> None:
        """Keep the end of a worker; the first error stays."""
        self._outcome = self._outcome[0] or error, result

    def outcome(self) -> tuple[MbcalError | None, Any]:
        """The first error, if any, and the result."""
        return self._outcome


def _run_worker(config: dict[str, Any]) -> None:
    """Run the job on a worker.

    Ray Train starts the workers again after any error. The job's own errors would be raised again, so after one of those
    the second attempt returns at once, which ends the run.
    """
    ray, board = ray_module(), config["board"]
    if ray.get(board.outcome.remote())[0] is not None:
        return
    with contextlib.suppress(OSError):
        os.chdir(config["folder"])
    group = TorchGroup()
    try:
        with messages_to(board.emit.remote if group.rank == 0 else None):
            result = config["job"](group)
    except MbcalError as error:
        ray.get(board.finish.remote(error))
        raise
    if group.rank == 0:
        ray.get(board.finish.remote(None, result))


def _call_in_thread(call: Callable[[], Any], meanwhile: Callable[[], None]) -> None:
    """Wait for a call on a thread of its own: on the main thread Ray Train would replace the handler of SIGINT."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not wait([done], POLL_INTERVAL).done:
        meanwhile()
    done.result()


def _deliver_messages(board: Any, on_message: Callable[[Any], None] | None) -> None:
    for message in ray_module().get(board.take.remote(), timeout=REPLY_TIMEOUT):
        if on_message is not None:
            on_message(message)


@contextlib.contextmanager
def _train_environment(start_timeout: float) -> Iterator[None]:
    """Within, the environment variables of Ray Train are set."""
    variables = {**TRAIN_ENVIRONMENT, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{start_timeout:g}"}
    missing = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _not_started(workers: int, resources: WorkerResources, start_timeout: float, error: Exception) -> str:
    problem = f"{workers} workers of {describe_resources(resources)} could not be started in {start_timeout:g} seconds"
    reason = first_line(getattr(error, "controller_failure", error))
    return f"ray: {problem} ({reason}); {describe_cluster()}; take fewer workers, add nodes, or start again when it is free"


def _workers_lost(error: Any) -> str:
    failures = getattr(error, "worker_failures", {})
    by_worker = "; ".join(f"worker {rank}: {first_line(failure)}" for rank, failure in sorted(failures.items()))
    problem = f"workers were lost {MAX_RETRIES + 1} times, at last with: {by_worker or first_line(error)}"
    advice = "they may need more memory than they have; the same command resumes from the last checkpoint"
    return f"ray: {problem}; {advice}"


def _ray_train() -> Any:
    try:
        import ray.train
        import ray.train.torch
    except ImportError as error:
        raise OptionError(f"engine: this Ray has no ray.train ({first_line(error)}); pip install 'mbcal[ray]'") from None
    return ray.train
