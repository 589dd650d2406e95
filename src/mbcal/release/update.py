"""From the decision log to the next version, or to a refusal with reasons.

::

    log ──▶ sessions of the live version ──▶ users to learn from ──▶ warm-started candidate ─┐
                                         └─▶ users to judge by  ──▶ off-policy estimates ────┼─▶ published, or refused
                                             simulator (if any) ──▶ both served, paired ─────┘

Nobody who taught the candidate judges it. It goes live only if every check says that it is no worse than the version it
would replace, up to a small tolerance; a crash anywhere leaves the old version live.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mbcal.agents import Agent, load
from mbcal.agents.fit_job import FitJob, run_fit_job
from mbcal.config import to_dict
from mbcal.data.store_writer import write_sessions
from mbcal.decision_log.join import join_sessions
from mbcal.decision_log.reader import read_log
from mbcal.decision_log.records import Feedback, Record
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources
from mbcal.environments.simulator import Simulator
from mbcal.errors import InputError
from mbcal.progress import SILENT, Progress
from mbcal.registry.registry import Registry
from mbcal.release.gate import Check, GateConfig, Verdict, _judge_by_log, _judge_by_simulator
from mbcal.storage.atomic import write_atomic
from mbcal.training.config import TrainingConfig
from mbcal.training.holdout import split_held_out_users
from mbcal.types import Sessions


def update(
    registry: Registry,
    log: str | Path | Sequence[str | Path],
    *,
    simulator: str | Path | None = None,
    replay: int = 1,
    epochs: int = 1,
    epsilon: float = 0.1,
    gate: GateConfig | None = None,
    seed: int = 0,
    device: str = "auto",
    candidate: Agent | None = None,
    engine: Engine | None = None,
    resources: WorkerResources = ONE_CORE,
    progress: Progress = SILENT,
) -> Verdict:
    """Learn from what the live version (and `replay` - 1 before it) decided, and publish if the gate lets it through.

    `log` is one folder, or those of all servers. With a `candidate` nothing is learned: it is judged as it is. With an
    `engine` its workers learn, each with a `share` of a machine; else this process does.
    """
    gate = gate or GateConfig()
    live = registry.current()
    if live is None:
        raise InputError(f"{registry.path}: no version is live; publish one with 'mbcal registry publish'")
    now = load(registry.open(live).path, device)
    domain, verdict = now.domain, Verdict(live)
    taken = {*registry.previous_versions()[-(replay - 1) :], live} if replay > 1 else {live}
    joined = join_sessions(
        _of_versions(_records(log), taken), domain.catalog, domain.behaviours, horizon=domain.horizon, history=domain.history
    )
    verdict.counts, sessions = joined.counts, joined.sessions
    enough = len(sessions) >= gate.sessions
    verdict.checks.append(Check("sessions", enough, f"{len(sessions)} logged, {gate.sessions} needed"))
    if not enough:
        return verdict
    teach, judge = split_held_out_users(sessions.user, gate.judges, seed)
    if candidate is None:
        candidate = load(registry.open(live).path, device)
        how = replace(candidate.config.training, epochs=epochs, validation=0.0)
        if engine is None:
            candidate.fit(sessions[teach], training=how, progress=progress)
        else:
            candidate = _learned(engine, resources, registry, live, candidate, sessions[teach], how, device, progress)
    else:
        candidate.domain.require_compatible(sessions, "the candidate")
    _judge_by_log(verdict, candidate, now, sessions[judge], gate, epsilon, seed, simulator is not None, progress)
    if simulator is not None:
        _judge_by_simulator(
            verdict, candidate, now, Simulator.load(simulator, device), sessions[judge], gate, seed, progress
        )
    if not verdict.reasons:
        verdict.published = _publish(registry, candidate, verdict)
    return verdict


def _learned(
    engine: Engine,
    resources: WorkerResources,
    registry: Registry,
    live: str,
    candidate: Agent,
    sessions: Sessions,
    how: TrainingConfig,
    device: str,
    progress: Progress,
) -> Agent:
    """The candidate after a fit by an engine's workers, who read the sessions from a store beside the versions."""
    with tempfile.TemporaryDirectory(dir=registry.path, prefix=".learning-") as folder:
        here = Path(folder).resolve()
        job = FitJob(
            data=write_sessions(here / "sessions", sessions),
            out=here / "model",
            checkpoints=here / "checkpoint",
            agent=candidate.name,
            config=to_dict(candidate.config),
            warm_start=registry.open(live).path.resolve(),
            training=how,
            device=device,
        )
        run_fit_job(engine, job, resources, progress)
        return load(job.out, device)


def _records(log: str | Path | Sequence[str | Path]) -> Iterator[Record]:
    return read_log(log) if isinstance(log, str | Path) else chain.from_iterable(map(read_log, log))


def _of_versions(records: Iterable[Record], versions: set[str]) -> Iterator[Record]:
    return (record for record in records if isinstance(record, Feedback) or record.version in versions)


def _publish(registry: Registry, candidate: Agent, verdict: Verdict) -> str:
    candidate.provenance = {"from": verdict.live}
    return registry.publish(candidate, metrics={"checks": [asdict(check) for check in verdict.checks]})


def write_verdict(folder: str | Path, verdict: Verdict) -> Path:
    """The reasons for machines and for people: `NNNNNN.json` and `NNNNNN.html`, numbered on."""
    from mbcal.report.update_page import verdict_page

    folder = Path(folder)
    number = 1 + max((int(path.stem) for path in folder.glob("[0-9]*.json")), default=0)
    said: dict[str, Any] = {**asdict(verdict), "reasons": verdict.reasons}
    write_atomic(folder / f"{number:06d}.json", (json.dumps(said, indent=2, allow_nan=False, default=float) + "\n").encode())
    page = folder / f"{number:06d}.html"
    write_atomic(page, verdict_page(said).encode())
    return page
