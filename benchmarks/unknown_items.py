"""CPU of a request with context and two unknown items, each with a vector of 64 numbers, against the same without.

    python benchmarks/unknown_items.py

The application runs in this process without sockets, so that what is compared is what the service does: reading the request,
ranking, writing the decision log. All kinds of requests are sent in turns, to one model; the table has medians of CPU time
over turns. A request has 200 candidates of a catalogue of 20,000 items, of a session that the service remembers; the model
reads a category, a number and the vector of items, and two fields of steps. Items sent again are the same in every turn, as
clients send them until an update has learned them; items sent for the first time differ in every request of every turn.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from mbcal import MBCAL, Behaviours, Catalog, Feature, Sessions
from mbcal.decision_log.writer import DecisionLog
from mbcal.registry.registry import Registry
from mbcal.serving.memory_state import MemoryStore
from mbcal.serving.server import App
from mbcal.serving.service import Service
from mbcal.types import FIRST_ITEM_ROW, Field, Fields, NumberFeature, SessionFields, VectorFeature

ITEMS, CANDIDATES, LENGTH = 20_000, 200, 64
KINDS = {
    "names alone": (False, 0, False),
    "context": (True, 0, False),
    "two unknown items, sent again": (False, 2, False),
    "two unknown items, first time": (False, 2, True),
    "context and two, sent again": (True, 2, False),
    "context and two, first time": (True, 2, True),
}
"""Kind of request -> whether it has context, its unknown items, whether these are new in every turn."""


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
    context = Fields((Field("device", "category", ("phone", "tv", "web")), Field("hour", "number", mean=12, deviation=7)))
    steps = np.ones((count, horizon, context.width), np.float32)
    steps[..., context.columns["hour"].start] = draw.normal(size=(count, horizon))
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
        context=steps,
        fields=SessionFields(Fields(), context),
    )
    agent = MBCAL(features=tuple(features), epochs=1, gamma=0.9, device="cpu").fit(sessions)
    registry = Registry(folder / "registry")
    registry.publish(agent)
    return registry


def make_bodies(kind: str, count: int, turn: int) -> list[bytes]:
    """Requests of sessions of their own; the first candidates are unknown items with features."""
    in_context, unknown, is_first = KINDS[kind]
    draw = np.random.default_rng(turn if is_first else 0)
    bodies = []
    for number in range(count):
        names = [f"article-{k:06d}" for k in draw.permutation(ITEMS)[: CANDIDATES - unknown]]
        new = [
            {
                "item": f"new-{turn if is_first else 0}-{number}-{k}",
                "features": {
                    "category": "category 3",
                    "words": 310,
                    "embedding": draw.normal(size=LENGTH).round(6).tolist(),
                },
            }
            for k in range(unknown)
        ]
        history = [[f"article-{k:06d}", "click"] for k in range(20)]
        request = {"history": history, "candidates": [*new, *names], "k": 10, "session": f"{kind}-{number}"}
        if in_context:
            request["context"] = {"device": ("phone", "tv", "web")[number % 3], "hour": round(24 * draw.random(), 2)}
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


async def measure(registry: Registry, folder: Path, turns: int, requests: int) -> dict[str, list[float]]:
    """CPU microseconds per request of every turn, by kind of request."""
    service = Service(registry, MemoryStore(), DecisionLog(folder / "log"), epsilon=0.1)
    await service.refresh_version()
    assert service.ranker is not None
    gc.freeze()  # as `serving.run` does
    gc.set_threshold(20_000)
    app, found = App(service), {kind: list[float]() for kind in KINDS}
    for turn in range(turns + 1):
        for kind, times in found.items():
            batch = make_bodies(kind, requests, turn)
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
    """Parse the options, measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--requests", type=int, default=96)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        registry = make_model(Path(folder))
        found = asyncio.run(measure(registry, Path(folder), options.turns, options.requests))
    plain = float(np.median(found["names alone"]))
    for kind, times in found.items():
        print(f"{kind:32} {np.median(times):6.0f} us of CPU per request, {np.median(times) / plain:.2f} times")


if __name__ == "__main__":
    main()
