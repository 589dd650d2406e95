"""One job on several workers of a Ray cluster at a time, by Ray Train: `run_spmd` of the Ray engine.

Ray Train places the workers, connects them (gloo on CPUs, NCCL on GPUs) and begins again with all of them where one is lost.
What is left to do here: hand over the job, bring back what it made or why it refused, and an end in bounded time.
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
from mbcal.distributed.engines.ray import POLL, RETRIES, cluster_failed, first_line, ray_module
from mbcal.distributed.group import Group
from mbcal.errors import EngineError, MbcalError, OptionError

if TYPE_CHECKING:
    from torch import Tensor

SILENCE = 300
"""Seconds after which a worker that waits for another's numbers gives up."""
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": str(SILENCE),
    "RAY_TRAIN_METRICS_ENABLED": "0",  # nobody reads them here
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a worker that is taken away is a worker that is lost
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths mean the same as on the driver
}


class TorchGroup:
    """The workers that Ray Train has connected."""

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
    patience: float,
    on_message: Callable[[Any], None] | None = None,
) -> Result:
    """See `Engine`. A lost worker costs what came after the last checkpoint; all begin again, up to `RETRIES` times."""
    ray, train = ray_module(), _ray_train()
    board = ray.remote(num_cpus=0)(_Board).remote()
    with tempfile.TemporaryDirectory(prefix="mbcal-ray-") as notes, _environment(patience):
        trainer = train.torch.TorchTrainer(
            _work,
            train_loop_config={"job": job, "board": board, "place": os.getcwd()},
            torch_config=train.torch.TorchConfig("cpu:gloo,cuda:nccl" if resources.gpus else "gloo", timeout_s=SILENCE),
            scaling_config=train.ScalingConfig(
                num_workers=workers,
                use_gpu=bool(resources.gpus),
                resources_per_worker={"CPU": resources.cpus, **({"GPU": resources.gpus} if resources.gpus else {})},
            ),
            run_config=train.RunConfig(
                storage_path=notes,  # Ray Train's own notes; checkpoints are the job's, in a folder all workers share
                failure_config=train.FailureConfig(max_failures=RETRIES, controller_failure_limit=0),
                logging_config=train.LoggingConfig("ERROR"),
            ),
        )
        try:
            _wait(trainer.fit, lambda: _pass_on(board, on_message))
        except train.ControllerError as error:
            raise EngineError(_nobody(workers, resources, patience, error)) from error
        except train.TrainingFailedError as error:
            refused = ray.get(board.verdict.remote(), timeout=SILENCE)[0]
            raise refused or EngineError(_given_up(error)) from error
        except ray.exceptions.RayError as error:
            raise cluster_failed(error) from error
        _pass_on(board, on_message)
        refused, made = ray.get(board.verdict.remote(), timeout=SILENCE)
    if refused:
        raise refused
    return made  # type: ignore[no-any-return]


class _Board:
    """An actor: what the first worker made, why any of them refused, and what it says meanwhile."""

    def __init__(self) -> None:
        self._said: list[Any] = []
        self._verdict: tuple[MbcalError | None, Any] = None, None

    def emit(self, what: Any) -> None:
        self._said.append(what)

    def take(self) -> list[Any]:
        said, self._said = self._said, []
        return said

    def end(self, refused: MbcalError | None, made: Any = None) -> None:
        self._verdict = self._verdict[0] or refused, made

    def verdict(self) -> tuple[MbcalError | None, Any]:
        return self._verdict


def _work(given: dict[str, Any]) -> None:
    """On a worker. What the job refuses it would refuse again, so the second attempt is an end to all attempts."""
    ray, board = ray_module(), given["board"]
    if ray.get(board.verdict.remote())[0] is not None:
        return
    with contextlib.suppress(OSError):
        os.chdir(given["place"])
    group = TorchGroup()
    try:
        with messages_to(board.emit.remote if group.rank == 0 else None):
            made = given["job"](group)
    except MbcalError as error:
        ray.get(board.end.remote(error))
        raise
    if group.rank == 0:
        ray.get(board.end.remote(None, made))


def _wait(call: Callable[[], Any], meanwhile: Callable[[], None]) -> None:
    """Until it is done, on a thread of its own: on the main one Ray Train would take over SIGINT."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not wait([done], POLL).done:
        meanwhile()
    done.result()


def _pass_on(board: Any, on_message: Callable[[Any], None] | None) -> None:
    for what in ray_module().get(board.take.remote(), timeout=SILENCE):
        if on_message is not None:
            on_message(what)


@contextlib.contextmanager
def _environment(patience: float) -> Iterator[None]:
    """Ray Train is told its bounds by variables, which it hands on to where it runs."""
    told = {**SETTINGS, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": f"{patience:g}"}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update({name: value for name, value in told.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _nobody(workers: int, resources: WorkerResources, patience: float, error: Exception) -> str:
    there = ray_module().cluster_resources()
    wanted = f"{workers} workers of {resources.cpus:g} CPU and {resources.gpus:g} GPU"
    found = f"{there.get('CPU', 0):g} CPU and {there.get('GPU', 0):g} GPU, all its users' together"
    rule = f"ray: {wanted} could not be started in {patience:g} seconds; the cluster has {found}"
    why = first_line(getattr(error, "controller_failure", error))
    return f"{rule} ({why}); take fewer workers, add nodes, or start again when it is free"


def _given_up(error: Any) -> str:
    failures = getattr(error, "worker_failures", {})
    each = "; ".join(f"worker {rank}: {first_line(failure)}" for rank, failure in sorted(failures.items()))
    said = each or first_line(error)
    rule = f"ray: workers were lost {RETRIES + 1} times, the last time by {said}"
    return f"{rule}; they may want more memory than they have; the same command goes on from the last checkpoint"


def _ray_train() -> Any:
    try:
        import ray.train
        import ray.train.torch
    except ImportError as error:
        raise OptionError(f"engine: ray has no ray.train here ({first_line(error)}); pip install 'mbcal[ray]'") from None
    return ray.train
