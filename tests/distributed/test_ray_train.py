"""Fits on a real Ray cluster of two workers: the same model as one process, also after kills; errors instead of hangs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
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
from tests.support.clusters import WAIT_BOUND, address_of_cluster, processes_with, wait_for
from tests.support.fits import Deadly, job

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")]

SMALL = ["--hidden", "8", "--embedding", "8", "--epochs", "2", "--batch", "64"]


@pytest.fixture(scope="module")
def undisturbed(shop: Path, ray_engine: RayEngine) -> Path:
    run_fit_job(ray_engine, job(shop, "undisturbed"))
    return shop / "undisturbed"


def manifest(model: Path) -> dict[str, Any]:
    return json.loads((model / "manifest.json").read_text())  # type: ignore[no-any-return]


def require_equal(one: Path, other: Path) -> None:
    """The same losses within 1e-5, and the same weights but for rounding."""
    for name, record in manifest(one)["training"].items():
        for epoch, other_epoch in zip(record["curve"], manifest(other)["training"][name]["curve"], strict=True):
            assert epoch == pytest.approx(other_epoch, abs=1e-5, rel=1e-5)
    agents = [load(path, "cpu") for path in (one, other)]
    for name in agents[0].nets:
        weights, others = (state_to_arrays(agent.nets[name], None) for agent in agents)
        for key, value in weights.items():
            assert np.allclose(value, others[key], atol=1e-3), f"{name}/{key}"


def test_two_workers_fit_the_model_of_one(shop: Path, undisturbed: Path) -> None:
    require_equal(shop / "local", undisturbed)
    assert not list(shop.glob(".undisturbed*"))


def test_a_fit_whose_first_worker_is_killed_ends_the_same(shop: Path, undisturbed: Path, ray_engine: RayEngine) -> None:
    fit = job(shop, "disturbed", checkpoint_every=0.0)
    ray_engine.run_spmd(Deadly(fit, {0: 14}, shop))  # the worker that writes checkpoints; the next test loses the other
    assert (shop / "dead-0").exists()
    assert manifest(shop / "disturbed")["files"] == manifest(undisturbed)["files"]  # hashes: equal to the bit
    assert not fit.checkpoints.exists()


def test_a_damaged_shard_is_named(shop: Path, ray_engine: RayEngine) -> None:
    shutil.copytree(shop / "feed", shop / "damaged")
    shard = next((shop / "damaged").glob("sessions-train-*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreError, match=rf"{shard.name}: damaged \(hash mismatch\); prepare the store again"):
        run_fit_job(ray_engine, job(shop, "nothing", "damaged"))
    assert not (shop / "nothing").exists()


def test_workers_that_cannot_start_are_given_up_after_the_timeout(shop: Path, ray_engine: RayEngine) -> None:
    crowd = RayEngine(9, start_timeout=2.0)
    with crowd, pytest.raises(EngineError, match="9 workers of 1 CPU and 0 GPU could not be started in 2 seconds"):
        run_fit_job(crowd, job(shop, "nothing"))
    import ray  # after the engine, which sets where Ray listens

    wait_for(lambda: ray.available_resources().get("CPU") == 2)  # those that did start have ended


DRIVER = """
import sys
from pathlib import Path
from mbcal.distributed.engines.ray import RayEngine
from tests.support.fits import Deadly, job
shop = Path(sys.argv[1])
with RayEngine(2) as engine:
    engine.run_spmd(Deadly(job(shop, "driven", checkpoint_every=0.0), {1: 12}, shop / "driver", stuck=True))
"""


def test_a_fit_whose_driver_is_killed_resumes(shop: Path, undisturbed: Path, ray_engine: RayEngine) -> None:
    (shop / "driver").mkdir()
    environment = {**os.environ, "MBCAL_TEST_MARK": str(shop)}  # inherited by all it starts
    root = Path(__file__).parents[2]
    running = subprocess.Popen([sys.executable, "-c", DRIVER, str(shop)], cwd=root, env=environment)
    wait_for(lambda: (shop / "driver" / "dead-1").exists() or running.poll() is not None)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    wait_for(lambda: not processes_with("MBCAL_TEST_MARK", str(shop)))  # nothing it started is left
    again = job(shop, "driven", checkpoint_every=0.0)
    assert any(again.checkpoints.glob("[0-9]*"))
    run_fit_job(ray_engine, again)
    assert manifest(shop / "driven")["files"] == manifest(undisturbed)["files"]


def test_the_command_on_an_existing_cluster(shop: Path, ray_engine: RayEngine) -> None:
    command = [sys.executable, "-m", "mbcal", "fit", "feed", *SMALL, "--device", "cpu"]
    on_cluster = ["--engine", "ray", "--workers", "2", "--address", address_of_cluster()]
    options: dict[str, Any] = {"cwd": shop, "check": True, "capture_output": True, "text": True, "timeout": WAIT_BOUND}
    options["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *on_cluster, "--out", "on-cluster"], **options)
    assert "environment: epoch 1 of at most 2" in done.stderr  # a message of a worker
    assert "on-cluster: mbcal, fitted on" in done.stdout
    subprocess.run([*command, "--out", "here"], **options)
    require_equal(shop / "here", shop / "on-cluster")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, `feed`, and the model that one process fits on it, `local`."""
    folder = tmp_path_factory.mktemp("shop")
    prepare_newsfeed(folder / "feed", NewsfeedConfig(sessions=900, items=100), SessionConfig(horizon=5, history=4))
    run_fit_job(LocalEngine(), job(folder, "local"))
    return folder
