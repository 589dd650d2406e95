"""Summaries of runs that never ran: rewards as a test gives them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mbcal.environments.trust import Trust
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.run import Cell
from mbcal.report.summary import RunSummary
from tests.support.experiments import TINY

Rewards = Mapping[str, Mapping[str, NDArray[Any]]]
"""By judge and agent: rewards (S, N)."""


def summary_of(
    batch: Rewards,
    growing: Rewards | None = None,
    *,
    trust: Mapping[str, Trust] | None = None,
    logged: NDArray[Any] | None = None,
    is_generated: bool = False,
) -> RunSummary:
    """Return the summary of a run with these results.

    Args:
        batch: Rewards of Batch-RL.
        growing: Rewards of Growing Batch-RL, after the last of two equal rounds; None if there is none.
        trust: What the simulators among the judges can be trusted for.
        logged: (N,) reward of the test sessions as they were logged, one user each.
        is_generated: Whether the users are generated.
    """
    judges, results = tuple(batch), []
    for protocol, by_judge in (("batch", batch), ("growing", growing or {})):
        for agent in dict.fromkeys(agent for rewards in by_judge.values() for agent in rewards):
            own = {judge: rewards[agent] for judge, rewards in by_judge.items() if agent in rewards}
            for seed in range(len(next(iter(own.values())))):
                record = {"rounds": [{"mean": float(own[judges[0]][seed].mean())}] * 2} if judges[0] in own else {}
                earned = {judge: rewards[seed].astype(np.float32) for judge, rewards in own.items()}
                results.append(SimpleNamespace(cell=Cell(protocol, agent, seed), record=record, rewards=earned))
    run: Any = SimpleNamespace(
        judge_names=judges,
        results=lambda: results,
        settings=experiment_config(TINY),
        folder=Path("RUN"),
        missing=[],
        path=lambda cell, kind: Path("RUN") / kind / cell.protocol / cell.agent,
    )
    summary = RunSummary(run)
    count = next(iter(batch[judges[0]].values())).shape[1]
    known = {"users": np.arange(count), "trust": trust or {}, "report_cards": {}}
    summary.__dict__.update(known, logged_rewards=logged, is_generated=is_generated)
    return summary
