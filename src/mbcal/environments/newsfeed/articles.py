"""The items of the generated newsfeed: what they are to users, and the seven features that show it.

========  ======  ==================================================================================
feature   values  tells about
========  ======  ==================================================================================
id        one     everything, once seen often enough (it is the catalogue row itself)
category  one     the pair of topics the item is mostly about
topics    many    exactly the topics, one to three
tag       one     the first topic and how appealing the item is, in four grades
title     many    four to eight words: of its topics, and the more lurid the more it baits
type      one     bait: shorts and galleries bait, articles and interviews nourish
source    one     bait and appeal of its publisher
========  ======  ==================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mbcal.types import Catalog, Feature

TYPES = {"short": 0.45, "gallery": 0.2, "video": 0.0, "article": -0.25, "interview": -0.4}
"""Type of an item -> what it adds to its bait."""
SOURCES = 40
"""Publishers; each has its own bait (uniform in -0.6 … 0.6) and appeal (spread 0.5)."""
WORDS_PER_TOPIC = 24
BAIT_WORDS = 24
BAIT_SPREAD = 0.3
"""How much items of one type and source differ in bait."""
POPULARITY = 0.6
"""The k-th most offered item is offered in proportion to k to the minus this."""


@dataclass(frozen=True)
class Articles:
    """What items are (hidden from agents but for their features)."""

    catalog: Catalog
    topics: Tensor  # (items, K), rows sum to 1
    bait: Tensor  # (items,) in -1 … 1
    appeal: Tensor  # (items,), about standard normal
    weights: Tensor  # (items,), how often each is offered


def generate_articles(count: int, topics: int, draw: torch.Generator) -> Articles:
    """Draw all items."""

    def uniform(*size: int) -> Tensor:
        return torch.rand(*size, generator=draw)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw)

    def distributed_gather(size: int, *shape: int) -> Tensor:
        return torch.randint(size, shape, generator=draw)

    category = distributed_gather(topics // 2, count)
    own = 2 * category.unsqueeze(1) + distributed_gather(2, count, 3)  # of the category's pair
    anywhere = distributed_gather(topics, count, 3)
    listed = torch.where(uniform(count, 3) < 0.3, anywhere, own)
    listed[:, 0] = own[:, 0]
    present = torch.zeros(count, topics).scatter_(1, listed[:, :1], 1.0)
    for k, size in ((1, distributed_gather(3, count) >= 1), (2, distributed_gather(3, count) >= 2)):
        present[size, listed[size, k]] = 1.0
    kind, source = distributed_gather(len(TYPES), count), distributed_gather(SOURCES, count)
    source_bait, source_appeal = uniform(SOURCES) * 1.2 - 0.6, normal(SOURCES) * 0.5
    bait = torch.tensor(list(TYPES.values()))[kind] + source_bait[source] + BAIT_SPREAD * normal(count)
    bait = bait.clamp(-1, 1)
    appeal = (source_appeal[source] + normal(count)) / 1.25**0.5
    weights = (torch.randperm(count, generator=draw) + 1.0) ** -POPULARITY
    width = len(str(count - 1))
    titles = _titles(present, bait, distributed_gather(5, count) + 4, draw)
    grades = torch.bucketize(appeal, torch.tensor([-0.67, 0.0, 0.67]))
    features = (
        Feature.single("category", [f"category-{c:02d}" for c in category.tolist()]),
        Feature.multi("topics", [[f"topic-{k:02d}" for k in torch.nonzero(row).flatten().tolist()] for row in present]),
        Feature.single(
            "tag", [f"tag-{k:02d}{'abcd'[g]}" for k, g in zip(listed[:, 0].tolist(), grades.tolist(), strict=True)]
        ),
        Feature.multi("title", titles),
        Feature.single("type", [list(TYPES)[k] for k in kind.tolist()]),
        Feature.single("source", [f"source-{s:02d}" for s in source.tolist()]),
    )
    names = tuple(f"item-{k:0{width}d}" for k in range(count))
    catalog = Catalog(names, {feature.name: feature for feature in features})
    return Articles(catalog, present / present.sum(1, keepdim=True), bait, appeal, weights / weights.sum())


def _titles(present: Tensor, bait: Tensor, length: Tensor, draw: torch.Generator) -> list[list[str]]:
    """Distinct words; each is lurid with a probability that rises from 0 at bait -1 to 0.6 at bait 1."""
    longest = int(length.max())
    lurid = torch.rand(len(bait), longest, generator=draw) < 0.3 * (1 + bait).unsqueeze(1)
    about = torch.multinomial(present, longest, replacement=True, generator=draw)
    which = torch.randint(WORDS_PER_TOPIC, (len(bait), longest), generator=draw)
    titles = []
    for size, bad, topic, word in zip(length.tolist(), lurid.tolist(), about.tolist(), which.tolist(), strict=True):
        words = [
            f"lurid-{word[k] % BAIT_WORDS:02d}" if bad[k] else f"word-{topic[k]:02d}-{word[k]:02d}" for k in range(size)
        ]
        titles.append(sorted(set(words)))
    return titles
