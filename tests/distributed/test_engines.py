"""The contract of engines, on the local engine and on a real Ray cluster of two workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from mbcal.distributed.engines import Engine, WorkerResources, create_engine
from mbcal.distributed.engines.local import LocalEngine
from mbcal.errors import EngineError, OptionError, StoreError
from tests.support import jobs
from tests.support.clusters import TASK_TITLE, WAIT_BOUND, address_of_cluster, gone, is_running


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return LocalEngine() if request.param == "local" else request.getfixturevalue("ray_engine")


def test_every_task_runs_once_and_its_messages_arrive(engine: Engine) -> None:
    messages: list[tuple[int, Any]] = []
    results = list(engine.map_unordered(jobs.square, range(7), on_message=lambda *message: messages.append(message)))
    assert sorted(results) == [(number, number * number) for number in range(7)]
    assert set(messages) <= {(number, f"squaring {number}") for number in range(7)}
    assert len(set(messages)) == len(messages)
    assert dict(engine.map_unordered(jobs.square, [])) == {}
    if isinstance(engine, LocalEngine):
        assert len(messages) == 7  # on Ray the last messages may come after the result


def test_errors_of_a_job_keep_their_type(engine: Engine) -> None:
    with pytest.raises(StoreError, match=r"^shard 3: damaged; prepare the store again$"):
        list(engine.map_unordered(jobs.refuse, range(9)))
    with pytest.raises(ZeroDivisionError, match="by nothing"):
        list(engine.map_unordered(jobs.stumble, range(9)))


def test_engines_are_named_and_wrong_names_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with create_engine("local", 4) as local:
        assert local.workers == 1
    for name, address, message in (
        ("rey", None, r"engine: 'rey' is unknown.*'ray'"),
        ("local", "auto", "address: .*--engine ray"),
    ):
        with pytest.raises(OptionError, match=message):
            create_engine(name, 2, address)
    with pytest.raises(OptionError, match="workers"):
        create_engine("ray", 0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"not installed; pip install 'mbcal\[ray\]'"), create_engine("ray", 2):
        pass


def test_the_library_does_not_import_ray() -> None:
    modules = "mbcal.cli, mbcal.evaluation.experiment.workers, mbcal.distributed.engines.ray"
    script = f"import sys, {modules}; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_lost_worker_costs_its_task_only(ray_engine: Any, tmp_path: Path) -> None:
    tasks = [(str(tmp_path), number) for number in range(5)]
    assert dict(ray_engine.map_unordered(jobs.die_once, tasks)) == dict(enumerate(range(5)))
    assert [file.name for file in tmp_path.iterdir()] == ["1"]


def test_a_task_that_always_loses_its_worker_is_given_up(ray_engine: Any) -> None:
    with pytest.raises(EngineError, match=r"task 0 lost its worker 4 times .*more memory"):
        list(ray_engine.map_unordered(jobs.die_always, range(1)))


def test_a_task_without_a_worker_is_given_up_after_the_timeout(ray_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "start_timeout", 2.0)
    with pytest.raises(
        EngineError, match=r"no free worker in 2 seconds for a task of 1 CPU and 8 GPU; .* has 2 CPU and 0 GPU"
    ):
        list(ray_engine.map_unordered(jobs.square, range(2), WorkerResources(gpus=8)))


def test_nothing_is_left_running_after_a_failure_or_an_interrupt(ray_engine: Any) -> None:
    workers: list[int] = []

    def interrupt(_: int, pid: int) -> None:
        workers.append(pid)
        if len(workers) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(ray_engine.map_unordered(jobs.sleep, [60, 60, 60], on_message=interrupt))
    assert all(gone(pid, 10) for pid in workers)
    results = ray_engine.map_unordered(jobs.sleep, [0, 60])
    assert next(results)[0] == 0
    results.close()  # a caller that does not want the rest
    processes = [process for process in psutil.Process().children(recursive=True) if is_running(process.pid)]
    assert not [process for process in processes if TASK_TITLE in (process.cmdline() or [""])[0]]


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
        for on_node, message in ((None, "does not see this file"), ("other", "sees another file")):
            monkeypatch.setattr(
                module, "file_fingerprint", lambda _, here=here, on_node=on_node: here if os.getpid() == here else on_node
            )
            with pytest.raises(EngineError, match=f"manifest.json: node .* {message}.*all nodes mount"):
                engine.require_shared_file(shared)
    monkeypatch.setattr(module, "installed_version", lambda: "0.0")
    with pytest.raises(EngineError, match=r"has mbcal 0\.0, this machine .* same version"), module.RayEngine(2, address):
        pass
    monkeypatch.setattr(module, "installed_version", lambda: 1 / 0)
    with pytest.raises(EngineError, match=r"cannot run mbcal .* install mbcal"), module.RayEngine(2, address):
        pass
    assert dict(ray_engine.map_unordered(jobs.square, [3])) == {0: 9}  # the cluster is still there


def test_an_address_without_a_cluster_is_an_error_not_a_long_wait(tmp_path: Path) -> None:
    arguments = ["-m", "mbcal", "experiment", "newsfeed", "--out", "run", "--engine", "ray", "--address", "127.0.0.1:1"]
    done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_BOUND)
    assert done.returncode == 2
    assert done.stderr == "mbcal: ray: no cluster at 127.0.0.1:1 ([Errno 111] Connection refused)\n"


def test_a_cluster_started_here_listens_on_the_loopback_only(ray_engine: Any) -> None:
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    connections = [connection for process in processes for connection in process.net_connections("tcp")]
    listening = {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
