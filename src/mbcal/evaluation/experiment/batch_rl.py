"""Batch-RL: learn from the static log, then be tested by users; no other interaction."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from mbcal.environments.newsfeed import oracle
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.experiment.context import CellResult, ExperimentContext, summary
from mbcal.evaluation.variance import analyse_variance
from mbcal.evaluation.xray import xray
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints

TEST_SEED = 1_000_003
"""Of the luck in every test: the same for all methods, seeds and rounds, so that they can be compared pair by pair."""


def batch_rl(
    context: ExperimentContext, name: str, seed: int, progress: Progress = SILENT, checkpoints: Checkpoints | None = None
) -> CellResult:
    """One cell."""
    settings = context.settings
    if name == oracle.NAME:
        return _oracle(context, progress)
    agent = context.agent(name, seed, settings.training(settings.epochs, settings.validation))
    agent.fit(context.train, progress=progress, checkpoints=checkpoints)
    judged, rewards = {}, {}
    regression: dict[str, float] | None = None
    for place, (judge, environment) in enumerate(context.judges.items()):
        outcome = evaluate(agent, environment, context.test, seed=TEST_SEED, title=f"test by {judge}", progress=progress)
        judged[judge], rewards[judge] = summary(outcome), outcome.rewards
        if place == 0:
            found = analyse_variance(agent, environment, outcome.served, settings.futures, settings.future_states, TEST_SEED)
            regression = None if found is None else {**asdict(found), "explained": found.explained}
            seen = xray(agent, outcome.served[: settings.xray]) if seed == 0 else None
    record = {"judges": judged, "regression": regression, "curves": agent.curves, "xray": seen}
    return CellResult(record, rewards, agent)


def _oracle(context: ExperimentContext, progress: Progress) -> CellResult:
    """The most that is known to be had, in the world whose truth is known."""
    world = context.judges["truth"]
    policy = oracle.OraclePolicy(cast(Newsfeed, world), context.test.horizon)
    outcome = evaluate(policy, world, context.test, seed=TEST_SEED, title="the oracle", progress=progress)
    record = {"judges": {"truth": summary(outcome)}, "regression": None, "curves": {}, "xray": None}
    return CellResult(record, {"truth": outcome.rewards}, None)
