"""Versions of small models, for the service."""

from __future__ import annotations

from typing import Any

from mbcal import NetConfig, TrainingConfig
from mbcal.agents import AGENTS
from tests.support.batches import CATALOG, sessions

ITEMS = list(CATALOG.items)


HISTORY = [("item 1", "click"), ("item 4", "skip"), ("item 7", "like")]


SHOWN = [("item 2", "click"), ("item 9", "skip")]


def fitted(name: str = "mbcal", seed: int = 0) -> Any:
    kind = AGENTS[name]
    config = kind.Config(net=NetConfig(hidden=8, embedding=8), training=TrainingConfig(epochs=1, batch=32), seed=seed)
    return kind(config, "cpu").fit(sessions(count=60, seed=2))
