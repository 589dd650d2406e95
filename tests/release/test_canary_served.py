"""Canaries in the generated newsfeed, with a real server and its watcher: promoted if better, withdrawn if worse."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import mbcal
from mbcal.agents import agent_class
from mbcal.decision_log import Decision, read_log
from mbcal.environments.candidates import session_candidates
from mbcal.registry.registry import Registry
from tests.support.servers import serving

BATCH, STEPS, MOST = 40, 2, 40
"""Sessions served at a time, steps of each, and batches until a test gives up."""


class Readers:
    """Users of the newsfeed who are served by a server, some at a time."""

    def __init__(self, store: mbcal.Store, port: int) -> None:
        self.world = mbcal.Newsfeed.from_options(store.manifest["options"])
        self.sessions = store.sessions("train")
        self.candidates = torch.from_numpy(session_candidates(self.sessions, 0))
        self.noise = torch.Generator().manual_seed(0)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self.served = 0

    def post(self, path: str, batch: list[dict[str, object]]) -> list[dict[str, object]]:
        answer = self.http.post(path, json={"batch": batch})
        assert answer.status_code == 200, answer.text
        answers: list[dict[str, object]] = answer.json()["answers"]
        return answers

    def serve(self) -> None:
        """Serve one session each to the next users."""
        rows = np.arange(self.served, self.served + BATCH) % len(self.sessions)
        name_of, behaviours = self.sessions.catalog.name_of, self.world.behaviours
        state = self.world.begin(*self.sessions[rows].tensors().history)
        for _ in range(STEPS):
            answers = self.post(
                "/v1/rank",
                [
                    {
                        "candidates": [name_of(int(item)) for item in self.candidates[row] if item],
                        "k": 1,
                        "session": f"session {self.served + place}",
                        "user": f"user {self.served + place}",  # time runs too fast for users to come again
                    }
                    for place, row in enumerate(rows)
                ],
            )
            items = self.sessions.catalog.rows_of([answer["items"][0]["item"] for answer in answers])  # type: ignore[index]
            behaviour, state = self.world.respond(state, torch.from_numpy(items), torch.rand(BATCH, generator=self.noise))
            given = [behaviours.names[int(label)] for label in behaviour]
            self.post(
                "/v1/feedback",
                [{"decision": a["decision"], "behaviour": label} for a, label in zip(answers, given, strict=True)],
            )
        self.served += BATCH

    def wait_for(self, live: str, canary: str | None) -> None:
        """Wait until the server ranks with these versions."""
        for _ in range(400):
            stats = self.http.get("/v1/stats").json()
            if (stats["live"], stats["canary"]) == (live, canary):
                return
            time.sleep(0.05)
        raise AssertionError(f"{stats['live']}, {stats['canary']} instead of {live}, {canary}")

    def serve_while_a_canary_runs(self, registry: Registry) -> None:
        for number in range(MOST):
            if registry.canary() is None:
                return
            self.serve()
            # the watcher of a busy machine looks late, and readers go on meanwhile
            time.sleep(0.6 if number < MOST // 2 else 4)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mbcal.Store:
    return mbcal.prepare_newsfeed(
        tmp_path_factory.mktemp("newsfeed") / "feed",
        mbcal.NewsfeedConfig(sessions=1200, items=120),
        mbcal.SessionConfig(horizon=STEPS, history=2),
    )


@pytest.fixture
def registry(store: mbcal.Store, tmp_path: Path) -> Registry:
    """Version 1 shows random items and is live; version 2 shows what pleases most users; version 3 is as 1."""
    registry = Registry(tmp_path / "registry")
    for name in ("random", "popular", "random"):
        kind = agent_class(name)
        registry.publish(kind(kind.Config(), "cpu").fit(store.sessions("train")), activate=not registry.versions())
    return registry


@pytest.fixture
def readers(store: mbcal.Store, registry: Registry, tmp_path: Path) -> Iterator[Readers]:
    options = ["--canary", "0.5", "--epsilon", "0", "--lifetime", "1", "--promote-after", "40", "--canary-min-days", "0"]
    options += ["--user-loss", "1"]  # every reader comes once
    with serving(registry, "--log", str(tmp_path / "log"), *options) as (process, port):
        readers = Readers(store, port)
        with readers.http:
            yield readers
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children  # the watcher
    for _ in range(200):  # it ends with its server, which was killed
        if not any(Path(f"/proc/{child}").exists() and os.getpgid(int(child)) for child in children):
            return
        time.sleep(0.05)
    raise AssertionError("the watcher outlived its server")


def test_the_better_canary_is_promoted_and_the_worse_withdrawn(readers: Readers, registry: Registry, tmp_path: Path) -> None:
    registry.start_canary("v000002")
    readers.wait_for("v000001", "v000002")
    readers.serve_while_a_canary_runs(registry)
    assert (registry.current(), registry.canary()) == ("v000002", None)
    readers.wait_for("v000002", None)
    registry.start_canary("v000003")
    readers.wait_for("v000002", "v000003")
    readers.serve_while_a_canary_runs(registry)
    assert (registry.current(), registry.canary()) == ("v000002", None)
    assert registry.pointer().withdrawn["v000003"].startswith("earns less: -")
    decisions = [record for record in read_log(tmp_path / "log") if isinstance(record, Decision)]
    lost = {decision.session for decision in decisions if decision.version == "v000003"}
    assert 20 <= len(lost) <= 500  # most began while the first were not finished yet
    versions: dict[str, set[str]] = {}
    for decision in decisions:
        versions.setdefault(decision.session, set()).add(decision.version)
    assert sum(len(names) > 1 for names in versions.values()) <= BATCH  # only those that a decision interrupted
