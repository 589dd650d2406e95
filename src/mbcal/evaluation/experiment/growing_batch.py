"""Growing Batch-RL: collect with the present policy, update, test, and again.

::

    round k:  train users ──▶ served by the policy of round k - 1 ──▶ update ──▶ test users, served greedily
              (epsilon-greedy if the method explores)             (these sessions and earlier rounds: training/replay.py)

In a Gymnasium world, new episodes are played in place of train and test users. Before the first round there is no policy, so
round 1 is collected by a random one. No test session is ever learned from.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mbcal.agents import Agent
from mbcal.agents.growth import share_catalog
from mbcal.agents.persistence import read_agent
from mbcal.environments.rollout import Policy
from mbcal.errors import ModelError
from mbcal.evaluation.evaluator import session_rewards
from mbcal.evaluation.experiment.context import CellResult, ExperimentContext, mean_record, summarise
from mbcal.evaluation.experiment.judging import collect_round, judge_policy, judge_reward
from mbcal.progress import SILENT, Progress
from mbcal.scoring.scorers import RandomScorer
from mbcal.storage.artifacts import CHECKPOINT_KIND, MODEL_KIND, Artifact, write_artifact
from mbcal.training.random import derive_seed
from mbcal.training.replay import replayed_rounds, round_passes, round_shrink
from mbcal.types import SessionTensors

CHECKPOINT_EVERY = 15.0
"""Seconds between checkpoints, at least; they are written between rounds."""


def growing_batch(
    context: ExperimentContext, name: str, seed: int, checkpoints: Path | None = None, progress: Progress = SILENT
) -> CellResult:
    """Run one Growing Batch-RL cell.

    Args:
        context: What the cells share.
        name: The agent's name (see `agent_config`).
        seed: The agent's seed.
        checkpoints: An existing folder where the state after a round is saved, and resumed from.
        progress: Notified of epochs and sessions.

    Returns:
        The reward of every round, and after the last round the rewards by judge.
    """
    settings = context.settings
    agent = context.agent(name, seed)
    rounds: list[dict[str, Any]] = []
    memory: list[SessionTensors] = []
    if checkpoints is not None:
        agent, rounds, memory = _resume(checkpoints, context, agent)
    saved_at = time.monotonic()
    while len(rounds) < settings.rounds:
        number = len(rounds) + 1
        memory = run_round(context, agent, memory, seed, number, progress)
        reward = judge_reward(context, agent, title=f"round {number}: test", progress=progress)
        rounds.append({"round": number, "collected": float(session_rewards(memory[-1]).mean()), **mean_record(reward)})
        if checkpoints is not None and time.monotonic() - saved_at >= CHECKPOINT_EVERY:
            _save(checkpoints, agent, rounds, memory if settings.replay != 1 else [])
            saved_at = time.monotonic()
    judged, rewards = {}, {}
    for judge in context.judges:
        result = judge_policy(context, agent, judge, progress=progress)
        judged[judge], rewards[judge] = summarise(result), result.rewards
    return CellResult({"judges": judged, "rounds": rounds, "choices": agent.choices}, rewards, agent)


def run_round(
    context: ExperimentContext,
    agent: Agent,
    memory: Sequence[SessionTensors],
    seed: int,
    number: int,
    progress: Progress = SILENT,
) -> list[SessionTensors]:
    """Collect a round, and update the agent.

    Args:
        context: What the cells share.
        agent: The present policy, which learns.
        memory: The sessions of earlier rounds that are kept, oldest first.
        seed: Seed of the users and the noise of the round.
        number: The round, counted from 1.
        progress: Notified of epochs and sessions.

    Returns:
        The sessions that were learned from, by round: those to keep. The new round is the last.
    """
    settings = context.settings
    memory = [*memory, collect(context, agent, seed, number, progress).without("propensities")]
    memory = memory[-replayed_rounds([_count_steps(sessions) for sessions in memory], settings.replay) :]
    passes = round_passes(sum(map(_count_steps, memory)), settings.training.epochs, settings.round_epochs)
    training = replace(settings.training, epochs=passes, shrink=round_shrink(len(memory), number, settings.shrink))
    agent.fit(memory[0] if len(memory) == 1 else SessionTensors.concat(memory), training=training, progress=progress)
    return memory


def _count_steps(sessions: SessionTensors) -> int:
    return int(sessions.mask.sum())


def collect(context: ExperimentContext, agent: Agent, seed: int, number: int, progress: Progress = SILENT) -> SessionTensors:
    """Collect the sessions of a round.

    Args:
        context: What the cells share.
        agent: The present policy; before its first fit, choices are random.
        seed: Seed of the users and the noise of the round.
        number: The round, counted from 1.
        progress: Notified of sessions.

    Returns:
        `round_sessions` sessions; see `collect_round`.
    """
    policy: Policy = agent
    epsilon = context.settings.epsilon if agent.explores else 0.0
    if not agent.n_fits:
        policy, epsilon = RandomScorer(derive_seed(seed, agent.name) & 0x7FFFFFFF), 1.0
    return collect_round(context, policy, epsilon, seed, number, progress)


def _save(checkpoints: Path, agent: Agent, rounds: list[dict[str, Any]], memory: list[SessionTensors]) -> None:
    """Save the state after a round. The agent's folder is written last: a checkpoint is complete if it has one."""
    number = len(rounds)
    if memory:
        files = {
            f"round-{index}": {name: tensor.cpu().numpy() for name, tensor in sessions.tensors()}
            for index, sessions in enumerate(memory)
        }
        write_artifact(checkpoints / f"memory-{number:04d}", CHECKPOINT_KIND, {}, files, overwrite=True)
    agent.save(checkpoints / f"agent-{number:04d}", overwrite=True, provenance={"rounds": rounds})
    for folder in (*checkpoints.glob("agent-*"), *checkpoints.glob("memory-*")):
        if not folder.name.endswith(f"{number:04d}"):
            shutil.rmtree(folder, ignore_errors=True)


def _resume(
    checkpoints: Path, context: ExperimentContext, fresh: Agent
) -> tuple[Agent, list[dict[str, Any]], list[SessionTensors]]:
    """Agent, rounds and memory of the latest complete checkpoint; the fresh agent if there is none."""
    for path in sorted(checkpoints.glob("agent-*"), reverse=True):
        try:
            artifact = Artifact.open(path, MODEL_KIND)
            agent = read_agent(artifact, type(fresh), context.device)
        except ModelError:  # incomplete, because the machine died; the checkpoint before it is complete
            continue
        share_catalog(agent, context.train.catalog)
        memory: list[SessionTensors] = []
        if context.settings.replay != 1:
            number = path.name.removeprefix("agent-")
            saved = Artifact.open(checkpoints / f"memory-{number}", CHECKPOINT_KIND)
            rounds = [saved.arrays(f"round-{index}") for index in range(len(saved.manifest["files"]))]
            memory = [context.train.like(arrays).tensors(agent.device) for arrays in rounds]
        return agent, list(artifact.manifest["provenance"]["rounds"]), memory
    return fresh, [], []
