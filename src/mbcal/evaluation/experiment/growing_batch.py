"""Growing Batch-RL: collect with the present policy, update, test, and again.

Round k collects with pi_k (epsilon-greedy where the method explores), updates with one pass over that round's sessions (and
`replay - 1` rounds before), and tests greedily. Nobody has a policy before the first round, so it is collected by chance.
What is collected comes from train users, what is tested from test users; no test session is ever learned from.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch

from mbcal.agents import Agent
from mbcal.agents.persistence import read_agent
from mbcal.environments.candidates import session_candidates
from mbcal.environments.rollout import rollout
from mbcal.errors import ModelError
from mbcal.evaluation.evaluator import evaluate, session_rewards
from mbcal.evaluation.experiment.batch_rl import TEST_SEED
from mbcal.evaluation.experiment.context import CellResult, ExperimentContext, mean_record, summary
from mbcal.metrics import mean_interval
from mbcal.progress import SILENT, Progress
from mbcal.scoring.scorers import RandomScorer
from mbcal.storage import artifacts as bundle
from mbcal.training.random import derive_seed, random_integers
from mbcal.types import SessionTensors

KEEP_EVERY = 15.0


def growing_batch(
    context: ExperimentContext, name: str, seed: int, kept: Path | None = None, progress: Progress = SILENT
) -> CellResult:
    """One cell: the curve, and the reward of every test session after the last round, by judge.

    With a folder `kept`, the state is put there after a round, every `KEEP_EVERY` seconds at most; a run that was killed
    goes on from the last.
    """
    settings = context.settings
    agent = context.agent(name, seed, settings.training(settings.round_epochs))
    rounds: list[dict[str, Any]] = []
    memory: list[SessionTensors] = []
    if kept is not None:
        agent, rounds, memory = _resume(kept, context, agent)
    saved = time.monotonic()
    while len(rounds) < settings.rounds:
        number = len(rounds) + 1
        fresh = collect(context, agent, seed, number, progress)
        memory = [*memory, fresh.without("propensities")][-settings.replay :]
        agent.fit(memory[0] if len(memory) == 1 else SessionTensors.concat(memory), progress=progress)
        title, test = f"round {number}: test", context.test_tensors
        served = rollout(agent, context.users, test, seed=TEST_SEED, title=title, progress=progress)
        earned = mean_interval(session_rewards(served), context.test.user)
        rounds.append({"round": number, "collected": float(session_rewards(fresh).mean()), **mean_record(earned)})
        if kept is not None and time.monotonic() - saved >= KEEP_EVERY:
            _keep(kept, agent, rounds, memory if settings.replay > 1 else [])
            saved = time.monotonic()
    judged, rewards = {}, {}
    for judge, environment in context.judges.items():
        outcome = evaluate(agent, environment, context.test, seed=TEST_SEED, title=f"test by {judge}", progress=progress)
        judged[judge], rewards[judge] = summary(outcome), outcome.rewards
    return CellResult({"judges": judged, "rounds": rounds}, rewards, agent)


def collect(context: ExperimentContext, agent: Agent, seed: int, number: int, progress: Progress = SILENT) -> SessionTensors:
    """The sessions of a round: train users drawn anew, served by the present policy, answered by the first judge."""
    settings, train = context.settings, context.train_tensors
    places = torch.arange(settings.round_sessions, device=train.device)
    begin = train[random_integers(derive_seed(seed, "users of round", number), places, len(train))]
    luck = derive_seed(seed, "luck of round", number)
    progress.phase(f"round {number}: candidates", None)
    offered = session_candidates(begin, luck, sample_from=train)
    known = agent.n_fits > 0
    policy: Any = agent if known else RandomScorer(derive_seed(seed, agent.name) & 0x7FFFFFFF)
    epsilon = 1.0 if not known else settings.epsilon if agent.explores else 0.0
    title = f"round {number}: collect"
    return rollout(
        policy, context.users, begin, epsilon=epsilon, seed=luck, candidates=offered, title=title, progress=progress
    )


def _keep(kept: Path, agent: Agent, rounds: list[dict[str, Any]], memory: list[SessionTensors]) -> None:
    """The agent's folder is renamed last: with it a round is done."""
    number = len(rounds)
    if memory:
        files = {
            f"round-{place}": {name: tensor.cpu().numpy() for name, tensor in sessions.tensors()}
            for place, sessions in enumerate(memory)
        }
        bundle.write_artifact(kept / f"memory-{number:04d}", bundle.CHECKPOINT_KIND, {}, files, overwrite=True)
    agent.save(kept / f"agent-{number:04d}", overwrite=True, provenance={"rounds": rounds})
    for old in (*kept.glob("agent-*"), *kept.glob("memory-*")):
        if not old.name.endswith(f"{number:04d}"):
            shutil.rmtree(old, ignore_errors=True)


def _resume(
    kept: Path, context: ExperimentContext, fresh: Agent
) -> tuple[Agent, list[dict[str, Any]], list[SessionTensors]]:
    for path in sorted(kept.glob("agent-*"), reverse=True):
        try:
            opened = bundle.Artifact.open(path, bundle.MODEL_KIND)
            agent = read_agent(opened, type(fresh), context.device)
        except ModelError:  # torn when the machine died; the round before is whole
            continue
        agent.share_catalog(context.train.catalog)
        memory: list[SessionTensors] = []
        if context.settings.replay > 1:
            number = path.name.removeprefix("agent-")
            said = bundle.Artifact.open(kept / f"memory-{number}", bundle.CHECKPOINT_KIND)
            for name in sorted(said.manifest["files"]):
                arrays = said.arrays(name.removesuffix(".safetensors"))
                memory.append(context.train.like(arrays).tensors(agent.device))
        return agent, list(opened.manifest["provenance"]["rounds"]), memory
    return fresh, [], []
