"""LinUCB: a linear estimate of the next reward, and a bonus for what was tried little.

Li et al., *A Contextual-Bandit Approach to Personalized News Article Recommendation* (2010), in the form with one model for
all items::

    x(s, a) = [z(a), 1, mean reward so far, last reward]        z(a): the item's id and features, hashed into 64 dimensions
    A = ridge I + sum x x'     b = sum x r     theta = A^-1 b   over all logged steps
    score = theta' x + alpha sqrt(x' A^-1 x)

The MBCAL paper leaves it out as too weak.

Deviation: hashed item vectors in one model instead of one model per item, since most items occur only a few times.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.agents.base import Agent
from mbcal.agents.config import AgentConfig
from mbcal.agents.domain import Domain
from mbcal.agents.fit_context import FitContext
from mbcal.errors import OptionError
from mbcal.scoring.scorers import N_CONTEXT, LinUCBScorer
from mbcal.types import FIRST_ITEM_ROW, Catalog, Feature, SessionTensors

BLOCK = 4096
"""Sessions whose inputs x are in memory at a time."""


@dataclass(frozen=True)
class LinUCBConfig(AgentConfig):
    """Settings of LinUCB."""

    alpha: float = 0.5
    """Weight of the bonus."""
    ridge: float = 1.0
    """Strength of the regularisation towards zero."""
    size: int = 64
    """Dimensions of an item's vector z(a)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or self.ridge <= 0 or self.size < 1:
            raise OptionError("linucb: alpha must be 0 or more, ridge above 0, size at least 1")


class _Regression(nn.Module):
    """What ridge regression needs of the logged steps."""

    gram: Tensor
    """A, (D, D)."""
    moments: Tensor
    """b, (D,)."""

    def __init__(self, size: int, ridge: float) -> None:
        super().__init__()
        self.register_buffer("gram", ridge * torch.eye(size, dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(size, dtype=torch.float64))


class LinUCB(Agent):
    """Score = upper confidence bound of a linear estimate of the instant reward. Later fits add to the evidence."""

    name = "linucb"
    Config = LinUCBConfig
    config: LinUCBConfig
    explores = False  # the bonus does

    def build_networks(self, domain: Domain) -> dict[str, nn.Module]:  # noqa: ARG002 - the signature of every agent
        return {"regression": _Regression(self.config.size + N_CONTEXT, self.config.ridge)}

    def learn(self, context: FitContext) -> None:
        regression, vectors, scorer = self.nets["regression"], self._item_vectors(), self.build_scorer()
        gram, moments = torch.zeros_like(regression.gram), torch.zeros_like(regression.moments)
        rewards = torch.tensor(self.domain.behaviours.rewards, dtype=torch.float64, device=self.device)
        for begin in range(0, len(context.data), BLOCK):
            batch = context.data[slice(begin, begin + BLOCK)]
            inputs = torch.cat([vectors[batch.items], _contexts(scorer, batch).to(vectors.dtype)], -1)[batch.mask]
            gram += inputs.T @ inputs
            moments += inputs.T @ rewards[batch.behaviours[batch.mask].long()]
        context.worker_slice.group.all_reduce_sum(gram, moments)
        regression.gram += gram
        regression.moments += moments

    def build_scorer(self) -> LinUCBScorer:
        regression, vectors, size = self.nets["regression"], self._item_vectors(), self.config.size
        inverse = torch.linalg.inv(regression.gram)
        theta = inverse @ regression.moments
        return LinUCBScorer(
            values=(vectors @ theta[:size]).float(),
            weights=theta[size:].float(),
            spread=((vectors @ inverse[:size, :size]) * vectors).sum(1).float(),
            cross=(2 * vectors @ inverse[:size, size:]).float(),
            within=inverse[size:, size:].float(),
            rewards=torch.tensor(self.domain.behaviours.rewards, device=self.device),
            alpha=self.config.alpha,
        )

    def _item_vectors(self) -> Tensor:
        vectors = item_vectors(self.domain.catalog, self.config.net.features or (), self.config.size)
        return torch.from_numpy(vectors).to(self.device)


def _contexts(scorer: LinUCBScorer, batch: SessionTensors) -> Tensor:
    """The part of x that depends on the user, before every logged step: (B, T, 3)."""
    state, contexts = scorer.begin(*batch.history), []
    for step in range(batch.items.shape[1]):
        contexts.append(scorer.context(state))
        state = scorer.observe(state, batch.items[:, step], batch.behaviours[:, step])
    return torch.stack(contexts, 1)


def item_vectors(catalog: Catalog, features: tuple[str, ...], size: int) -> NDArray[np.float64]:
    """Hash the id and the categories of every item into a vector of length 1. Numbers and vectors are left out.

    Each value is added at a position, and with a sign, given by its hash.

    Args:
        catalog: The items.
        features: Which of its features to use.
        size: Dimensions of a vector.

    Returns:
        (rows, size); zero for the masking and the unknown item.
    """
    vectors = np.zeros((catalog.n_rows, size))
    categories = {name: feature for name in features if isinstance(feature := catalog.features[name], Feature)}
    for row in range(FIRST_ITEM_ROW, catalog.n_rows):
        words = [f"id={catalog.name_of(row)}"]
        words += [f"{name}={value}" for name, feature in categories.items() for value in feature.values(row)]
        for word in words:
            digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
            vectors[row, (digest >> 1) % size] += 1 - 2 * (digest & 1)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)
