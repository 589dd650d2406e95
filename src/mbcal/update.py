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
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mbcal.agents import Agent, load
from mbcal.config import to_dict
from mbcal.data.store import write_sessions
from mbcal.engines import ONE_CORE, Engine, Share
from mbcal.errors import InputError, OptionError
from mbcal.evaluation.intervals import Estimate
from mbcal.evaluation.offline import Nuisance, judge_offline
from mbcal.fitting import FitJob, fit_by
from mbcal.folder import write_whole
from mbcal.metrics import mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.registry import Registry
from mbcal.rollout import rollout
from mbcal.serving.archive import read
from mbcal.serving.records import Feedback, Record
from mbcal.serving.sessions import JoinCounts, join
from mbcal.simulator import Simulator
from mbcal.training import Training, split_users
from mbcal.types import Sessions

JUDGED_BY = "dr"
"""The estimator that decides; the others are told."""


@dataclass(frozen=True)
class Gate:
    """When a candidate may go live."""

    sessions: int = 200
    """Logged sessions there must be."""
    judges: float = 0.3
    """Share of users who judge instead of teaching."""
    effective: float = 20.0
    """Effective sessions (Kish) there must be for the log to judge: with fewer, long sessions or a policy far from the live
    one, only a simulator can."""
    bias: float = 0.3
    """How far from 1 the mean weight may be: further, and the sessions that matter are not in the log."""
    tolerance: float = 0.01
    """How much worse a lower bound may be, as a share of what sessions earned: no log is long enough to prove equality."""
    clip: float = 20.0
    """Weights of sessions are cut off here."""
    values: Nuisance = "means"
    """The model within the doubly robust estimate: `means` is quick, `fitted` learns one."""

    def __post_init__(self) -> None:
        if not 0 < self.judges < 1 or not 0 <= self.tolerance < 1:
            raise OptionError("gate: judges must be in (0, 1), tolerance in [0, 1)")


@dataclass(frozen=True)
class Check:
    """One reason to publish, or not to."""

    name: str
    passed: bool
    said: str


@dataclass
class Verdict:
    """What became of an update."""

    live: str
    """The version the candidate would replace."""
    published: str | None = None
    checks: list[Check] = field(default_factory=list)
    estimates: list[Estimate] = field(default_factory=list)
    counts: JoinCounts | None = None

    @property
    def reasons(self) -> list[str]:
        """Why not."""
        return [f"{check.name}: {check.said}" for check in self.checks if not check.passed]


def update(
    registry: Registry,
    log: str | Path | Sequence[str | Path],
    *,
    simulator: str | Path | None = None,
    replay: int = 1,
    epochs: int = 1,
    epsilon: float = 0.1,
    gate: Gate | None = None,
    seed: int = 0,
    device: str = "auto",
    candidate: Agent | None = None,
    engine: Engine | None = None,
    share: Share = ONE_CORE,
    progress: Progress = SILENT,
) -> Verdict:
    """Learn from what the live version (and `replay` - 1 before it) decided, and publish if the gate lets it through.

    `log` is one folder, or those of all servers. With a `candidate` nothing is learned: it is judged as it is. With an
    `engine` its workers learn, each with a `share` of a machine; else this process does.
    """
    gate = gate or Gate()
    live = registry.current()
    if live is None:
        raise InputError(f"{registry.path}: no version is live; publish one with 'mbcal registry publish'")
    now = load(registry.open(live).path, device)
    domain, verdict = now.domain, Verdict(live)
    taken = {*registry.before()[-(replay - 1) :], live} if replay > 1 else {live}
    joined = join(
        _of_versions(_records(log), taken), domain.catalog, domain.behaviours, horizon=domain.horizon, history=domain.history
    )
    verdict.counts, sessions = joined.counts, joined.sessions
    enough = len(sessions) >= gate.sessions
    verdict.checks.append(Check("sessions", enough, f"{len(sessions)} logged, {gate.sessions} needed"))
    if not enough:
        return verdict
    teach, judge = split_users(sessions.user, gate.judges, seed)
    if candidate is None:
        candidate = load(registry.open(live).path, device)
        how = replace(candidate.config.training, epochs=epochs, validation=0.0)
        if engine is None:
            candidate.fit(sessions[teach], training=how, progress=progress)
        else:
            candidate = _learned(engine, share, registry, live, candidate, sessions[teach], how, device, progress)
    else:
        candidate.domain.require(sessions, "the candidate")
    _judge_by_log(verdict, candidate, now, sessions[judge], gate, epsilon, seed, simulator is not None, progress)
    if simulator is not None:
        _judge_by_simulator(
            verdict, candidate, now, Simulator.load(simulator, device), sessions[judge], gate, seed, progress
        )
    if not verdict.reasons:
        verdict.published = _publish(registry, candidate, verdict, live)
    return verdict


def _learned(
    engine: Engine,
    share: Share,
    registry: Registry,
    live: str,
    candidate: Agent,
    sessions: Sessions,
    how: Training,
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
            warm=registry.open(live).path.resolve(),
            training=how,
            device=device,
        )
        fit_by(engine, job, share, progress)
        return load(job.out, device)


def _records(log: str | Path | Sequence[str | Path]) -> Iterator[Record]:
    return read(log) if isinstance(log, str | Path) else chain.from_iterable(map(read, log))


def _of_versions(records: Iterable[Record], versions: set[str]) -> Iterator[Record]:
    return (record for record in records if isinstance(record, Feedback) or record.version in versions)


def _judge_by_log(
    verdict: Verdict,
    candidate: Agent,
    now: Agent,
    sessions: Sessions,
    gate: Gate,
    epsilon: float,
    seed: int,
    others: bool,
    progress: Progress,
) -> None:
    """Where too few logged sessions speak for the candidate, their estimates decide nothing, and `others` must."""
    found = judge_offline(
        candidate, now, sessions, epsilon=epsilon, seed=seed, clip=gate.clip, values=gate.values, progress=progress
    )
    verdict.estimates = found
    least = -gate.tolerance * abs(float(sessions.rewards.sum(1).mean()))
    gap = next(each for each in found if (each.of, each.name) == ("difference", JUDGED_BY))
    said = f"{gap.ess:.0f} effective sessions, {gate.effective:.0f} needed; mean weight {gap.weight:.2f}, near 1 needed"
    if gap.ess < gate.effective or abs(gap.weight - 1) > gate.bias:
        said += " for the log to judge" + (
            "; the simulator alone decides" if others else "; explore more, or give a simulator"
        )
        verdict.checks.append(Check("overlap", others, said))
        return
    verdict.checks.append(Check("overlap", True, said))
    said = f"{gap.value:+.3f} a session [{gap.low:+.3f}, {gap.high:+.3f}], at least {least:+.3f} needed"
    verdict.checks.append(Check("off-policy", gap.low >= least, said))


def _judge_by_simulator(
    verdict: Verdict,
    candidate: Agent,
    now: Agent,
    users: Simulator,
    sessions: Sessions,
    gate: Gate,
    seed: int,
    progress: Progress,
) -> None:
    """Both serve the same users in the same luck. Numbers of logged users are not those of the simulator's own."""
    sessions.require_like(users.catalog, users.behaviours, "the simulator")
    earned = [
        rollout(policy, users, sessions, seed=seed, title=title, progress=progress).rewards.sum(1)
        for policy, title in ((candidate, "simulated users: candidate"), (now, "simulated users: live"))
    ]
    gap = mean_interval(earned[0] - earned[1], sessions.user)
    least = -gate.tolerance * abs(float(np.mean(earned[1])))
    said = f"{gap.mean:+.3f} a session [{gap.low:+.3f}, {gap.high:+.3f}], at least {least:+.3f} needed"
    verdict.checks.append(Check("simulator", gap.low >= least, said))


def _publish(registry: Registry, candidate: Agent, verdict: Verdict, live: str) -> str:
    with tempfile.TemporaryDirectory(dir=registry.path, prefix=".candidate-") as folder:
        path = candidate.save(Path(folder) / "model", about={"from": live})
        metrics = {"checks": [asdict(check) for check in verdict.checks]}
        return registry.publish(path, metrics=metrics, kind=type(candidate))


def write_verdict(folder: str | Path, verdict: Verdict) -> Path:
    """The reasons for machines and for people: `NNNNNN.json` and `NNNNNN.html`, numbered on."""
    from mbcal.report.verdict import verdict_page

    folder = Path(folder)
    number = 1 + max((int(path.stem) for path in folder.glob("[0-9]*.json")), default=0)
    said: dict[str, Any] = {**asdict(verdict), "reasons": verdict.reasons}
    write_whole(folder / f"{number:06d}.json", (json.dumps(said, indent=2, allow_nan=False, default=float) + "\n").encode())
    page = folder / f"{number:06d}.html"
    write_whole(page, verdict_page(said).encode())
    return page
