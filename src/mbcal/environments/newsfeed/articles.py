"""The items of the generated newsfeed: what users respond to, and the seven features that agents can see of it.

========  ======  ==================================================================================
feature   values  what it reveals
========  ======  ==================================================================================
id        one     everything, once it occurred often enough (it is the catalogue row itself)
category  one     the pair of topics that the item is mostly about
topics    many    exactly the topics, one to three
tag       one     the first topic, and the appeal in four grades
title     many    up to eight words: of its topics, and lurid ones, the more the more it baits
type      one     bait: shorts and galleries have more, articles and interviews less
source    one     bait and appeal of its publisher
========  ======  ==================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mbcal.types import Catalog, Feature

TYPES = {"short": 0.45, "gallery": 0.2, "video": 0.0, "article": -0.25, "interview": -0.4}
"""What each type adds to an item's bait."""
SOURCES = 40
"""Publishers. Each has its own bait (uniform in -0.6 … 0.6) and appeal (normal, standard deviation 0.5)."""
FOREIGN_TOPIC_SHARE = 0.3
"""Probability that a second or third topic is any topic instead of one of the item's category."""
WORDS_PER_TOPIC = 24
LURID_WORDS = 24
"""Words that occur in the titles of bait, of whatever topic."""
BAIT_SPREAD = 0.3
"""Standard deviation of bait among items of one type and source."""
POPULARITY_EXPONENT = 0.6
"""The k-th most popular item is sampled as a candidate in proportion to k^-0.6."""
APPEAL_QUARTILES = (-0.67, 0.0, 0.67)
"""Bounds of the four grades of appeal in the tag."""


@dataclass(frozen=True)
class Articles:
    """All items. Agents see them only through the features of the catalogue."""

    catalog: Catalog
    topics: Tensor
    """z, (items, K); rows sum to 1."""
    bait: Tensor
    """(items,), in -1 … 1."""
    appeal: Tensor
    """(items,), about standard normal."""
    popularity: Tensor
    """(items,) probability with which an item is sampled as a candidate; sums to 1."""


class _Sampler:
    """Random tensors of one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def integers(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)


def generate_articles(count: int, topics: int, generator: torch.Generator) -> Articles:
    """Generate the items of a feed.

    Args:
        count: How many.
        topics: K, how many topics there are; an even number.
        generator: Where all random numbers come from.
    """
    sample = _Sampler(generator)
    category = sample.integers(topics // 2, count)
    topic_numbers, has_topic = _sample_topics(category, topics, sample)
    type_number, source = sample.integers(len(TYPES), count), sample.integers(SOURCES, count)
    source_bait, source_appeal = sample.uniform(SOURCES) * 1.2 - 0.6, sample.normal(SOURCES) * 0.5
    bait = torch.tensor(list(TYPES.values()))[type_number] + source_bait[source] + BAIT_SPREAD * sample.normal(count)
    bait = bait.clamp(-1, 1)
    appeal = (source_appeal[source] + sample.normal(count)) / 1.25**0.5
    weights = (torch.randperm(count, generator=generator) + 1.0) ** -POPULARITY_EXPONENT
    titles = _sample_titles(has_topic, bait, sample.integers(5, count) + 4, sample)
    grades = ["abcd"[grade] for grade in torch.bucketize(appeal, torch.tensor(APPEAL_QUARTILES)).tolist()]
    first_topics = topic_numbers[:, 0].tolist()
    features = (
        Feature.single("category", [f"category-{number:02d}" for number in category.tolist()]),
        Feature.multi("topics", [[f"topic-{k:02d}" for k in row.nonzero().flatten().tolist()] for row in has_topic]),
        Feature.single("tag", [f"tag-{topic:02d}{grade}" for topic, grade in zip(first_topics, grades, strict=True)]),
        Feature.multi("title", titles),
        Feature.single("type", [list(TYPES)[number] for number in type_number.tolist()]),
        Feature.single("source", [f"source-{number:02d}" for number in source.tolist()]),
    )
    width = len(str(count - 1))
    names = tuple(f"item-{number:0{width}d}" for number in range(count))
    catalog = Catalog(names, {feature.name: feature for feature in features})
    return Articles(catalog, has_topic / has_topic.sum(1, keepdim=True), bait, appeal, weights / weights.sum())


def _sample_topics(category: Tensor, topics: int, sample: _Sampler) -> tuple[Tensor, Tensor]:
    """One to three topics for items of categories (items,).

    Returns:
        Topic numbers (items, 3), of which the first always counts, and which topics each item has, (items, K) as 0 and 1.
    """
    count = len(category)
    of_category = 2 * category.unsqueeze(1) + sample.integers(2, count, 3)
    of_any = sample.integers(topics, count, 3)
    numbers = torch.where(sample.uniform(count, 3) < FOREIGN_TOPIC_SHARE, of_any, of_category)
    numbers[:, 0] = of_category[:, 0]
    has_topic = torch.zeros(count, topics).scatter_(1, numbers[:, :1], 1.0)
    has_second, has_third = sample.integers(3, count) >= 1, sample.integers(3, count) >= 2
    has_topic[has_second, numbers[has_second, 1]] = 1.0
    has_topic[has_third, numbers[has_third, 2]] = 1.0
    return numbers, has_topic


def _sample_titles(has_topic: Tensor, bait: Tensor, length: Tensor, sample: _Sampler) -> list[list[str]]:
    """Distinct words of each item's title: lurid with a probability that rises from 0 at bait -1 to 0.6 at bait 1."""
    count, longest = len(bait), int(length.max())
    is_lurid = sample.uniform(count, longest) < 0.3 * (1 + bait).unsqueeze(1)
    topic = torch.multinomial(has_topic, longest, replacement=True, generator=sample.generator)
    number = sample.integers(WORDS_PER_TOPIC, count, longest)
    titles = []
    for size, *columns in zip(length.tolist(), is_lurid.tolist(), topic.tolist(), number.tolist(), strict=True):
        words = [_word(*values) for values in zip(*columns, strict=True)]
        titles.append(sorted(set(words[:size])))
    return titles


def _word(is_lurid: bool, topic: int, number: int) -> str:
    return f"lurid-{number % LURID_WORDS:02d}" if is_lurid else f"word-{topic:02d}-{number:02d}"
