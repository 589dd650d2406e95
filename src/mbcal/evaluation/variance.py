"""How noisy is what a method learns from? (The paper's Table 3, and what makes it mean something.)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.agents.base import Agent
from mbcal.environments.base import Environment
from mbcal.environments.candidates import session_candidates
from mbcal.environments.rollout import rollout
from mbcal.training.random import derive_seed
from mbcal.types import Sessions

AT_ONCE = 1024


@dataclass(frozen=True)
class Regression:
    """A value network on the sessions of its own test round, in reward units."""

    mse: float
    """Mean squared error of the prediction: what the paper prints."""
    label_variance: float
    """Variance of the labels over all steps: what predicting their mean would leave."""
    future_variance: float
    """Variance of the label of one (state, action) over resampled futures, mean over states: noise no network can learn."""

    @property
    def explained(self) -> float:
        """R²: the share of the labels' variance that is predicted."""
        return 1 - self.mse / self.label_variance if self.label_variance else 0.0


def analyse_variance(
    agent: Agent, environment: Environment, served: Sessions, futures: int, states: int, seed: int
) -> Regression | None:
    """For an agent with a value network and the sessions it served; None for one without."""
    labels: list[NDArray[np.float64]] = []
    predictions: list[NDArray[np.float64]] = []
    for begin in range(0, len(served), AT_ONCE):
        part = served[begin : begin + AT_ONCE]
        found = agent.value_regression(part.tensors(agent.device, without=("propensities", "timestamps")))
        if found is None:
            return None
        for kept, values in zip((labels, predictions), found, strict=True):
            kept.append(values.cpu().numpy()[part.mask].astype(np.float64))
    label, predicted = np.concatenate(labels), np.concatenate(predictions)
    return Regression(
        mse=float(np.square(label - predicted).mean()),
        label_variance=float(label.var()),
        future_variance=_future_variance(agent, environment, served, futures, states, seed),
    )


def _future_variance(
    agent: Agent, environment: Environment, served: Sessions, futures: int, states: int, seed: int
) -> float:
    """Pick states, keep each one's past and item, let the rest of the session happen again and again."""
    draw = np.random.default_rng(derive_seed(seed, "futures"))
    rows = draw.choice(len(served), min(states, len(served)), replace=False)
    steps = draw.integers(0, served.length[rows])
    again = served[np.repeat(rows, futures)]
    fixed = np.repeat(steps, futures)
    candidates = session_candidates(served, seed)[np.repeat(rows, futures)]
    futures_of = rollout(
        agent, environment, again, seed=derive_seed(seed, "futures"), candidates=candidates, keep_until=fixed
    )
    variances = []
    for begin in range(0, len(again), futures * 16):
        part = futures_of[begin : begin + futures * 16]
        found = agent.value_regression(part.tensors(agent.device, without=("propensities", "timestamps")))
        assert found is not None  # noqa: S101 - `analyse` asked before
        at = torch.from_numpy(fixed[begin : begin + len(part)]).to(agent.device)
        label = found[0].gather(1, at.unsqueeze(1)).view(-1, futures).double()
        variances.append(label.var(1))
    return float(torch.cat(variances).mean())
