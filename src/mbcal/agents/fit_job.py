"""A fit as a job for an engine: folders and settings in, a model in a folder out, on one worker or on several.

::

    store ──▶ every worker reads its users ──▶ Agent.fit, shared by all ──▶ the first worker writes the model
                                                 │ ▲
                                                 ▼ │  resumed after a worker was lost
                                             checkpoints
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mbcal.agents.base import Agent
from mbcal.agents.fitting import note_clicks_alone
from mbcal.agents.lookup import agent_class
from mbcal.config import from_dict, to_dict, with_settings
from mbcal.data.store import Store
from mbcal.data.store_format import Part
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources, emit
from mbcal.distributed.engines.local import LocalEngine
from mbcal.distributed.group import Group
from mbcal.errors import EngineError, OptionError
from mbcal.progress import SILENT, Progress
from mbcal.storage.artifacts import MODEL_KIND, Artifact
from mbcal.storage.atomic import AtomicFolder
from mbcal.storage.checkpoints import Checkpoints, checkpoint_folder
from mbcal.training.config import TrainingConfig
from mbcal.training.record import TrainingRecord
from mbcal.types import NO_FIELDS, FeatureKind, SessionFields

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

    def __call__(self, group: Group) -> dict[str, TrainingRecord]:
        """Run on one worker of the group; return how the training of each network went."""
        agent = self._create_agent()
        checkpoints = Checkpoints(self.checkpoints, self.settings, self.checkpoint_every)
        store = Store.open(self.data)
        sessions = store.worker_sessions(self.part, group.rank, group.size)
        agent.fit(sessions, training=self.training, progress=_ProgressMessages(), checkpoints=checkpoints, group=group)
        if group.rank == 0:
            note_clicks_alone(agent, store, self.part)
            agent.save(self.out, overwrite=True, provenance=self.provenance)
            checkpoints.remove()
        return agent.records

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
) -> dict[str, TrainingRecord]:
    """Run a fit on all workers of an engine.

    Args:
        engine: The workers.
        job: The fit.
        resources: Cores and GPUs per worker.
        progress: Notified of epochs and sessions.

    Returns:
        How the training of each network went.

    Raises:
        EngineError: If a worker cannot read the store, or this machine cannot read the model.
    """
    engine.require_shared_file(job.data / "manifest.json")

    def on_message(message: tuple[str, Any]) -> None:
        getattr(progress, message[0])(*message[1:])

    records = engine.run_spmd(job, resources, on_message)
    if not job.out.is_dir():
        problem = f"{job.out}: a worker wrote the model, but this machine cannot see it"
        raise EngineError(f"{problem}; write to storage that all machines mount at the same path")
    return records


@dataclass(frozen=True)
class FittedModel:
    """A model that `fit` wrote."""

    path: Path
    agent: str
    n_sessions: int
    """Sessions it was fitted on."""
    records: dict[str, TrainingRecord]
    """How the training of each network went."""
    choices: Mapping[str, Any]
    """By setting: what was chosen from data, and the evidence; see `Agent.choices`."""
    warnings: tuple[str, ...] = ()
    """What a user should know about the log, in words."""
    features: Mapping[str, FeatureKind] = field(default_factory=dict)
    """Item features it reads, with their kinds."""
    fields: SessionFields = NO_FIELDS
    """Fields of users and steps it reads."""


def fit(
    store: Store,
    out: str | Path,
    agent: str = "mbcal",
    *,
    warm_start: str | Path | None = None,
    device: str = "auto",
    engine: Engine | None = None,
    resources: WorkerResources = ONE_CORE,
    overwrite: bool = False,
    progress: Progress = SILENT,
    on_resume: Callable[[], None] = lambda: None,
    **settings: Any,
) -> FittedModel:
    """Fit an agent on a store's train users and write it to a folder: what `mbcal fit` does.

    Unlike `Agent.fit`, a fit that is stopped, even by `kill -9`, resumes when it is called again with the same arguments,
    and an engine's workers can share it.

    Args:
        store: The data.
        out: The model's folder. Checkpoints lie beside it, in a hidden folder, until the fit is done.
        agent: The method: a built-in name, an installed one, or `path.py:Class`.
        warm_start: A model to continue from. It keeps its networks; only training settings can be given.
        device: `auto`, `cpu` or `cuda`; with an engine, where its workers compute.
        engine: Whose workers fit; by default this process.
        resources: What each worker takes of a machine.
        overwrite: Replace a model that is there.
        progress: Notified of epochs and sessions.
        on_resume: Called if a checkpoint is resumed.
        **settings: Single settings of the agent's config by name: `epochs=5`, `gamma=0.9`, `hidden=64`.

    Returns:
        Where the model is, and its losses.

    Raises:
        OptionError: If the method or a setting is unknown, or a warm start is given settings of networks.
        OutputError: If the folder exists or cannot be written.
        TrainingError: If a loss becomes NaN, or a checkpoint is of other settings.
    """
    out = Path(out)
    with AtomicFolder(out, MODEL_KIND.noun, overwrite):  # refuses an existing folder now instead of after an hour
        pass
    # with an engine the networks are elsewhere; here only the config is checked
    template = _template(store, agent, warm_start, device if engine is None else "cpu", settings)
    provenance = {"data": store.manifest["content_hash"], "source": store.manifest["source"], "part": "train"}
    checkpoint_settings = {"agent": agent, "config": to_dict(template.config), "fits": template.n_fits, **provenance}
    if warm_start is not None:
        checkpoint_settings["from"] = Artifact.open(warm_start, MODEL_KIND).manifest["content_hash"]
    job = FitJob(
        data=store.path.resolve(),
        out=out.resolve(),
        checkpoints=checkpoint_folder(out),
        agent=agent,
        config=to_dict(template.config),
        warm_start=None if warm_start is None else Path(warm_start).resolve(),
        device=device,
        settings=checkpoint_settings,
        provenance=provenance,
    )
    if job.checkpoints.is_dir():
        on_resume()
    records = run_fit_job(engine or LocalEngine(), job, resources, progress)
    artifact = Artifact.open(out, MODEL_KIND)
    manifest, features = artifact.manifest, artifact.catalog.features
    return FittedModel(
        out,
        agent,
        store.n_sessions("train"),
        records,
        choices=manifest["choices"],
        warnings=tuple(manifest["warnings"]),
        features={name: features[name].kind for name in manifest["config"]["net"]["features"] or ()},
        fields=SessionFields.from_record(manifest.get("fields")),
    )


def _template(store: Store, agent: str, warm_start: str | Path | None, device: str, settings: Mapping[str, Any]) -> Agent:
    """An agent with the config of the fit: new, or loaded for a warm start."""
    kind = agent_class(agent)
    if warm_start is None:
        template = kind(device=device, **settings)
        if template.config.net.features is None:
            template.config = with_settings(template.config, {"features": store.agent_features})
        return template
    own = {setting.name for setting in fields(TrainingConfig)}
    for name in settings:
        if name not in own:
            problem = f"{name}: a model keeps its own when it is fitted further"
            raise OptionError(f"{problem}; leave it out, or leave out the model to start from")
    held = str(Artifact.open(warm_start, MODEL_KIND).manifest["agent"])
    if held != kind.name:
        raise OptionError(f"from: {warm_start} holds a {held} agent; choose the agent {held}, or start from nothing")
    loaded = kind.load(warm_start, device)
    loaded.config = with_settings(loaded.config, settings)
    return loaded
