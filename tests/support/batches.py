"""Small catalogues, sessions and networks for the tests of models."""

from __future__ import annotations

import numpy as np
import torch

from mbcal import Behaviours, Catalog, Feature, Sessions
from mbcal.nn.config import NetConfig
from mbcal.nn.recurrent import RecurrentNet

LABELS = Behaviours(("skip", "click", "like"), (0.0, 1.0, 5.0))
CATALOG = Catalog(
    tuple(f"item {k}" for k in range(12)),
    {
        "kind": Feature.single("kind", [f"kind {k % 3}" if k else None for k in range(12)]),
        "tags": Feature.multi("tags", [[f"tag {j}" for j in range(k % 4)] for k in range(12)]),
    },
)
REWARDS = torch.tensor(LABELS.rewards)


def sessions(count: int = 9, horizon: int = 6, history: int = 4, seed: int = 0) -> Sessions:
    """Random sessions of every length."""
    random = np.random.default_rng(seed)
    length = random.integers(1, horizon + 1, count).astype(np.int32)
    history_length = random.integers(0, history + 1, count).astype(np.int32)
    steps, before = np.arange(horizon) < length[:, None], np.arange(history) < history_length[:, None]
    return Sessions(
        CATALOG,
        LABELS,
        items=np.where(steps, random.integers(1, CATALOG.n_rows, (count, horizon)), 0).astype(np.int32),
        behaviours=np.where(steps, random.integers(0, 3, (count, horizon)), 0).astype(np.uint8),
        length=length,
        user=np.arange(count, dtype=np.int32),
        history_items=np.where(before, random.integers(1, CATALOG.n_rows, (count, history)), 0).astype(np.int32),
        history_behaviours=np.where(before, random.integers(0, 3, (count, history)), 0).astype(np.uint8),
        history_length=history_length,
    )


def net(outputs: int = 3, seed: int = 0, **config: object) -> RecurrentNet:
    """A random network, with weights larger than torch's default, so that every input matters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = RecurrentNet(CATALOG, LABELS, NetConfig(**{"hidden": 8, "embedding": 5, **config}), outputs, users=9)  # type: ignore[arg-type]
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.6)
    return model
