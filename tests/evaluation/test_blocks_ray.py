"""Experiments and blocks of sessions on a real Ray cluster: the same as here, to the last bit, whoever is killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mbcal import (
    MBCAL,
    GRU4Rec,
    MBCALConfig,
    NetConfig,
    NewsfeedConfig,
    Sessions,
    Simulator,
    SimulatorConfig,
    Store,
    TrainingConfig,
    evaluate,
    prepare_newsfeed,
)
from mbcal.agents import AGENTS
from mbcal.distributed.engines.local import LocalEngine
from mbcal.environments.newsfeed.world import Newsfeed
from mbcal.errors import OptionError, StoreError
from mbcal.evaluation import blocks
from mbcal.evaluation.blocks import (
    CHANCE,
    SessionRange,
    estimate_value_in_blocks,
    evaluate_in_blocks,
    labels_in_blocks,
)
from mbcal.evaluation.diagnose import advantage_and_residual, dependence
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.evaluation.experiment.workers import execute_all, execute_on, prepare_on
from mbcal.evaluation.judges import TRUTH
from mbcal.evaluation.ope.estimate import estimate_value
from mbcal.evaluation.sampling import sample_sessions, sample_test_sessions
from mbcal.report.page_writer import write_report
from tests.support.clusters import address_of_cluster, gone
from tests.support.experiments import TINY, set_options

SMALL = {**TINY, "agents": ["mbcal", "random"], "seeds": 1}


class RunObserver:
    """Remembers the events, and calls a function at every step until it returns true."""

    def __init__(self, act: Callable[[], bool] = lambda: True) -> None:
        self.phases: list[tuple[Cell, str]] = []
        self.finished: list[Cell] = []
        self._act, self._has_acted = act, False

    def phase(self, cell: Cell, title: str, total: int | None) -> None:
        self.phases.append((cell, title))

    def advance(self, cell: Cell, amount: int) -> None:
        self._has_acted = self._has_acted or self._act()

    def done(self, cell: Cell) -> None:
        self.finished.append(cell)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run as this process makes it."""
    run = Run.create(tmp_path_factory.mktemp("here") / "run", experiment_config(SMALL), "cpu")
    run.prepare()
    execute_all(run, run.missing, 1, RunObserver())
    return finished(run)


def finished(run: Run) -> Run:
    run.write_metrics()
    write_report(run)
    return run


def assert_same(one: Run, other: Run) -> None:
    tables = sorted(file.name for file in (one.folder / "tables").iterdir())
    assert len(tables) > 5
    for name in ("metrics.jsonl", *(f"tables/{table}" for table in tables)):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes(), name
    for mine, theirs in zip(one.results(), other.results(), strict=True):
        assert mine.cell == theirs.cell
        assert all(np.array_equal(rewards, theirs.rewards[judge]) for judge, rewards in mine.rewards.items())


def workers() -> list[psutil.Process]:
    """Those that run a task of ours."""
    return [one for one in psutil.process_iter(["cmdline"]) if "ray::_run_task" in (one.info["cmdline"] or [""])[0]]


@pytest.mark.cluster
def test_a_grid_on_ray_makes_the_same_tables_though_a_worker_is_killed(here: Run, ray_engine: Any, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", experiment_config(SMALL), "cpu")
    prepare_on(ray_engine, run)
    killed: list[int] = []

    def kill() -> bool:
        for victim in workers()[:1]:  # none if both have just ended their task
            killed.append(victim.pid)
            victim.send_signal(signal.SIGKILL)
        return bool(killed)

    watch = RunObserver(kill)
    execute_on(ray_engine, run, run.missing, watch)
    assert len(killed) == 1
    assert sorted(watch.finished) == sorted(run.cells)
    assert {cell for cell, _ in watch.phases} <= set(run.cells)
    assert not list(run.folder.rglob(".*"))
    assert_same(here, finished(run))


@pytest.mark.cluster
def test_a_driver_killed_leaves_no_process_and_is_resumed_elsewhere(here: Run, ray_engine: Any, tmp_path: Path) -> None:
    options = ["--seeds", "1", "--agents", "mbcal,random", "--engine", "ray", "--workers", "2"]
    options += set_options({name: value for name, value in SMALL.items() if name not in ("agents", "seeds")})
    driver = start(["experiment", "newsfeed", "--out", "run", *options], tmp_path)
    assert driver.stderr is not None
    for line in driver.stderr:
        if line.startswith("1 of 5 done"):
            break
    family = {process.pid: process.name() for process in psutil.Process(driver.pid).children(recursive=True)}
    assert any("raylet" in name for name in family.values())
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    # two agents of Ray's own try for a minute to tell somebody that their cluster is gone, and go then
    ray_engine.agents_left = [pid for pid, name in family.items() if name.endswith("Agent")]
    assert len(ray_engine.agents_left) == 2
    assert all(gone(pid, 60) for pid in family if pid not in ray_engine.agents_left)
    run = Run.open(tmp_path / "run", "cpu")
    assert 0 < len(run.missing) < 5
    resumed = start(["experiment", "--resume", "run", "--engine", "ray", "--address", address_of_cluster()], tmp_path)
    said = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, said
    assert_same(here, run)


@pytest.mark.cluster
def test_a_driver_told_to_stop_stops_its_cluster(tmp_path: Path) -> None:
    driver = start(
        ["experiment", "newsfeed", "--preset", "laptop", "--out", "run", "--engine", "ray", "--workers", "1"], tmp_path
    )
    family: list[psutil.Process] = []
    while not any("ray::_run_task" in " ".join(process.cmdline()) for process in family):
        time.sleep(0.2)
        assert driver.poll() is None
        family = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGTERM)
    driver.communicate(timeout=30)
    assert driver.returncode == 128 + signal.SIGTERM
    assert all(gone(process.pid, 10) for process in family)


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "mbcal", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Feed:
    """A store, and models and a simulator fitted on it; a far-sighted one and a myopic one."""

    def __init__(self, folder: Path) -> None:
        self.data, self.far, self.near, self.users = (folder / name for name in ("feed", "far", "near", "users"))
        self.store = prepare_newsfeed(self.data, NewsfeedConfig(2500, 100))
        training, train = TrainingConfig(epochs=1, validation=0.0), self.store.sessions("train")
        net = NetConfig(hidden=8, embedding=8)
        self.agent = MBCAL(MBCALConfig(net=net, training=training), "cpu").fit(train)
        self.myopic = GRU4Rec(GRU4Rec.Config(net=net, training=training), "cpu").fit(train)
        longer = replace(training, epochs=6)  # so that users respond to what they are shown
        self.simulator = Simulator(SimulatorConfig(hidden=8, training=longer)).fit(self.store)
        self.agent.save(self.far)
        self.myopic.save(self.near)
        self.simulator.save(self.users)
        self.test: Sessions = self.store.sessions("test")


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed(tmp_path_factory.mktemp("feed"))


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """In small blocks, so that there are several."""
    monkeypatch.setattr(blocks, "CPU_BLOCK", 64)
    return LocalEngine() if request.param == "local" else request.getfixturevalue("ray_engine")


def test_roll_outs_by_blocks_earn_the_same(feed: Feed, engine: Any) -> None:
    users, world = SessionRange(feed.data, "test", 401, 3), Newsfeed.from_options(dict(feed.store.manifest["options"]))
    some = feed.test[sample_sessions(feed.test.user, 401, 3)]
    for model, agent in ((feed.far, feed.agent), (CHANCE, AGENTS["random"]().fit(some))):
        for judge, environment in ((feed.users, feed.simulator), (TRUTH, world)):
            whole = evaluate(agent, environment, some, epsilon=0.2, seed=3).rewards
            assert np.array_equal(evaluate_in_blocks(engine, users, model, judge, epsilon=0.2).rewards, whole)


def test_candidates_that_were_not_logged_are_drawn_alike(feed: Feed, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(engine, LocalEngine):
        pytest.skip("a worker elsewhere would have logged candidates all the same")
    read = Store.sessions
    monkeypatch.setattr(Store, "sessions", lambda *a: replace(read(*a), candidates=None))
    bare = replace(feed.test, candidates=None)
    whole = evaluate(feed.agent, feed.simulator, sample_test_sessions(bare, 200, 5), seed=5).rewards
    served = evaluate_in_blocks(engine, SessionRange(feed.data, "test", 200, 5), feed.far, feed.users)
    assert np.array_equal(served.rewards, whole)


def test_off_policy_estimates_by_blocks_are_the_same(feed: Feed, engine: Any) -> None:
    how: dict[str, Any] = {"epsilon": 0.3, "clip": 10.0, "values": "means", "resamples": 200}
    whole = estimate_value(feed.agent, feed.test, baseline=feed.myopic, seed=1, **how)
    assert estimate_value_in_blocks(engine, SessionRange(feed.data, seed=1), feed.far, feed.near, **how) == whole


def test_labels_by_blocks_are_the_same(feed: Feed, engine: Any) -> None:
    users = SessionRange(feed.data)
    whole, parts = advantage_and_residual(feed.agent, feed.test), labels_in_blocks(engine, users, feed.far)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert dependence(feed.agent, feed.test, 0, labels=parts) == pytest.approx(
        dependence(feed.agent, feed.test, 0), abs=1e-6
    )
    with pytest.raises(OptionError, match="near: holds a gru4rec agent"):
        labels_in_blocks(engine, users, feed.near)


def test_a_shard_that_is_missing_or_damaged_is_named(tmp_path: Path, feed: Feed, engine: Any) -> None:
    for name, rule in (
        ("damaged", "prepare the store again"),
        ("missing", "missing from the store; prepare the store again"),
    ):
        data = tmp_path / name
        shutil.copytree(feed.data, data)
        shard = next(data.glob("steps-test-*"))
        shard.write_bytes(b"\0" + shard.read_bytes()[1:]) if name == "damaged" else shard.unlink()
        with pytest.raises(StoreError, match=rf"{shard.name}: .*{rule}"):
            evaluate_in_blocks(engine, SessionRange(data), feed.far, feed.users)


def test_the_command_serves_by_blocks(feed: Feed, ray_engine: Any, tmp_path: Path) -> None:
    asked = [
        "evaluate",
        str(feed.far),
        "--data",
        str(feed.data),
        "--simulator",
        str(feed.users),
        "--json",
        "--sessions",
        "300",
    ]
    command = start([*asked, "--engine", "ray", "--address", address_of_cluster()], tmp_path)
    out, err = command.communicate(timeout=120)
    assert command.returncode == 0, err
    whole = evaluate(feed.agent, feed.simulator, feed.test[sample_sessions(feed.test.user, 300, 0)]).reward
    row, chance = json.loads(out)["rows"]
    assert (row["mean"], row["interval"]) == (whole.mean, [whole.low, whole.high])
    assert chance["gap"] != 0


@pytest.mark.cluster
def test_of_the_killed_driver_nothing_is_left_in_the_end(ray_engine: Any) -> None:
    assert all(gone(pid, 90) for pid in ray_engine.agents_left)
