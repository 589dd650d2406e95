"""LinUCB: a linear guess of the next reward, and a bonus for what has been tried little.

Li et al., *A Contextual-Bandit Approach to Personalized News Article Recommendation* (2010), in the form with one model for
all items. x(s, a) = [z(a), 1, mean reward of the past, last reward], with z(a) the item's id and features hashed into 64
signed dimensions; theta by ridge regression, score = theta x + alpha sqrt(x' A^-1 x).

The MBCAL paper says it does poorly for lack of power and leaves it out; here it is shown.

Deviation: an item's hashed vector instead of a model an item, since most items are seen a few times only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.agents.base import Agent, AgentConfig
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.errors import OptionError
from mbcal.scoring.scorers import N_CONTEXT, LinUCBScorer
from mbcal.types import FIRST_ITEM_ROW, Catalog, SessionTensors


@dataclass(frozen=True)
class LinUCBConfig(AgentConfig):
    """ExperimentConfig of LinUCB."""

    alpha: float = 0.5
    """Weight of the bonus."""
    ridge: float = 1.0
    """Strength of the prior towards zero."""
    size: int = 64
    """Dimensions of an item's vector."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or self.ridge <= 0 or self.size < 1:
            raise OptionError("linucb: alpha must be 0 or more, ridge above 0, size at least 1")


class _Regression(nn.Module):
    """A = ridge I + sum x x', b = sum x r; item vectors are derived from the catalogue."""

    covariance: Tensor
    target: Tensor

    def __init__(self, size: int, ridge: float) -> None:
        super().__init__()
        self.register_buffer("covariance", ridge * torch.eye(size, dtype=torch.float64))
        self.register_buffer("target", torch.zeros(size, dtype=torch.float64))


class LinUCB(Agent):
    """Score = expected instant reward, linear, and an upper confidence bound on it. A later fit adds to the evidence."""

    name = "linucb"
    Config = LinUCBConfig
    config: LinUCBConfig
    explores = False  # the bonus does

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:  # noqa: ARG002 - as every agent's
        return {"regression": _Regression(self.config.size + N_CONTEXT, self.config.ridge)}

    def learn(self, context: FitContext) -> None:
        kept, vectors, group = self.nets["regression"], self._vectors(), context.worker_slice.group
        before = [evidence.clone() for evidence in (kept.covariance, kept.target)]
        rewards = torch.tensor(self.domain.behaviours.rewards, dtype=torch.float64, device=self.device)
        for begin in range(0, len(context.data), 4096):
            batch = context.data[slice(begin, begin + 4096)]
            told = torch.cat([vectors[batch.items], self._contexts(batch, rewards)], -1)[batch.mask]
            kept.covariance += told.T @ told
            kept.target += told.T @ rewards[batch.behaviours[batch.mask].long()]
        group.all_reduce_sum(kept.covariance, kept.target)
        for evidence, known in zip((kept.covariance, kept.target), before, strict=True):
            evidence -= (group.size - 1) * known  # which all_gather_ints has added

    def _contexts(self, batch: SessionTensors, rewards: Tensor) -> Tensor:
        """(B, T, 3): what the scorer's state says before every logged step."""
        scorer = self.build_scorer()
        state, seen = scorer.begin(*batch.history), []
        for step in range(batch.items.shape[1]):
            seen.append(scorer.context(state))
            state = scorer.observe(state, batch.items[:, step], batch.behaviours[:, step])
        return torch.stack(seen, 1).to(rewards.dtype)

    def _vectors(self) -> Tensor:
        made = item_vectors(self.domain.catalog, self.config.net.features or (), self.config.size)
        return torch.from_numpy(made).to(self.device)

    def build_scorer(self) -> LinUCBScorer:
        kept, vectors, size = self.nets["regression"], self._vectors(), self.config.size
        inverse = torch.linalg.inv(kept.covariance)
        theta = inverse @ kept.target
        return LinUCBScorer(
            values=(vectors @ theta[:size]).float(),
            weights=theta[size:].float(),
            spread=((vectors @ inverse[:size, :size]) * vectors).sum(1).float(),
            cross=(2 * vectors @ inverse[:size, size:]).float(),
            within=inverse[size:, size:].float(),
            rewards=torch.tensor(self.domain.behaviours.rewards, device=self.device),
            alpha=self.config.alpha,
        )


def item_vectors(catalog: Catalog, features: tuple[str, ...], size: int) -> NDArray[np.float64]:
    """(rows, size): id and feature values, each added or subtracted at a place given by its hash, then scaled to length 1.

    The special rows are zero: nothing is known of them.
    """
    vectors = np.zeros((catalog.n_rows, size))
    for row in range(FIRST_ITEM_ROW, catalog.n_rows):
        words = [f"id={catalog.name_of(row)}"]
        words += [f"{name}={value}" for name in features for value in catalog.features[name].values(row)]
        for word in words:
            drawn = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
            vectors[row, (drawn >> 1) % size] += 1 - 2 * (drawn & 1)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)
