"""Batch-RL: fit an agent on the static log, then test it on every judge. No other interaction."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from mbcal.environments.gymnasium.world import GymnasiumWorld
from mbcal.environments.newsfeed import oracle
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.evaluation.evaluator import TEST_SEED
from mbcal.evaluation.experiment.context import CellResult, ExperimentContext, summarise
from mbcal.evaluation.experiment.judging import judge_policy
from mbcal.evaluation.judges import TRUTH
from mbcal.evaluation.variance import analyse_variance
from mbcal.evaluation.xray import xray
from mbcal.progress import SILENT, Progress
from mbcal.storage.checkpoints import Checkpoints


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
    for judge in context.judges:
        result = judge_policy(context, agent, judge, progress=progress)
        judged[judge], rewards[judge] = summarise(result), result.rewards
        served = result.served if served is None else served
    assert served is not None  # noqa: S101 - an experiment has at least one judge
    regression = None  # a world cannot go back to a state to resample its futures
    if not isinstance(context.users, GymnasiumWorld):
        regression = analyse_variance(agent, context.users, served, settings.futures, settings.future_states, TEST_SEED)
    record = {
        "judges": judged,
        "regression": None if regression is None else {**asdict(regression), "explained": regression.explained},
        "curves": {net: record.curve for net, record in agent.records.items()},
        "xray": xray(agent, served[: settings.xray]) if seed == 0 else None,
        "gamma": getattr(agent.config, "gamma", None),
        "choices": agent.choices,
    }
    return CellResult(record, rewards, agent)


def _test_oracle(context: ExperimentContext, progress: Progress) -> CellResult:
    """Test the policy that plans with the true world: the upper reference for regret."""
    policy = oracle.OraclePolicy(cast(Newsfeed, context.judges[TRUTH]), context.test.horizon)
    result = judge_policy(context, policy, TRUTH, title="test of the oracle", progress=progress)
    record = {"judges": {TRUTH: summarise(result)}, "regression": None, "curves": {}, "xray": None}
    return CellResult(record, {TRUTH: result.rewards}, None)
