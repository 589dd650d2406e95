"""A world with two hidden types of users, and logs of policies that know the type, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mbcal import Behaviours, Catalog, Sessions
from mbcal.types import FIRST_ITEM_ROW

CPU = torch.device("cpu")
ITEMS, STEPS = 10, 4
BEHAVIOURS = Behaviours(("skip", "click"), (0.0, 1.0))
CATALOG = Catalog(tuple(f"item {k}" for k in range(ITEMS)))
CLICK = np.array([[0.6] * 3 + [0.05] * 3 + [0.45] * 4, [0.05] * 3 + [0.6] * 3 + [0.45] * 4], np.float32)
"""P(click | type, item): three items for either type, and four that both like well enough."""
BEST = tuple(range(FIRST_ITEM_ROW + 6, FIRST_ITEM_ROW + 10))
"""The best items for a user of unknown type: 0.45 against 0.325."""
CHANCE = STEPS * float(CLICK.mean())
"""Reward per session of a random policy, 1.5; a policy that shows only the best items earns 1.8."""


@dataclass
class TwoTypes:
    """Users of even number are of the first type, others of the second."""

    device: torch.device = CPU
    catalog = CATALOG
    behaviours = BEHAVIOURS

    def begin(self, user: Tensor, *_: Tensor) -> Tensor:
        return user % 2

    def respond(self, kind: Tensor, item: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        return (uniform < torch.from_numpy(CLICK)[kind.long(), item.long() - FIRST_ITEM_ROW]).to(torch.uint8), kind

    def observe(self, kind: Tensor, item: Tensor, behaviour: Tensor) -> Tensor:
        return kind

    def merge(self, mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(mask, yes, no)


def logged(count: int, epsilon: float, seed: int = 0) -> Sessions:
    """A log with candidates and propensities: the best item left for the user's type, or with epsilon a random one left."""
    draw = np.random.default_rng(seed)
    kind = np.arange(count) % 2
    left = np.ones((count, ITEMS), bool)
    rows, users = np.zeros((count, STEPS), np.int32), np.arange(count)
    behaviours, propensities = np.zeros((count, STEPS), np.uint8), np.zeros((count, STEPS), np.float32)
    for step in range(STEPS):
        best = np.where(left, CLICK[kind] + 1e-3 * draw.random((count, ITEMS)), -1).argmax(1)  # a random one of equals
        random = np.where(left, draw.random((count, ITEMS)), -1).argmax(1)
        item = np.where(draw.random(count) < epsilon, random, best)
        top = left & (CLICK[kind] == CLICK[kind, best][:, None])
        greedy = top[users, item] / top.sum(1)
        propensities[:, step] = epsilon / left.sum(1) + (1 - epsilon) * greedy
        rows[:, step], left[users, item] = item + FIRST_ITEM_ROW, False
        behaviours[:, step] = draw.random(count) < CLICK[kind, item]
    return Sessions(
        CATALOG,
        BEHAVIOURS,
        items=rows,
        behaviours=behaviours,
        length=np.full(count, STEPS, np.int32),
        user=users.astype(np.int32),
        history_items=np.zeros((count, 0), np.int32),
        history_behaviours=np.zeros((count, 0), np.uint8),
        history_length=np.zeros(count, np.int32),
        candidates=np.tile(np.arange(ITEMS, dtype=np.int32) + FIRST_ITEM_ROW, (count, 1)),
        propensities=propensities,
    )
