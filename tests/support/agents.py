"""Small agents, and what they score."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import torch

from mbcal import Sessions
from mbcal.agents import AGENTS, Agent
from mbcal.nn.config import NetConfig
from mbcal.training.config import TrainingConfig
from tests.support import batches

QUICK = TrainingConfig(epochs=2, batch=64, validation=0.2)


NET = NetConfig(hidden=8, embedding=8)
MORE: dict[str, dict[str, Any]] = {"mbcal-plan": {"advantage": "planned", "iterations": 2, "branches": 300}}
"""Settings of single methods beside the common ones, for small fits."""


@cache
def small(name: str, seed: int = 0) -> Agent:
    """Fitted on random sessions of every length, with features and histories; not to be changed."""
    return make(name, seed).fit(batches.sessions(count=200, horizon=6, seed=3))


def make(name: str, seed: int = 0) -> Agent:
    kind = AGENTS[name]
    net = dataclasses.replace(NET, features=("kind", "tags"))
    return kind(kind.Config(net=net, training=QUICK, seed=seed, **MORE.get(name, {})), "cpu")


def scores_along(agent: Any, sessions: Sessions, candidates: np.ndarray[Any, Any]) -> torch.Tensor:
    """(B, T, C): what the agent says of the same candidates at every step of the logged sessions."""
    batch = sessions.tensors()
    state, offered = agent.begin(*batch.history), torch.from_numpy(candidates)
    said = []
    for step in range(sessions.horizon):
        said.append(agent.score(state, offered))
        state = agent.observe(state, batch.items[:, step], batch.behaviours[:, step])
    return torch.stack(said, 1)


def offered(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(1, batches.CATALOG.n_rows, (count, 5)).astype(np.int32)
