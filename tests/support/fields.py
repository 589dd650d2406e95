"""Sessions whose users and steps are described by fields of every kind."""

from __future__ import annotations

import dataclasses

import numpy as np

from mbcal.types import Field, Fields, SessionFields, Sessions
from tests.support.batches import sessions

FIELDS = SessionFields(
    user=Fields((Field("country", "category", ("at", "de", "fr")), Field("age", "number", mean=40.0, deviation=10.0))),
    context=Fields(
        (
            Field("device", "category", ("phone", "tv")),
            Field("referrer", "category", ("mail", "search")),
            Field("hour", "number", mean=12.0, deviation=6.0),
            Field("text", "vector", length=3),
        )
    ),
)


def random_values(fields: Fields, random: np.random.Generator, missing: float = 0.2) -> dict[str, object]:
    """Raw values of all fields, some of them missing."""
    values: dict[str, object] = {}
    for one in fields:
        if random.random() < missing:
            values[one.name] = None
        elif one.kind == "category":
            values[one.name] = str(random.choice(one.vocabulary))
        elif one.kind == "number":
            values[one.name] = float(random.normal(one.mean, one.deviation))
        else:
            values[one.name] = random.normal(size=one.length).tolist()
    return values


def with_fields(count: int = 9, seed: int = 0) -> Sessions:
    """`batches.sessions` with random user features and context."""
    plain, random = sessions(count=count, seed=seed), np.random.default_rng(seed)
    users = [FIELDS.user.encode(random_values(FIELDS.user, random), "user_features") for _ in range(count)]
    context = np.zeros((*plain.items.shape, FIELDS.context.width), np.float32)
    for row, step in np.argwhere(plain.mask):
        context[row, step] = FIELDS.context.encode(random_values(FIELDS.context, random), "context")
    return dataclasses.replace(plain, user_features=np.stack(users), context=context, fields=FIELDS)
