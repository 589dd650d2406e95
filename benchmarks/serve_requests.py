"""Models and requests for `benchmarks/serve.py`: with and without context, user features and unknown items."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

RUN = [sys.executable, "-m", "mbcal"]
LENGTH = 64
"""Numbers in the vector of an item."""


def described(sessions: Any) -> Any:
    """Sessions with random fields of users and steps, and features of items: a category, a number and a vector."""
    from mbcal.types import Catalog, Feature, Field, Fields, NumberFeature, SessionFields, VectorFeature

    draw = np.random.default_rng(0)
    device, country = (
        Field("device", "category", ("phone", "tablet", "tv", "web")),
        Field("country", "category", ("at", "de")),
    )
    context = Fields(
        (device, Field("hour", "number", mean=12, deviation=7), Field("battery", "number", mean=50, deviation=29))
    )
    steps = np.ones((*sessions.items.shape, context.width), np.float32)
    steps[..., context.columns["device"]] = draw.integers(1, 5, steps[..., :1].shape)
    for name in ("hour", "battery"):
        steps[..., context.columns[name].start] = draw.normal(size=steps.shape[:2])
    items = sessions.catalog.items
    features = {
        "category": Feature.single("category", [f"category {row % 30}" for row in range(len(items))]),
        "words": NumberFeature.create("words", draw.integers(50, 900, len(items)).tolist()),
        "embedding": VectorFeature.create("embedding", draw.normal(size=(len(items), LENGTH)).tolist()),
    }
    return dataclasses.replace(
        sessions,
        catalog=Catalog(items, features),
        context=steps * sessions.mask[..., None],
        user_features=draw.integers(1, 3, (len(sessions), 1)).astype(np.float32),
        fields=SessionFields(Fields((country,)), context),
    )


def model(folder: Path, seed: int, context: bool = False) -> tuple[Path, list[str], list[str]]:
    """Fit a small MBCAL agent on the generated newsfeed; return its folder, items and behaviours."""
    import mbcal

    if not (folder / "feed").exists():
        mbcal.prepare_newsfeed(folder / "feed", mbcal.NewsfeedConfig(2_000, 2_000))
    store = mbcal.Store.open(folder / "feed")
    sessions = described(store.sessions("train")) if context else store.sessions("train")
    agent = mbcal.MBCAL(features=tuple(sessions.catalog.features), epochs=1, seed=seed, device="cpu").fit(sessions)
    path = agent.save(folder / f"model-{seed}{'-in-context' * context}")
    return path, list(store.catalog.items), list(agent.domain.behaviours.names)


def requests(items: list[str], labels: list[str], sessions: int, context: bool = False, new_items: int = 0) -> list[bytes]:
    """HTTP requests to rank 200 candidates, one per session.

    Args:
        items: The catalogue.
        labels: The behaviours.
        sessions: Number of sessions.
        context: Whether requests have context and user features. There are more of them than the server caches.
        new_items: Candidates that the model does not know, with features; more of them than the server remembers, so that
            each is read as if it was sent for the first time.
    """
    draw = np.random.default_rng(0)
    messages = []
    for number in range(10 * sessions if context or new_items else sessions):
        picked = draw.choice(len(items), 220 - new_items, replace=False)
        history = [[items[row], labels[int(draw.integers(len(labels)))]] for row in picked[:20]]
        candidates: list[Any] = [items[row] for row in picked[20:]]
        for new in range(new_items):
            vector = draw.normal(size=LENGTH).round(6).tolist()
            features = {"category": "category 3", "words": 310, "embedding": vector}
            candidates.append({"item": f"new-{number}-{new}", "features": features})
        body: dict[str, Any] = {"history": history, "candidates": candidates, "k": 10, "session": f"s{number % sessions}"}
        if context:
            device = ("phone", "tablet", "tv", "web")[number % 4]
            body["context"] = {"device": device, "hour": number % 24, "battery": round(100 * draw.random(), 3)}
            body["user_features"] = {"country": ("at", "de")[number % 2]}
        content = json.dumps(body).encode()
        head = "POST /v1/rank HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(content)}\r\n\r\n"
        messages.append(head.encode() + content)
    return messages


def published(folder: Path, context: bool = False) -> tuple[list[str], list[str], list[str]]:
    """Publish a version; return the registry as command-line options, the items and the behaviours."""
    path, items, labels = model(folder, 0, context)
    where = ["--registry", str(folder / f"registry{'-in-context' * context}")]
    subprocess.run([*RUN, "registry", "publish", str(path), *where], check=True, stdout=subprocess.DEVNULL)
    return where, items, labels
