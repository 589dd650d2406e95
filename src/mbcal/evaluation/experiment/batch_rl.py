"""Batch-RL: fit an agent on the static log, then test it on every judge. No other interaction."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from mbcal.environments.newsfeed import oracle
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.experiment.context import CellResult, ExperimentContext, summarise
from mbcal.evaluation.judges import TRUTH
from mbcal.evaluation.variance import analyse_variance
from mbcal.evaluation.xray import xray
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints

TEST_SEED = 1_000_003
"""Names candidates and noise of every test: the same for all methods, seeds and rounds, so that rewards are paired."""


def batch_rl(
    context: ExperimentContext, name: str, seed: int, progress: Progress = SILENT, checkpoints: Checkpoints | None = None
) -> CellResult:
    """Run one Batch-RL cell.

    Args:
        context: What the cells share.
        name: The agent's name (see `agent_config`), or `oracle`.
        seed: The agent's seed.
        progress: Notified of epochs and sessions.
        checkpoints: Where the state of the fit is saved, and resumed from.

    Returns:
        By judge the rewards; and from the first judge the variance analysis and, for seed 0, the X-ray of some sessions.
    """
    if name == oracle.NAME:
        return _test_oracle(context, progress)
    settings = context.settings
    agent = context.agent(name, seed)
    agent.fit(context.train, progress=progress, checkpoints=checkpoints)
    judged, rewards = {}, {}
    served = None  # of the first judge
    for judge, environment in context.judges.items():
        result = evaluate(agent, environment, context.test, seed=TEST_SEED, title=f"test by {judge}", progress=progress)
        judged[judge], rewards[judge] = summarise(result), result.rewards
        served = result.served if served is None else served
    assert served is not None  # noqa: S101 - an experiment has at least one judge
    regression = analyse_variance(agent, context.users, served, settings.futures, settings.future_states, TEST_SEED)
    record = {
        "judges": judged,
        "regression": None if regression is None else {**asdict(regression), "explained": regression.explained},
        "curves": {net: record.curve for net, record in agent.records.items()},
        "xray": xray(agent, served[: settings.xray]) if seed == 0 else None,
    }
    return CellResult(record, rewards, agent)


def _test_oracle(context: ExperimentContext, progress: Progress) -> CellResult:
    """Test the policy that plans with the true world: the upper reference for regret."""
    world = context.judges[TRUTH]
    policy = oracle.OraclePolicy(cast(Newsfeed, world), context.test.horizon)
    result = evaluate(policy, world, context.test, seed=TEST_SEED, title="test of the oracle", progress=progress)
    record = {"judges": {TRUTH: summarise(result)}, "regression": None, "curves": {}, "xray": None}
    return CellResult(record, {TRUTH: result.rewards}, None)
