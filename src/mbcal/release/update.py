"""From the decision log to the next live version, or to a refusal with reasons.

::

    log ──▶ sessions of the live version ──▶ users who teach ──▶ warm-started candidate ─┐    no worse: canary, or published
                                         └─▶ users who judge ──▶ bounds by the log ──────┼─▶  cannot tell: canary
                                             simulator (if any) ──▶ both served, paired ─┘    worse: refused

No user who taught a candidate judges it, in this update or a later one; of a candidate that is given nothing is known. By
default no update makes a candidate live: it becomes the canary, and real users decide. With `no_worse="publish"` it goes
live at once if the log shows that it is no worse than the version it would replace, up to a small tolerance, and no
simulator finds it worse. A crash anywhere leaves the old version live; a version that an operator activates in the meantime
stays live, too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mbcal.agents import load
from mbcal.agents.base import Agent
from mbcal.agents.fit_job import FitJob, run_fit_job
from mbcal.config import to_dict, with_settings
from mbcal.data.store_writer import write_sessions
from mbcal.distributed.engines import ONE_CORE, Engine, WorkerResources
from mbcal.environments.simulator import Simulator
from mbcal.errors import ConflictError, InputError, OptionError
from mbcal.progress import SILENT, Progress
from mbcal.registry.pointer import Pointer
from mbcal.registry.registry import Registry
from mbcal.registry.updates import FOLDER
from mbcal.release.canary import running_trial_problem
from mbcal.release.failures import Failures
from mbcal.release.gate import (
    GateConfig,
    Verdict,
    combined_answer,
    compare_by_simulator,
    other_estimates,
    undecided_reason,
)
from mbcal.release.log_evidence import LogEvidence, choose_judges, judge_by_log
from mbcal.release.log_records import LogFolders, join_versions, newest_part
from mbcal.release.obstacles import unlogged_inputs_problem
from mbcal.release.verdict_files import record_verdict, write_verdict
from mbcal.training.config import TrainingConfig
from mbcal.training.replay import round_passes
from mbcal.types import Sessions

WATCH_SECONDS = 10.0
"""Seconds after which a loop that waits for its next update looks whether there is a canary."""


@dataclass(frozen=True)
class UpdateConfig:
    """How a candidate is learned and judged."""

    versions: int = 10
    """Versions whose decisions teach, the live one included: 1 is the live one alone."""
    decisions: int = 500_000
    """Newest decisions of these versions that teach and judge, at most. All of them are held in memory."""
    epochs: int | None = None
    """Most passes over their sessions; held-out users decide when to stop. None: as many as make 10 million steps, and at
    least one."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Conditions of the gate."""
    seed: int = 0
    """Seed of resamples and simulated noise. Who judges does not depend on it."""

    def __post_init__(self) -> None:
        if self.versions < 1 or self.decisions < 1 or (self.epochs is not None and self.epochs < 1):
            given = f"{self.versions}, {self.decisions} and {self.epochs}"
            raise OptionError(f"versions, decisions and epochs: must be at least 1, got {given}")


def update(
    registry: Registry,
    log: LogFolders,
    config: UpdateConfig | None = None,
    *,
    simulator: str | Path | None = None,
    candidate: Agent | None = None,
    device: str = "auto",
    engine: Engine | None = None,
    resources: WorkerResources = ONE_CORE,
    progress: Progress = SILENT,
    **settings: Any,
) -> Verdict:
    """Learn from what the live version decided; make the result the canary, publish or refuse it, as the gate says.

    Args:
        registry: Where the live version is, and where the candidate goes.
        log: The decision log, or those of all servers.
        config: How to learn and judge.
        simulator: A simulator's folder; if given, a candidate that it finds worse is refused.
        candidate: Judge this agent instead of learning one. It must not have learned from users who judge (`split_judges`).
        device: Where to learn and judge.
        engine: Whose workers learn; by default this process.
        resources: What each worker takes of a machine.
        progress: Notified of epochs and sessions.
        **settings: Single settings of the config, or of its gate, by name: `epochs=5`, `tolerance=0.02`.

    Returns:
        What was found, what became of the candidate, and why.

    Raises:
        InputError: If no version is live.
        ConflictError: If there is a canary, or another version went live or became the canary in the meantime.
        LogError: If the log cannot be read. What it has lost is named in the verdict's `counts.lost`, and the rest is used.
        OutputError: If the registry cannot be written, or the verdict of a candidate that is not refused.
    """
    config = with_settings(config or UpdateConfig(), settings, "update: ")
    pointer = registry.pointer()
    gate, live_name = config.gate, pointer.current
    if live_name is None:
        raise InputError(f"{registry.path}: no version is live; publish one with 'mbcal registry publish'")
    if pointer.canary is not None:
        raise ConflictError(f"{registry.path}: {running_trial_problem(registry, pointer)}")
    live = load(registry.open(live_name).path, device)
    is_grown = candidate is not None and candidate.domain.catalog.extends(live.domain.catalog)
    catalog = candidate.domain.catalog if candidate is not None and is_grown else live.domain.catalog
    earlier = registry.previous_versions()[-(config.versions - 1) :] if config.versions > 1 else []
    known = {*earlier, live_name}
    newest = newest_part(log, known, config.decisions)
    joined = join_versions(newest, known, live.domain, catalog)
    live.extend_catalog(joined.sessions.catalog)
    sessions, verdict = joined.sessions, Verdict(live_name, counts=joined.counts)
    judges = choose_judges(joined, live_name, gate)
    if len(sessions) < gate.min_sessions or not len(judges.judging):
        verdict.reason = (
            f"{len(sessions)} sessions are logged, {len(judges.judging)} of users who judge are of the live version alone; "
            f"{gate.min_sessions} (--min-sessions) and at least one are needed"
        )
        verdict.reason += "" if newest.since is None else "; older ones were left out (--decisions)"
        record_verdict(registry.path / FOLDER, verdict)
        return verdict
    is_given = candidate is not None
    if candidate is None:
        teaching = sessions[judges.teaching]
        candidate = _learn(registry, live_name, teaching, config, device, engine, resources, progress)
    else:
        candidate.extend_catalog(sessions.catalog)
        candidate.domain.require_compatible(sessions, "the candidate")
    verdict.method = candidate.name
    with tempfile.TemporaryDirectory(prefix="mbcal-") as folder:  # as it would be published
        unpublished = Registry(folder)
        versions = (unpublished.open(unpublished.publish(candidate)), registry.open(live_name))
        unlogged_inputs = unlogged_inputs_problem(candidate.domain, live.domain)
        evidence = judge_by_log(versions, joined, judges, newest.records, gate, progress, unlogged_inputs=unlogged_inputs)
    judged, difference = evidence.sessions, evidence.difference
    verdict.checks, verdict.difference = [evidence.check], difference
    verdict.estimates, verdict.void = other_estimates(
        candidate,
        live,
        judged,
        difference,
        choices=evidence.choices,
        epsilon=float(evidence.epsilon[judged.mask].mean()),
        seed=config.seed,
    )
    if simulator is not None:
        users = Simulator.load(simulator, device)
        users.extend_catalog(sessions.catalog)
        verdict.checks.append(
            compare_by_simulator(candidate, live, users, judged, gate, seed=config.seed, progress=progress)
        )
    verdict.answer = combined_answer(verdict.checks)
    verdict.reason = _reason(verdict, evidence, gate, is_given)
    if judges.left_out:
        verdict.reason += f"; of every user at most {judges.cap:,} judged, and {judges.left_out:,} sessions were left out"
    _act(registry, pointer, candidate, verdict, gate)
    return verdict


def _reason(verdict: Verdict, evidence: LogEvidence, gate: GateConfig, is_given: bool) -> str:
    """Why the answer is what it is, in words; `is_given`: the candidate was not learned here."""
    if verdict.answer == "no worse":
        unless = ", unless it learned from users who judge ('mbcal log export --teaching' leaves them out)"
        return f"the log shows that it is no worse{unless if is_given else ''}"
    if verdict.answer == "worse":
        worse = (f"{check.name} {check.detail}" for check in verdict.checks if check.answer == "worse")
        return f"the candidate is worse: {'; '.join(worse)}"
    if evidence.unshown:
        return f"the log cannot tell: {evidence.unshown}"
    return undecided_reason(evidence.difference, gate.tolerance)


def _act(registry: Registry, pointer: Pointer, candidate: Agent, verdict: Verdict, gate: GateConfig) -> None:
    """Make the candidate the canary, publish it, or leave it; fills in action and version, and writes the verdict.

    The verdict is written before the registry names the version, so no version is ever live without its page.

    Raises:
        ConflictError: If the registry is no longer as the pointer says; nothing is written.
        OutputError: If the verdict cannot be written; no version is live or tried without it.
    """

    def record(version: str | None = None) -> None:
        verdict.version = version
        if version is None:
            record_verdict(registry.path / FOLDER, verdict)
        else:
            verdict.page = write_verdict(registry.path / FOLDER, verdict)

    if verdict.answer == "worse":
        record()
        return
    candidate.provenance = {"from": verdict.live}
    metrics = {"checks": [asdict(check) for check in verdict.checks]}
    publish = verdict.answer == "no worse" and gate.no_worse == "publish"
    verdict.action = "published" if publish else "canary"
    try:
        registry.publish(candidate, metrics=metrics, activate=publish, canary=True, expected=pointer, on_written=record)
    except Exception as error:
        if verdict.page is not None:
            verdict.action = "refused"
            verdict.reason += f"; but {verdict.version} is neither live nor the canary: {error}"
            record()
        raise


def loop(
    run_update: Callable[[], Verdict],
    *,
    every: float,
    times: int = 0,
    wait_for_canary: Callable[[], None] = lambda: None,
    on_verdict: Callable[[Verdict], None] = lambda _: None,
    on_error: Callable[[Exception], None] = lambda _: None,
) -> None:
    """Update again and again. An update that fails or is refused changes nothing; the next one tries again.

    Args:
        run_update: One update, such as `functools.partial(update, registry, log, config)`.
        every: Seconds from the beginning of one update to that of the next.
        times: How many; 0 is without end.
        wait_for_canary: Called before and after every update, and again while the loop waits for the next; returns when no
            canary runs, so that its trial is watched and not disturbed.
        on_verdict: Is given every verdict.
        on_error: Is given the error of an update that failed, of whatever kind.

    Raises:
        OptionError: If an option is wrong, since that would fail every time.
        Exception: An error that is no MbcalError, if ten updates in a row end with one (`Failures`).
    """
    done, failures = 0, Failures(on_error)
    while True:
        began = time.monotonic()
        with failures:
            wait_for_canary()
            verdict = run_update()
            with suppress(OSError):  # nobody reads the output any more
                on_verdict(verdict)
        done += 1
        if done == times:
            return
        while (left := every - (time.monotonic() - began)) > 0:
            time.sleep(min(left, WATCH_SECONDS))
            with failures:
                wait_for_canary()


def _learn(
    registry: Registry,
    live_name: str,
    sessions: Sessions,
    config: UpdateConfig,
    device: str,
    engine: Engine | None,
    resources: WorkerResources,
    progress: Progress,
) -> Agent:
    """The live version, fitted on more sessions: here, or by an engine's workers."""
    model = registry.open(live_name).path
    candidate = load(model, device)
    own = candidate.config.training
    training = replace(own, epochs=round_passes(int(sessions.length.sum()), own.epochs, config.epochs))
    if engine is None:
        return candidate.fit(sessions, training=training, progress=progress)
    return _learn_on_engine(engine, resources, registry, candidate, model, sessions, training, device, progress)


def _learn_on_engine(
    engine: Engine,
    resources: WorkerResources,
    registry: Registry,
    candidate: Agent,
    model: Path,
    sessions: Sessions,
    training: TrainingConfig,
    device: str,
    progress: Progress,
) -> Agent:
    """The workers read the sessions from a store beside the versions, and write the model there."""
    with tempfile.TemporaryDirectory(dir=registry.path, prefix=".learning-") as folder:
        here = Path(folder).resolve()
        job = FitJob(
            data=write_sessions(here / "sessions", sessions),
            out=here / "model",
            checkpoints=here / "checkpoint",
            agent=candidate.name,
            config=to_dict(candidate.config),
            warm_start=model.resolve(),
            training=training,
            device=device,
        )
        run_fit_job(engine, job, resources, progress)
        return load(job.out, device)
