"""A toy world served by the service, and comparisons by the log that say what a test wants."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mbcal import MBCAL, MBCALConfig, NetConfig, TrainingConfig
from mbcal.agents import Agent
from mbcal.decision_log.writer import DecisionLog
from mbcal.evaluation.ope.difference import LogDifference
from mbcal.registry.registry import Registry
from mbcal.release.gate import Answer, Check, GateConfig
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.messages import FeedbackRequest, RankRequest
from mbcal.serving.service import Service
from tests.support.toys import BEHAVIOURS, CATALOG, DelayedPrize, logged, starts

EPSILON = 0.3
GATE = GateConfig(min_sessions=100)
PUBLISHING = replace(GATE, no_worse="publish")
DIFFERENCE = LogDifference(
    value=0.0,
    low=-1.0,
    high=1.0,
    level=0.95,
    reward=2.0,
    sessions=40,
    users=40,
    differing=50,
    n_observed=3,
    steps=240,
    weight_variance=500.0,
    counted=3.0,
    width=6.0,
    affected=0.5,
    reward_variance=4.0,
    range=6.0,
    least_weight=0.9,
    greedy_share=1.0,
    hidden=0.0,
)


def let_the_log_say(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the comparison by the log."""
    compared = (Check("log", answer, "detail"), DIFFERENCE)
    monkeypatch.setattr("mbcal.release.log_evidence.compare_by_log", lambda *_, **__: compared)
    monkeypatch.setattr("mbcal.release.update.other_estimates", lambda *_, **__: ([], None))


def agent(sessions: int, seed: int = 0, epochs: int = 25) -> Agent:
    how = TrainingConfig(epochs=epochs, batch=64, warmup=10, validation=0.0)
    made = MBCAL(MBCALConfig(net=NetConfig(hidden=8, embedding=8), training=how, gamma=0.95, mix=1.0, seed=seed), "cpu")
    return made.fit(logged(sessions, seed))


def served(registry: Registry, log: Path, users: int, seed: int = 0) -> float:
    """Serve users of the toy world by the service; return the mean reward per session."""
    world, begin, generator = DelayedPrize(), starts(users, seed), np.random.default_rng(seed)

    async def serve() -> float:
        service = Service(registry, MemoryStore(), DecisionLog(log), EPSILON, generator=generator)
        await service.refresh_version()
        earned = 0.0
        assert begin.candidates is not None
        for number in range(users):
            opened = torch.zeros(1, dtype=torch.bool)
            names = [CATALOG.name_of(row) for row in begin.candidates[number]]
            for _ in range(begin.horizon):
                request = RankRequest(candidates=names, k=1, session=f"{seed}-{number}", user=f"{seed}-{number}")
                answer = await service.rank(request)
                row = torch.from_numpy(CATALOG.rows_of([answer.items[0].item]))
                behaviour, opened = world.respond(opened, row, torch.zeros(1))
                label = BEHAVIOURS.names[int(behaviour)]
                await service.feedback(FeedbackRequest(answer.decision, label))
                earned += BEHAVIOURS.rewards[int(behaviour)]
        await service.close()
        return earned / users

    return asyncio.run(serve())
