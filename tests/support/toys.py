"""Worlds so small that the best answer is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal import Behaviours, Catalog, Sessions
from mbcal.environments.rollout import rollout
from mbcal.scoring.scorers import RandomScorer
from mbcal.types import FIRST_ITEM_ROW, Feature

BEHAVIOURS = Behaviours(("skip", "click", "like"), (0.0, 1.0, 3.0))
CPU = torch.device("cpu")
STEPS = 6
KEYS, SWEETS, PLAINS = 4, 12, 8
CATALOG = Catalog(
    (
        *(f"key {k}" for k in range(KEYS)),
        *(f"sweet {k}" for k in range(SWEETS)),
        *(f"plain {k}" for k in range(PLAINS)),
    )
)
BEST = 3.0 * (STEPS - 1)
"""A key first, then anything else."""
GREEDY = 1.0 * STEPS
"""Sweets only."""


@dataclass
class DelayedPrize:
    """A key pays nothing, but after it everything that is no key pays 3. Without one, sweets pay 1 and plains nothing."""

    noise: bool = False
    """With noise every item gets any behaviour, whatever was shown: there is nothing to learn."""

    device: torch.device = CPU
    catalog = CATALOG
    behaviours = BEHAVIOURS

    def begin(self, user: Tensor, *_: Tensor) -> Tensor:
        return torch.zeros(len(user), dtype=torch.bool, device=user.device)

    def respond(self, opened: Tensor, item: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        key = item < FIRST_ITEM_ROW + KEYS
        sweet = (item >= FIRST_ITEM_ROW + KEYS) & (item < FIRST_ITEM_ROW + KEYS + SWEETS)
        behaviour = torch.where(key, 0, torch.where(opened, 2, torch.where(sweet, 1, 0)))
        if self.noise:
            behaviour = (uniform * 3).long()
        return behaviour.to(torch.uint8), opened | key

    def observe(self, opened: Tensor, item: Tensor, behaviour: Tensor) -> Tensor:
        return opened | (item < FIRST_ITEM_ROW + KEYS)

    def merge(self, mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(mask, yes, no)


def _begun(catalog: Catalog, behaviours: Behaviours, candidates: NDArray[np.int32]) -> Sessions:
    """Sessions to serve, of `STEPS` steps, with candidates (N, C): no history, every user once."""
    count = len(candidates)
    return Sessions(
        catalog,
        behaviours,
        items=candidates[:, :STEPS].copy(),
        behaviours=np.zeros((count, STEPS), np.uint8),
        length=np.full(count, STEPS, np.int32),
        user=np.arange(count, dtype=np.int32),
        history_items=np.zeros((count, 0), np.int32),
        history_behaviours=np.zeros((count, 0), np.uint8),
        history_length=np.zeros(count, np.int32),
        candidates=candidates,
    )


def starts(count: int, seed: int = 0) -> Sessions:
    """Sessions to serve: 2 keys, 6 sweets and 4 plains to choose from, no history, every user once."""
    draw = np.random.default_rng(seed)
    offered = [
        np.stack([low + draw.permutation(size)[:take] for _ in range(count)])
        for low, size, take in ((0, KEYS, 2), (KEYS, SWEETS, 6), (KEYS + SWEETS, PLAINS, 4))
    ]
    candidates = (np.sort(np.concatenate(offered, 1), 1) + FIRST_ITEM_ROW).astype(np.int32)
    return _begun(CATALOG, BEHAVIOURS, candidates)


def logged(count: int, seed: int = 0, noise: bool = False) -> Sessions:
    """The log of a policy that chooses at random."""
    return rollout(RandomScorer(seed), DelayedPrize(noise), starts(count, seed), epsilon=1.0, seed=seed)


LONG_STEPS = 100
PER_TOPIC = 15
TOPICS = Catalog(
    tuple(f"{topic} {k}" for topic in ("news", "music") for k in range(PER_TOPIC)),
    {"topic": Feature.single("topic", [topic for topic in ("news", "music") for _ in range(PER_TOPIC)])},
)
CLICKS = Behaviours(("skip", "click"), (0.0, 1.0))


@dataclass
class Boredom:
    """Sessions of 100 steps, items of two topics. After two items of one topic in a row a third is hardly ever clicked.

    Item k of a topic is clicked with probability 0.02 (k + 1). The state is the topic shown last, and how often in a row.
    """

    device: torch.device = CPU
    catalog = TOPICS
    behaviours = CLICKS

    def begin(self, user: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(user, -1), torch.zeros_like(user)

    def respond(self, state: tuple[Tensor, Tensor], item: Tensor, uniform: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        topic, run = self.observe(state, item)
        appeal = 0.02 * ((item - FIRST_ITEM_ROW) % PER_TOPIC + 1)
        return (uniform < torch.where(run > 2, 0.1 * appeal, appeal)).to(torch.uint8), (topic, run)

    def observe(self, state: tuple[Tensor, Tensor], item: Tensor, _: Tensor | None = None) -> tuple[Tensor, Tensor]:
        topic = (item - FIRST_ITEM_ROW) // PER_TOPIC
        return topic, torch.where(topic == state[0], state[1] + 1, 1)

    def merge(self, mask: Tensor, yes: tuple[Tensor, Tensor], no: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.where(mask, yes[0], no[0]), torch.where(mask, yes[1], no[1])


def long_starts(count: int) -> Sessions:
    """Sessions of 100 steps to serve: all 30 items to choose from, no history, every user once."""
    shape = (count, LONG_STEPS)
    every_item = np.arange(FIRST_ITEM_ROW, TOPICS.n_rows, dtype=np.int32)
    return Sessions(
        TOPICS,
        CLICKS,
        items=np.full(shape, FIRST_ITEM_ROW, np.int32),
        behaviours=np.zeros(shape, np.uint8),
        length=np.full(count, LONG_STEPS, np.int32),
        user=np.arange(count, dtype=np.int32),
        history_items=np.zeros((count, 0), np.int32),
        history_behaviours=np.zeros((count, 0), np.uint8),
        history_length=np.zeros(count, np.int32),
        candidates=np.tile(every_item, (count, 1)),
    )


def long_log(count: int, seed: int = 0) -> Sessions:
    """The log of a policy that chooses at random."""
    return rollout(RandomScorer(seed), Boredom(), long_starts(count), epsilon=1.0, seed=seed)


HOOKS, HONEST = 3, 12
HOOKED = Catalog((*(f"hook {k}" for k in range(HOOKS)), *(f"honest {k}" for k in range(HONEST))))
LEAVING = CLICKS.with_leaving()
HOOK_LEAVES, HONEST_LEAVES = 0.9, 0.02


@dataclass
class Hooks:
    """Users who can leave. Hooks are always clicked, and mostly drive users away; the other items please half of the time.

    A session of hooks alone earns about 1.1 clicks, one of honest items 2.9 in six steps.
    """

    device: torch.device = CPU
    catalog = HOOKED
    behaviours = LEAVING

    def begin(self, user: Tensor, *_: Tensor) -> Tensor:
        return torch.zeros(len(user), device=user.device)

    def respond(self, state: Tensor, item: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        is_hook = item < FIRST_ITEM_ROW + HOOKS
        clicks = is_hook | (uniform < 0.5)
        within = torch.where(is_hook, uniform, (uniform * 2) % 1)  # uniform again, given the click
        leaves = within < torch.where(is_hook, HOOK_LEAVES, HONEST_LEAVES)
        return (clicks.int() + 2 * leaves.int()).to(torch.uint8), state

    def observe(self, state: Tensor, item: Tensor, behaviour: Tensor) -> Tensor:
        return state

    def merge(self, mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(mask, yes, no)


def hooked_log(count: int, seed: int = 0) -> Sessions:
    """The log of a policy that chooses at random among one hook and seven honest items."""
    draw = np.random.default_rng(seed)
    hooks = draw.integers(HOOKS, size=(count, 1))
    honest = HOOKS + np.stack([draw.permutation(HONEST)[:7] for _ in range(count)])
    candidates = (np.sort(np.concatenate([hooks, honest], 1), 1) + FIRST_ITEM_ROW).astype(np.int32)
    begun = _begun(HOOKED, LEAVING, candidates)
    return rollout(RandomScorer(seed), Hooks(), begun, epsilon=1.0, seed=seed)
