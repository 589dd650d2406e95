"""A fit as a job for an engine: folders and settings in, a model in a folder out, on one worker or on several.

::

    store ──▶ each worker its part of the users ──▶ Agent.fit, shared ──▶ the first worker writes the model
                                                       checkpoints beside it ◀──▶ resumed after a lost worker
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
"""How often a fit reports its progress."""


@dataclass(frozen=True)
class FitJob:
    """Fit an agent on a part of a store and write it. Plain data, so that it can be sent to workers."""

    data: Path
    out: Path
    """Where the model goes. An existing model is replaced."""
    checkpoints: Path
    """A folder that every worker can read and write, like `data` and `out`."""
    agent: str
    config: Mapping[str, Any]
    """The agent's config as a dictionary."""
    warm_start: Path | None = None
    """A model to continue from."""
    training: TrainingConfig | None = None
    """Replaces the config's training settings."""
    part: Part = "train"
    device: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What checkpoints must have been made with to be resumed."""
    provenance: Mapping[str, Any] | None = None
    """Notes for the model's manifest."""
    checkpoint_every: float = 30.0
    """Seconds between checkpoints."""

    def __call__(self, group: Group) -> dict[str, Curve]:
        """Run on one worker of the group; returns the losses by network."""
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
    """Progress as messages to whoever runs the job, added up in between."""

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
        engine: Where.
        job: What.
        resources: What each worker takes of a machine.
        progress: Is told about epochs and sessions.

    Returns:
        Losses by network, one entry per epoch.

    Raises:
        EngineError: If a worker cannot see the store, or this machine cannot see the model.
    """
    engine.require_shared_file(job.data / "manifest.json")

    def on_message(message: tuple[str, Any]) -> None:
        getattr(progress, message[0])(*message[1:])

    curves = engine.run_spmd(job, resources, on_message)
    if not job.out.is_dir():
        problem = f"{job.out}: a worker wrote the model, but it cannot be seen from here"
        raise EngineError(f"{problem}; write to storage that all machines mount at the same place")
    return curves
