"""Batch-RL: learn from the static log, then be tested by users; no other interaction."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from mbcal.environments.newsfeed import oracle_policy as oracle
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.experiment.context import Bench, Played, summary
from mbcal.evaluation.variance import analyse
from mbcal.evaluation.xray import xray
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints

TEST_SEED = 1_000_003
"""Of the luck in every test: the same for all methods, seeds and rounds, so that they can be compared pair by pair."""


def batch_rl(
    bench: Bench, name: str, seed: int, progress: Progress = SILENT, checkpoints: Checkpoints | None = None
) -> Played:
    """One cell."""
    settings = bench.settings
    if name == oracle.NAME:
        return _oracle(bench, progress)
    agent = bench.agent(name, seed, settings.training(settings.epochs, settings.validation))
    agent.fit(bench.train, progress=progress, checkpoints=checkpoints)
    judged, rewards = {}, {}
    regression: dict[str, float] | None = None
    for place, (judge, environment) in enumerate(bench.judges.items()):
        outcome = evaluate(agent, environment, bench.test, seed=TEST_SEED, title=f"test by {judge}", progress=progress)
        judged[judge], rewards[judge] = summary(outcome), outcome.rewards
        if place == 0:
            found = analyse(agent, environment, outcome.served, settings.futures, settings.future_states, TEST_SEED)
            regression = None if found is None else {**asdict(found), "explained": found.explained}
            seen = xray(agent, outcome.served[: settings.xray]) if seed == 0 else None
    record = {"judges": judged, "regression": regression, "curves": agent.curves, "xray": seen}
    return Played(record, rewards, agent)


def _oracle(bench: Bench, progress: Progress) -> Played:
    """The most that is known to be had, in the world whose truth is known."""
    world = bench.judges["truth"]
    policy = oracle.OraclePolicy(cast(Newsfeed, world), bench.test.horizon)
    outcome = evaluate(policy, world, bench.test, seed=TEST_SEED, title="the oracle", progress=progress)
    record = {"judges": {"truth": summary(outcome)}, "regression": None, "curves": {}, "xray": None}
    return Played(record, {"truth": outcome.rewards}, None)
