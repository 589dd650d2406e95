"""Engines: what they promise, on this machine and on a real Ray cluster of two workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from mbcal.distributed.engines import Engine, WorkerResources, create_engine
from mbcal.distributed.engines.local import LocalEngine
from mbcal.errors import EngineError, OptionError, StoreError
from tests.support import jobs
from tests.support.clusters import address_of_cluster, gone


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return LocalEngine() if request.param == "local" else request.getfixturevalue("ray_engine")


def test_every_task_is_done_once_and_heard(engine: Engine) -> None:
    heard: list[tuple[int, Any]] = []
    made = dict(engine.map_unordered(jobs.square, range(7), on_message=lambda number, what: heard.append((number, what))))
    assert made == {number: number * number for number in range(7)}
    assert all(what == f"squaring {number}" for number, what in heard)
    assert dict(engine.map_unordered(jobs.square, [])) == {}
    if isinstance(engine, LocalEngine):
        assert len(heard) == 7  # far away, what is said last may come after the result


def test_what_a_job_raises_is_raised_as_itself(engine: Engine) -> None:
    with pytest.raises(StoreError, match=r"^shard 3: damaged; prepare the store again$"):
        list(engine.map_unordered(jobs.refuse, range(9)))
    with pytest.raises(ZeroDivisionError, match="by nothing"):
        list(engine.map_unordered(jobs.stumble, range(9)))


def test_engines_are_named_and_wrong_names_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with create_engine("local", 4) as here:
        assert here.workers == 1
    for name, address, rule in (
        ("rey", None, r"engine: 'rey' is unknown.*'ray'"),
        ("local", "auto", "address: .*--engine ray"),
    ):
        with pytest.raises(OptionError, match=rule):
            create_engine(name, 2, address)
    with pytest.raises(OptionError, match="workers"):
        create_engine("ray", 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"not installed; pip install 'mbcal\[ray\]'"), create_engine("ray", 2):
        pass


def test_the_library_does_not_import_ray() -> None:
    script = "import sys, mbcal.cli, mbcal.evaluation.experiment.workers, mbcal.distributed.engines.ray; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_lost_worker_costs_its_task_only(ray_engine: Any, tmp_path: Path) -> None:
    tasks = [(str(tmp_path), number) for number in range(5)]
    assert dict(ray_engine.map_unordered(jobs.die_once, tasks)) == dict(enumerate(range(5)))
    assert [tried.name for tried in tmp_path.iterdir()] == ["1"]


def test_a_task_that_always_loses_its_worker_is_given_up(ray_engine: Any) -> None:
    with pytest.raises(EngineError, match=r"task 0 lost its worker 4 times .*more memory"):
        list(ray_engine.map_unordered(jobs.die_always, range(1)))


def test_without_resources_there_is_an_end_and_a_sentence(ray_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "patience", 2.0)
    begin = time.monotonic()
    with pytest.raises(EngineError, match=r"no worker could be had in 2 seconds for a task of 1 CPU and 8 GPU; .* 2 CPU"):
        list(ray_engine.map_unordered(jobs.square, range(2), WorkerResources(gpus=8)))
    assert time.monotonic() - begin < 15


def test_nothing_is_left_running_after_a_failure_or_an_interrupt(ray_engine: Any) -> None:
    said: list[int] = []

    def interrupt(_: int, pid: int) -> None:
        said.append(pid)
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(ray_engine.map_unordered(jobs.sleep, [60, 60, 60], on_message=interrupt))
    assert all(gone(pid, 10) for pid in said)
    first = next(each := ray_engine.map_unordered(jobs.sleep, [0, 60]))
    each.close()  # somebody who stops listening
    assert first[0] == 0
    assert not [
        process for process in psutil.Process().children(recursive=True) if "ray::_do" in (process.cmdline() or [""])[0]
    ]


def test_nodes_must_be_there_have_this_version_and_see_the_files(
    ray_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mbcal.distributed.engines import ray as module

    address, here = address_of_cluster(), os.getpid()
    shared = tmp_path / "manifest.json"
    shared.write_text("{}")
    with module.RayEngine(address=address) as engine:
        assert engine.workers == 2
        engine.require_shared_file(shared)
        with pytest.raises(EngineError, match="no such file"):
            engine.require_shared_file(tmp_path / "missing")
        for seen, rule in ((None, "does not see this file"), ("other", "sees another file")):
            monkeypatch.setattr(module, "_opening", lambda _, seen=seen: "mine" if os.getpid() == here else seen)
            with pytest.raises(EngineError, match=f"manifest.json: node .* {rule}.*all nodes mount"):
                engine.require_shared_file(shared)
    monkeypatch.setattr(module, "_version", lambda: "0.0")
    with pytest.raises(EngineError, match=r"has mbcal 0\.0, this machine .* same version"), module.RayEngine(2, address):
        pass
    monkeypatch.setattr(module, "_version", lambda: 1 / 0)
    with pytest.raises(EngineError, match=r"cannot run mbcal .* install mbcal"), module.RayEngine(2, address):
        pass
    assert dict(ray_engine.map_unordered(jobs.square, [3])) == {0: 9}  # the cluster was somebody else's and is still there


def test_nobody_at_the_address_is_said_at_once(tmp_path: Path) -> None:
    begin = time.monotonic()
    arguments = ["-m", "mbcal", "experiment", "newsfeed", "--out", "run", "--engine", "ray", "--address", "127.0.0.1:1"]
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "mbcal: ray: no cluster can be had at 127.0.0.1:1 ([Errno 111] Connection refused)\n"
    assert time.monotonic() - begin < 30


def test_a_cluster_of_our_own_listens_to_nobody_else(ray_engine: Any) -> None:
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    heard = [one.laddr for process in family for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert heard
    assert {where.ip.removeprefix("::ffff:") for where in heard} == {"127.0.0.1"}
