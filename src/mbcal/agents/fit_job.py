"""A fit as a job for an engine: folders and settings in, a model in a folder out, on one worker or on several.

::

    store ──▶ each worker its share of the users ──▶ Agent.fit, together ──▶ the first worker writes the model
                                                        checkpoints beside it ◀──▶ whoever begins again
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mbcal.agents import Agent, agent_class, load
from mbcal.config import from_dict
from mbcal.data import Store
from mbcal.data.store_format import Part
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources, emit
from mbcal.distributed.group import Group
from mbcal.errors import EngineError
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig

Curves = dict[str, list[dict[str, float]]]
"""Of each network, an entry an epoch."""
SECONDS_BETWEEN_WORDS = 0.5
"""How often a fit tells how far it is."""


@dataclass(frozen=True)
class FitJob:
    """Fit an agent on a part of a store and write it. Plain data, so that it can travel; call it with one's group."""

    data: Path
    out: Path
    """Replaced where it exists: whoever gives the job has seen to it that it may be."""
    checkpoints: Path
    """A folder that every worker sees, as they see the others."""
    agent: str
    config: Mapping[str, Any]
    """The agent's, as a dictionary."""
    warm: Path | None = None
    """A model to go on from."""
    training: TrainingConfig | None = None
    """In place of the config's, this time."""
    part: Part = "train"
    device: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What a checkpoint must have been made with to be gone on from."""
    provenance: Mapping[str, Any] | None = None
    """What the model is to say of its data."""
    every: float = 30.0
    """Seconds between checkpoints."""

    def __call__(self, group: Group) -> Curves:
        """On each worker; returns the curves of losses."""
        made = self._agent()
        kept = Checkpoints(self.checkpoints, self.settings, self.every)
        sessions = Store.open(self.data).worker_sessions(self.part, group.rank, group.size)
        made.fit(sessions, training=self.training, progress=_Saying(), checkpoints=kept, group=group)
        if group.rank == 0:
            made.save(self.out, overwrite=True, provenance=self.provenance)
            kept.remove()
        return made.curves

    def _agent(self) -> Agent:
        kind = agent_class(self.agent)
        made = kind(from_dict(kind.Config, self.config), self.device)
        if self.warm is None:
            return made
        warm = load(self.warm, self.device)
        warm.config = made.config
        return warm


class _Saying:
    """Progress as words to whoever listens to the job, now and then."""

    def __init__(self) -> None:
        self._waiting, self._last = 0, 0.0

    def phase(self, title: str, total: int | None = None) -> None:
        self._waiting, self._last = 0, time.monotonic()
        emit(("phase", title, total))

    def advance(self, amount: int) -> None:
        self._waiting += amount
        if time.monotonic() - self._last > SECONDS_BETWEEN_WORDS:
            emit(("advance", self._waiting))
            self._waiting, self._last = 0, time.monotonic()


def fit_by(engine: Engine, job: FitJob, resources: WorkerResources = ONE_CORE, progress: Progress = SILENT) -> Curves:
    """Have the job done by all the engine's workers; returns the curves of losses."""
    engine.require_shared_file(job.data / "manifest.json")

    def on_message(said: tuple[str, Any]) -> None:
        getattr(progress, said[0])(*said[1:])

    curves = engine.run_spmd(job, resources, on_message)
    if not job.out.is_dir():
        rule = f"{job.out}: a worker wrote the model, but it is not seen from here"
        raise EngineError(f"{rule}; write to storage that all machines mount at the same place")
    return curves
