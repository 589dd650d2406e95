"""Growing Batch-RL: collect with the present policy, update, test, and again.

Round k collects with pi_k (epsilon-greedy where the method explores), updates with one pass over that round's sessions (and
`replay - 1` rounds before), and tests greedily. Nobody has a policy before the first round, so it is collected by chance.
What is collected comes from train users, what is tested from test users; no test session is ever learned from.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mbcal import bundle
from mbcal.agents import Agent
from mbcal.errors import ModelError
from mbcal.evaluation import evaluate
from mbcal.evaluation.batch_rl import TEST_SEED
from mbcal.evaluation.bench import Bench, Played, mean_record, summary
from mbcal.metrics import mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.randomness import seed_of
from mbcal.rollout import candidates_of, rollout
from mbcal.scorers import ChanceScorer
from mbcal.types import Sessions

_REPLAYED = ("items", "behaviours", "length", "user", "history_items", "history_behaviours", "history_length", "candidates")


def growing_batch(bench: Bench, name: str, seed: int, kept: Path | None = None, progress: Progress = SILENT) -> Played:
    """One cell: the curve, and the reward of every test session after the last round, by judge.

    With a folder `kept`, each finished round is on disk before the next begins; a run that was killed goes on from there.
    """
    settings = bench.settings
    agent = bench.agent(name, seed, settings.round_epochs)
    rounds: list[dict[str, Any]] = []
    memory: list[Sessions] = []
    if kept is not None:
        agent, rounds, memory = _resume(kept, bench, agent)
    users = next(iter(bench.judges.values()))
    while len(rounds) < settings.rounds:
        number = len(rounds) + 1
        fresh = collect(bench, agent, seed, number, progress)
        memory = [*memory, dataclasses.replace(fresh, propensities=None)][-settings.replay :]
        agent.fit(Sessions.concat(memory), progress=progress)
        outcome = evaluate(agent, users, bench.test, seed=TEST_SEED, title=f"round {number}: test", progress=progress)
        earned = mean_interval(fresh.rewards.sum(1), fresh.user)
        rounds.append({"round": number, "collected": earned.mean, **mean_record(outcome.mean)})
        if kept is not None:
            _keep(kept, agent, rounds, memory if settings.replay > 1 else [])
    judged, rewards = {}, {}
    for judge, environment in bench.judges.items():
        outcome = evaluate(agent, environment, bench.test, seed=TEST_SEED, title=f"test by {judge}", progress=progress)
        judged[judge], rewards[judge] = summary(outcome), outcome.rewards
    return Played({"judges": judged, "rounds": rounds}, rewards, agent)


def collect(bench: Bench, agent: Agent, seed: int, number: int, progress: Progress = SILENT) -> Sessions:
    """The sessions of a round: train users drawn anew, served by the present policy, answered by the first judge."""
    settings, name = bench.settings, agent.name
    draw = np.random.default_rng(seed_of(seed, "users of round", number))
    begin = bench.train[draw.integers(0, len(bench.train), settings.round_sessions)]
    luck = seed_of(seed, "luck of round", number)
    offered = candidates_of(begin, luck, others_from=bench.train)
    known = agent.fits > 0
    policy: Any = agent if known else ChanceScorer(seed_of(seed, name) & 0x7FFFFFFF)
    epsilon = 1.0 if not known else settings.epsilon if agent.explores else 0.0
    environment = next(iter(bench.judges.values()))
    title = f"round {number}: collect"
    return rollout(
        policy, environment, begin, epsilon=epsilon, seed=luck, candidates=offered, title=title, progress=progress
    )


def _keep(kept: Path, agent: Agent, rounds: list[dict[str, Any]], memory: list[Sessions]) -> None:
    """The agent's folder is renamed last: with it a round is done."""
    number = len(rounds)
    if memory:
        files = {
            f"round-{place}": {name: array for name, array in sessions.arrays() if name in _REPLAYED}
            for place, sessions in enumerate(memory)
        }
        bundle.write_bundle(kept / f"memory-{number:04d}", bundle.CHECKPOINT, {}, files, overwrite=True)
    agent.save(kept / f"agent-{number:04d}", overwrite=True, about={"rounds": rounds})
    for old in (*kept.glob("agent-*"), *kept.glob("memory-*")):
        if not old.name.endswith(f"{number:04d}"):
            shutil.rmtree(old, ignore_errors=True)


def _resume(kept: Path, bench: Bench, fresh: Agent) -> tuple[Agent, list[dict[str, Any]], list[Sessions]]:
    for path in sorted(kept.glob("agent-*"), reverse=True):
        try:
            opened = bundle.Bundle.open(path, bundle.AGENT)
            agent = type(fresh).read(opened, bench.device)
        except ModelError:  # torn when the machine died; the round before is whole
            continue
        agent.adopt(bench.train.catalog)
        memory: list[Sessions] = []
        if bench.settings.replay > 1:
            number = path.name.removeprefix("agent-")
            said = bundle.Bundle.open(kept / f"memory-{number}", bundle.CHECKPOINT)
            for name in sorted(said.manifest["files"]):
                arrays = said.arrays(name.removesuffix(".safetensors"))
                memory.append(bench.train.like(arrays))
        return agent, list(opened.manifest["about"]["rounds"]), memory
    return fresh, [], []
