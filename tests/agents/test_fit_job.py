"""A fit as a job: what it writes is what the agent itself would, and sessions go through a store unharmed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal import MBCAL, MBCALConfig, NetConfig, NewsfeedConfig, Store, TrainingConfig, load, prepare_newsfeed
from mbcal.agents.fit_job import FitJob, run_fit_job
from mbcal.config import to_dict
from mbcal.data.cutting import SessionConfig
from mbcal.data.store_writer import write_sessions
from mbcal.distributed.engines.local import LocalEngine
from mbcal.types import Sessions
from tests.support import batches, toys

CONFIG = MBCALConfig(net=NetConfig(hidden=8, embedding=8), training=TrainingConfig(epochs=2, batch=64))


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=300, items=100), SessionConfig(horizon=5, history=4))
    return tmp_path / "feed"


def job(feed: Path, name: str, **more: Any) -> FitJob:
    config = to_dict(CONFIG)
    return FitJob(feed, feed.parent / name, feed.parent / f".{name}", "mbcal", config, device="cpu", **more)


def files(path: Path) -> Any:
    return json.loads((path / "manifest.json").read_text())["files"]


class Listener:
    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase(self, title: str, total: int | None = None) -> None:
        self.phases.append(title)

    def advance(self, amount: int) -> None:
        assert amount > 0


def test_the_job_is_the_fit(feed: Path) -> None:
    listener = Listener()
    records = run_fit_job(LocalEngine(), job(feed, "model"), progress=listener)
    straight = MBCAL(CONFIG, "cpu").fit(Store.open(feed).sessions("train"))
    assert records == straight.records
    assert files(straight.save(feed.parent / "straight")) == files(feed.parent / "model")
    assert listener.phases[0].startswith("environment: epoch 1 of at most 2")
    assert "labels of advantage" in listener.phases
    assert not list(feed.parent.glob(".*"))  # no checkpoint is left
    warm = TrainingConfig(epochs=1, batch=32)
    run_fit_job(LocalEngine(), job(feed, "warm", warm_start=feed.parent / "model", training=warm))
    again = load(feed.parent / "model", "cpu").fit(Store.open(feed).sessions("train"), training=warm)
    assert files(again.save(feed.parent / "again")) == files(feed.parent / "warm")


@pytest.mark.parametrize("sessions", [batches.sessions(count=30), batches.sessions(count=5, history=0), toys.logged(20)])
def test_sessions_go_through_a_store(sessions: Sessions, tmp_path: Path) -> None:
    store = Store.open(write_sessions(tmp_path / "sessions", sessions))
    store.verify()
    again = dict(store.sessions("train").arrays())
    for name, array in sessions.arrays():
        if name not in ("propensities", "timestamps"):
            assert np.array_equal(again[name], array), name
            assert again[name].dtype == array.dtype
    assert store.catalog.items == sessions.catalog.items
    assert store.behaviours == sessions.behaviour_set
