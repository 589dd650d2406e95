"""A fit as a job for an engine: folders and settings in, a model in a folder out, on one worker or on several.

::

    store ──▶ every worker reads its users ──▶ Agent.fit, shared by all ──▶ the first worker writes the model
                                                 │ ▲
                                                 ▼ │  resumed after a worker was lost
                                             checkpoints
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mbcal.agents.base import Agent
from mbcal.agents.lookup import agent_class
from mbcal.config import from_dict
from mbcal.data.store import Store
from mbcal.data.store_format import Part
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources, emit
from mbcal.distributed.group import Group
from mbcal.errors import EngineError
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.loop import Curve

SECONDS_BETWEEN_MESSAGES = 0.5
"""Least time between two messages about progress."""


@dataclass(frozen=True)
class FitJob:
    """Fit an agent on a part of a store and write it. Plain data, so that it can be sent to workers."""

    data: Path
    """The store."""
    out: Path
    """Where the model goes. An existing model is replaced."""
    checkpoints: Path
    """A folder that every worker can read and write, like `data` and `out`."""
    agent: str
    """Name of the method, as `agent_class` takes it."""
    config: Mapping[str, Any]
    """The agent's config as a dictionary."""
    warm_start: Path | None = None
    """A model to continue from."""
    training: TrainingConfig | None = None
    """Replaces the config's training settings."""
    part: Part = "train"
    """Part of the store to fit on."""
    device: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Checkpoints are resumed only if they were written with equal settings."""
    provenance: Mapping[str, Any] | None = None
    """Notes for the model's manifest."""
    checkpoint_every: float = 30.0
    """Seconds between checkpoints."""

    def __call__(self, group: Group) -> dict[str, Curve]:
        """Run on one worker of the group; return the losses by network, one entry per epoch."""
        agent = self._create_agent()
        checkpoints = Checkpoints(self.checkpoints, self.settings, self.checkpoint_every)
        sessions = Store.open(self.data).worker_sessions(self.part, group.rank, group.size)
        agent.fit(sessions, training=self.training, progress=_ProgressMessages(), checkpoints=checkpoints, group=group)
        if group.rank == 0:
            agent.save(self.out, overwrite=True, provenance=self.provenance)
            checkpoints.remove()
        return agent.curves

    def _create_agent(self) -> Agent:
        kind = agent_class(self.agent)
        config = from_dict(kind.Config, self.config)
        if self.warm_start is None:
            return kind(config, self.device)
        agent = kind.load(self.warm_start, self.device)
        agent.config = config
        return agent


class _ProgressMessages:
    """A `Progress` that sends messages to the process that runs the job; amounts are summed up between messages."""

    def __init__(self) -> None:
        self._pending, self._last = 0, 0.0

    def phase(self, title: str, total: int | None = None) -> None:
        self._pending, self._last = 0, time.monotonic()
        emit(("phase", title, total))

    def advance(self, amount: int) -> None:
        self._pending += amount
        if time.monotonic() - self._last > SECONDS_BETWEEN_MESSAGES:
            emit(("advance", self._pending))
            self._pending, self._last = 0, time.monotonic()


def run_fit_job(
    engine: Engine, job: FitJob, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT
) -> dict[str, Curve]:
    """Run a fit on all workers of an engine.

    Args:
        engine: The workers.
        job: The fit.
        resources: Cores and GPUs per worker.
        progress: Is told about epochs and sessions.

    Returns:
        Losses by network, one entry per epoch.

    Raises:
        EngineError: If a worker cannot read the store, or this machine cannot read the model.
    """
    engine.require_shared_file(job.data / "manifest.json")

    def on_message(message: tuple[str, Any]) -> None:
        getattr(progress, message[0])(*message[1:])

    curves = engine.run_spmd(job, resources, on_message)
    if not job.out.is_dir():
        problem = f"{job.out}: a worker wrote the model, but this machine cannot see it"
        raise EngineError(f"{problem}; write to storage that all machines mount at the same path")
    return curves
