"""Fits on a real Ray cluster of two workers: the same model as here, whoever is killed, and an end whatever is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal import NewsfeedConfig, load, prepare_newsfeed
from mbcal.agents.fit_job import run_fit_job
from mbcal.data.cutting import SessionConfig
from mbcal.distributed.engines.local import LocalEngine
from mbcal.distributed.engines.ray import RayEngine
from mbcal.errors import EngineError, StoreError
from mbcal.training.state import state_to_arrays
from tests.support.fits import Deadly, job

psutil = pytest.importorskip("psutil", reason="tells which processes are left")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")

SMALL = ["--hidden", "8", "--embedding", "8", "--epochs", "2", "--batch", "64"]
BOUND = 300.0
"""Seconds in which everything here must have an end, on a busy machine."""


@pytest.fixture(scope="module")
def undisturbed(shop: Path, ray_engine: RayEngine) -> Path:
    run_fit_job(ray_engine, job(shop, "undisturbed"))
    return shop / "undisturbed"


def said(model: Path, what: str) -> Any:
    return json.loads((model / "manifest.json").read_text())[what]


def require_equal(one: Path, other: Path) -> None:
    """The same losses within 1e-5, and so the same weights but for rounding."""
    for name, curve in said(one, "curves").items():
        for mine, theirs in zip(curve, said(other, "curves")[name], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    agents = [load(path, "cpu") for path in (one, other)]
    for name in agents[0].nets:
        weights, others = (state_to_arrays(agent.nets[name], None) for agent in agents)
        for key, value in weights.items():
            assert np.allclose(value, others[key], atol=1e-3), f"{name}/{key}"


def test_two_workers_make_the_model_of_one(shop: Path, undisturbed: Path) -> None:
    require_equal(shop / "local", undisturbed)
    assert not list(shop.glob(".undisturbed*"))


def test_killed_workers_cost_what_came_after_the_last_checkpoint(
    shop: Path, undisturbed: Path, ray_engine: RayEngine
) -> None:
    fit = job(shop, "disturbed", checkpoint_every=0.0)
    ray_engine.run_spmd(Deadly(fit, {1: 12, 0: 20}, shop))
    assert (shop / "dead-1").exists()
    assert (shop / "dead-0").exists()
    assert said(shop / "disturbed", "files") == said(undisturbed, "files")  # to the bit
    assert not fit.checkpoints.exists()


def test_a_damaged_shard_is_named_in_one_sentence(shop: Path, ray_engine: RayEngine) -> None:
    shutil.copytree(shop / "feed", shop / "damaged")
    shard = next((shop / "damaged").glob("sessions-train-*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    begun = time.monotonic()
    with pytest.raises(StoreError, match=rf"{shard.name}: damaged \(hash mismatch\); prepare the store again"):
        run_fit_job(ray_engine, job(shop, "nothing", "damaged"))
    assert time.monotonic() - begun < BOUND
    assert not (shop / "nothing").exists()


def test_workers_that_cannot_be_had_are_not_waited_for_forever(shop: Path, ray_engine: RayEngine) -> None:
    crowd = RayEngine(9, patience=2.0)
    begun = time.monotonic()
    with crowd, pytest.raises(EngineError, match="9 workers of 1 CPU and 0 GPU could not be started in 2 seconds"):
        run_fit_job(crowd, job(shop, "nothing"))
    assert time.monotonic() - begun < BOUND
    import ray  # not before the engine has: it says where Ray listens

    _wait_for(lambda: ray.available_resources().get("CPU") == 2)  # nobody is left of those that came


DRIVER = """
import sys
from pathlib import Path
from mbcal.distributed.engines.ray import RayEngine
from tests.support.fits import Deadly, job
shop = Path(sys.argv[1])
with RayEngine(2) as engine:
    engine.run_spmd(Deadly(job(shop, "driven", checkpoint_every=0.0), {1: 12}, shop / "driver", stuck=True))
"""


def test_the_driver_is_killed_and_goes_on(shop: Path, undisturbed: Path, ray_engine: RayEngine) -> None:
    (shop / "driver").mkdir()
    environment = {**os.environ, "MBCAL_TEST_MARK": str(shop)}  # inherited by all it starts
    root = Path(__file__).parents[2]
    running = subprocess.Popen([sys.executable, "-c", DRIVER, str(shop)], cwd=root, env=environment)
    _wait_for(lambda: (shop / "driver" / "dead-1").exists() or running.poll() is not None)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    _wait_for(lambda: not _marked(str(shop)))  # nothing it started is left
    again = job(shop, "driven", checkpoint_every=0.0)
    assert any(again.checkpoints.glob("[0-9]*"))
    run_fit_job(ray_engine, again)
    assert said(shop / "driven", "files") == said(undisturbed, "files")


def test_the_command_on_a_cluster_that_is_there(shop: Path, ray_engine: RayEngine) -> None:
    command = [sys.executable, "-m", "mbcal", "fit", "feed", *SMALL, "--device", "cpu"]
    import ray  # not before the engine has: it says where Ray listens

    there = ["--engine", "ray", "--workers", "2", "--address", ray.get_runtime_context().gcs_address]
    told = {"cwd": shop, "check": True, "capture_output": True, "text": True, "timeout": BOUND}
    told["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *there, "--out", "there"], **told)
    assert "environment: epoch 1 of at most 2" in done.stderr  # what a worker says is heard here
    assert "there: mbcal, fitted on" in done.stdout
    subprocess.run([*command, "--out", "here"], **told)
    require_equal(shop / "here", shop / "there")


def _wait_for(happened: Any) -> None:
    deadline = time.monotonic() + BOUND
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _marked(mark: str) -> list[Any]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MBCAL_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several shards' worth of users, and the model one process makes of it."""
    folder = tmp_path_factory.mktemp("shop")
    prepare_newsfeed(folder / "feed", NewsfeedConfig(sessions=900, items=100), SessionConfig(horizon=5, history=4))
    run_fit_job(LocalEngine(), job(folder, "local"))
    return folder
