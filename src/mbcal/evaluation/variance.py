"""How noisy the labels of a value network are, and how much of them it predicts (the paper's Table 3, and more)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.agents.base import Agent
from mbcal.environments.base import Environment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.rollout import rollout
from mbcal.training.random import derive_seed
from mbcal.types import Sessions

BLOCK = 1024
"""Sessions labelled at a time."""
STATES_PER_BLOCK = 16
"""States whose resampled futures are labelled at a time."""


@dataclass(frozen=True)
class Regression:
    """Quality of a value network on the test sessions its agent served, in squared reward units."""

    mse: float
    """Mean squared error of the prediction: the number in the paper."""
    label_variance: float
    """Variance of the labels over all steps: the error of predicting their mean."""
    future_variance: float
    """Variance of the label of one (state, action) over resampled futures, mean over states: noise that no network can
    learn."""

    @property
    def explained(self) -> float:
        """R²: the share of the labels' variance that is predicted."""
        return 1 - self.mse / self.label_variance if self.label_variance else 0.0


def analyse_variance(
    agent: Agent, environment: Environment, served: Sessions, futures: int, states: int, seed: int
) -> Regression | None:
    """Measure the labels and predictions of an agent's value network.

    Args:
        agent: A fitted agent.
        environment: Who responds in resampled futures.
        served: N sessions the agent served.
        futures: Resampled futures per state.
        states: States to resample; at most N.
        seed: Seed of the states and the noise of their futures.

    Returns:
        The measurements; None for an agent without a value network.
    """
    labels: list[NDArray[np.float64]] = []
    predictions: list[NDArray[np.float64]] = []
    for begin in range(0, len(served), BLOCK):
        block = served[begin : begin + BLOCK]
        regression = _value_regression(agent, block)
        if regression is None:
            return None
        for parts, values in zip((labels, predictions), regression, strict=True):
            parts.append(values.cpu().numpy()[block.mask].astype(np.float64))
    label, prediction = np.concatenate(labels), np.concatenate(predictions)
    return Regression(
        mse=float(np.square(label - prediction).mean()),
        label_variance=float(label.var()),
        future_variance=_future_variance(agent, environment, served, futures, states, seed),
    )


def _value_regression(agent: Agent, sessions: Sessions) -> tuple[Tensor, Tensor] | None:
    return agent.value_regression(sessions.tensors(agent.device, without=("propensities", "timestamps")))


def _future_variance(
    agent: Agent, environment: Environment, served: Sessions, futures: int, states: int, seed: int
) -> float:
    """Sample states, keep the past and the item of each, and resample the rest of its session `futures` times."""
    futures_seed = derive_seed(seed, "futures")
    generator = np.random.default_rng(futures_seed)
    rows = generator.choice(len(served), min(states, len(served)), replace=False)
    steps = np.repeat(generator.integers(0, served.length[rows]), futures)
    repeated = np.repeat(rows, futures)
    candidates = session_candidates(served, seed)[repeated]
    resampled = rollout(agent, environment, served[repeated], seed=futures_seed, candidates=candidates, keep_until=steps)
    variances = []
    for begin in range(0, len(repeated), futures * STATES_PER_BLOCK):
        block = resampled[begin : begin + futures * STATES_PER_BLOCK]
        regression = _value_regression(agent, block)
        assert regression is not None  # noqa: S101 - `analyse_variance` has checked that there is a value network
        step = torch.from_numpy(steps[begin : begin + len(block)]).to(agent.device)
        label = regression[0].gather(1, step.unsqueeze(1)).view(-1, futures).double()
        variances.append(label.var(1))
    return float(torch.cat(variances).mean())
