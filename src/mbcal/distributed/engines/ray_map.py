"""Independent tasks on a Ray cluster: `map_unordered` of the Ray engine.

Ray places tasks, transfers their results and reports lost workers. This module keeps at most one task per worker in flight,
runs the tasks of lost workers again, raises what a job raised, and gives up after a bounded time without a worker::

    waiting ──submit──> running ──result──> yielded
       ^                   │
       └───worker lost─────┘        at most MAX_RETRIES times per task
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

from mbcal.distributed.engines import OnMessage, Result, Task, WorkerResources, messages_to
from mbcal.distributed.engines.ray_runtime import (
    MAX_RETRIES,
    POLL_INTERVAL,
    cluster_failed,
    describe_cluster,
    describe_resources,
    first_line,
    ray_module,
)
from mbcal.errors import EngineError

CANCEL_TIMEOUT = 10.0
"""Seconds for cancelled tasks to end."""


class TaskPool(Generic[Task, Result]):
    """The tasks of one call of `map_unordered`.

    Args:
        job: A function of a module.
        tasks: Its arguments.
        workers: Tasks that run at a time, at most.
        resources: What each task needs.
        mailbox: A `Mailbox` actor.
        call: Number of this call, which separates its messages from those of other calls.
        start_timeout: Seconds to wait while no task is running on a worker.
        on_message: See `Engine.map_unordered`.
    """

    def __init__(
        self,
        job: Callable[[Task], Result],
        tasks: Sequence[Task],
        workers: int,
        resources: WorkerResources,
        mailbox: Any,
        call: int,
        start_timeout: float,
        on_message: OnMessage | None,
    ) -> None:
        self.job, self.tasks, self.workers, self.resources = job, tasks, workers, resources
        self.mailbox, self.call, self.start_timeout, self.on_message = mailbox, call, start_timeout, on_message
        options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_retries": 0}
        self._remote = ray_module().remote(_run_task).options(**options)
        self._waiting = list(range(len(tasks)))[::-1]
        self._losses = [0] * len(tasks)
        self._running: dict[Any, int] = {}  # Ray's reference to the result -> task number
        self._started: set[int] = set()  # running, and known to have a worker
        self._last_progress = time.monotonic()

    def run(self) -> Iterator[tuple[int, Result]]:
        """Yield each task's number and result as it finishes; see `Engine.map_unordered`."""
        ray = ray_module()
        try:
            while self._waiting or self._running:
                self._submit()
                done, _ = ray.wait(list(self._running), timeout=POLL_INTERVAL)
                self._deliver_messages()
                yield from self._take_results(done)
                self._require_progress(bool(done))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, Exception) and not isinstance(cause, ray.exceptions.RayError):
                raise cause from error  # raised by the job
            raise cluster_failed(error) from error
        finally:
            _cancel(list(self._running))

    def _submit(self) -> None:
        while self._waiting and len(self._running) < self.workers:
            number = self._waiting.pop()
            reference = self._remote.remote(self.job, self.tasks[number], self.mailbox, self.call, number, os.getcwd())
            self._running[reference] = number

    def _deliver_messages(self) -> None:
        messages = ray_module().get(self.mailbox.take.remote(self.call), timeout=self.start_timeout)
        for number, message in messages:
            if number in self._running.values():
                self._started.add(number)
                if self.on_message is not None and message is not None:
                    self.on_message(number, message)

    def _take_results(self, done: Sequence[Any]) -> Iterator[tuple[int, Result]]:
        """Yield the results of finished tasks; those that lost their worker wait again."""
        for reference in done:
            number = self._running.pop(reference)
            self._started.discard(number)
            try:
                result = ray_module().get(reference)
            except _lost_worker_errors() as error:
                self._losses[number] += 1
                if self._losses[number] > MAX_RETRIES:
                    problem = f"ray: task {number} lost its worker {MAX_RETRIES + 1} times ({first_line(error)})"
                    advice = "it may need more memory than a worker has: take fewer or larger workers, and start again"
                    raise EngineError(f"{problem}; {advice}") from error
                self._waiting.append(number)
                continue
            yield number, result

    def _require_progress(self, finished: bool) -> None:
        """Raise EngineError if no task has had a worker for `start_timeout` seconds."""
        if finished or self._started or not self._running:
            self._last_progress = time.monotonic()
        elif time.monotonic() - self._last_progress > self.start_timeout:
            problem = (
                f"ray: no free worker in {self.start_timeout:g} seconds for a task of {describe_resources(self.resources)}"
            )
            advice = "ask for less, add nodes, or start again when it is free"
            raise EngineError(f"{problem}; {describe_cluster()}; {advice}")


class Mailbox:
    """An actor that keeps the messages of tasks until the driver takes them."""

    def __init__(self) -> None:
        self._messages: dict[int, list[tuple[int, Any]]] = {}

    def put(self, call: int, number: int, message: Any) -> None:
        """Keep a message of a task; None means that the task has started."""
        self._messages.setdefault(call, []).append((number, message))

    def take(self, call: int) -> list[tuple[int, Any]]:
        """Return and forget the messages of a call: pairs of task number and message."""
        return self._messages.pop(call, [])


def _run_task(job: Callable[[Any], Any], task: Any, mailbox: Any, call: int, number: int, folder: str) -> Any:
    """Run one task on a worker, in the driver's working folder where it exists, so that relative paths mean the same."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
    mailbox.put.remote(call, number, None)
    with messages_to(lambda message: mailbox.put.remote(call, number, message)):
        return job(task)


def _cancel(references: list[Any]) -> None:
    ray = ray_module()
    if not references or not ray.is_initialized():
        return
    with contextlib.suppress(ray.exceptions.RayError):
        for reference in references:
            ray.cancel(reference, force=True)
        ray.wait(references, num_returns=len(references), timeout=CANCEL_TIMEOUT)


def _lost_worker_errors() -> tuple[type[Exception], ...]:
    """What Ray raises when a worker, its machine or its result is lost through no fault of the job."""
    exceptions = ray_module().exceptions
    return (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
    )
