"""CPU of a request with two unknown items, each with a vector of 64 numbers, against one with names alone.

    python benchmarks/unknown_items.py

The application runs in this process without sockets, so that what is compared is what the service does: reading the request,
ranking, writing the decision log. Both kinds of requests are sent in turns; the table has medians of CPU time over turns. A
request has 200 candidates of a catalogue of 20,000 items, of a session that the service remembers; the model reads a
category, a number and the vector. The same new items are sent in every turn, as clients do until an update has learned them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from mbcal import MBCAL, Behaviours, Catalog, Feature, Sessions
from mbcal.decision_log.writer import DecisionLog
from mbcal.registry.registry import Registry
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.serving.state import MemoryStore
from mbcal.types import FIRST_ITEM_ROW, NumberFeature, VectorFeature

ITEMS, CANDIDATES, LENGTH = 20_000, 200, 64


def make_model(folder: Path) -> Registry:
    """A small MBCAL model of a random log: what it has learned does not matter here."""
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(ITEMS, LENGTH)).tolist()
    features = {
        "category": Feature.single("category", [f"category {k % 30}" for k in range(ITEMS)]),
        "words": NumberFeature.create("words", draw.integers(50, 900, ITEMS).tolist()),
        "embedding": VectorFeature.create("embedding", vectors),
    }
    catalog = Catalog(tuple(f"article-{k:06d}" for k in range(ITEMS)), features)
    count, horizon, history = 400, 10, 20
    sessions = Sessions(
        catalog,
        Behaviours(("skip", "click", "like"), (0.0, 1.0, 5.0)),
        items=draw.integers(FIRST_ITEM_ROW, catalog.n_rows, (count, horizon)).astype(np.int32),
        behaviours=draw.integers(0, 3, (count, horizon)).astype(np.uint8),
        length=np.full(count, horizon, np.int32),
        user=np.arange(count, dtype=np.int32),
        history_items=draw.integers(FIRST_ITEM_ROW, catalog.n_rows, (count, history)).astype(np.int32),
        history_behaviours=draw.integers(0, 3, (count, history)).astype(np.uint8),
        history_length=np.full(count, history, np.int32),
    )
    agent = MBCAL(features=tuple(features), epochs=1, gamma=0.9, device="cpu").fit(sessions)
    registry = Registry(folder / "registry")
    registry.publish(agent)
    return registry


def make_bodies(count: int, unknown: int) -> list[bytes]:
    """Requests of sessions of their own; the first candidates are unknown items with features."""
    draw = np.random.default_rng(unknown)
    bodies = []
    for number in range(count):
        names = [f"article-{k:06d}" for k in draw.permutation(ITEMS)[: CANDIDATES - unknown]]
        new = [
            {
                "item": f"new-{number}-{k}",
                "features": {
                    "category": "category 3",
                    "words": 310,
                    "embedding": draw.normal(size=LENGTH).round(6).tolist(),
                },
            }
            for k in range(unknown)
        ]
        history = [[f"article-{k:06d}", "click"] for k in draw.integers(0, ITEMS, 20)]
        request = {"history": history, "candidates": [*new, *names], "k": 10, "session": f"{unknown}-{number}"}
        bodies.append(json.dumps(request).encode())
    return bodies


async def post(app: App, body: bytes) -> int:
    """Send one request to the application; returns the status."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/v1/rank",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)  # type: ignore[arg-type]  # plain dicts for the typed ones of ASGI
    return statuses[0]


async def measure(registry: Registry, folder: Path, turns: int, requests: int) -> dict[int, list[float]]:
    """CPU microseconds per request of every turn, by the number of unknown items."""
    service = Service(registry, MemoryStore(), DecisionLog(folder / "log"), epsilon=0.1)
    await service.refresh_version()
    assert service.ranker is not None
    app, found = App(service), dict[int, list[float]]({0: [], 2: []})
    bodies = {unknown: make_bodies(requests, unknown) for unknown in found}
    for turn in range(turns + 1):
        for unknown, times in found.items():
            batch = bodies[unknown]
            began = time.process_time()
            for start in range(0, requests, 32):  # as concurrent as requests are, so that they share an fsync
                statuses = await asyncio.gather(*(post(app, body) for body in batch[start : start + 32]))
                assert set(statuses) == {200}, statuses
            if turn:  # in the first, sessions begin
                times.append((time.process_time() - began) / requests * 1e6)
    print(f"C kernel: {'yes' if service.ranker.uses_c else 'no'}")
    await service.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--requests", type=int, default=96)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        registry = make_model(Path(folder))
        found = asyncio.run(measure(registry, Path(folder), options.turns, options.requests))
    plain, unknown = (float(np.median(found[count])) for count in (0, 2))
    print(f"names alone           {plain:7.0f} us of CPU per request")
    print(f"two unknown items     {unknown:7.0f} us of CPU per request, {unknown / plain:.2f} times")


if __name__ == "__main__":
    main()
