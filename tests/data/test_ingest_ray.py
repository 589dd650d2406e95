"""A log prepared on a real Ray cluster of two workers: the same store, also when workers are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from mbcal import SessionConfig, prepare
from mbcal.cli import app
from mbcal.distributed.engines.ray import RayEngine
from mbcal.errors import InputError
from tests.support.logs import content, write_csv
from tests.support.text_logs import HEADER, damaged, rows, table, text_log


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.data.shards.SHARD_STEPS", 5_000)


def test_the_command_makes_the_same_store(ray_engine: RayEngine, tmp_path: Path) -> None:
    paths = list(map(str, text_log(tmp_path)))
    columns = [f"--{column}={column}" for column in HEADER[:5]]
    for way in (["local"], ["ray", "--workers=2"]):
        options = [*paths, *columns, "--rewards=skip=0,click=1,like=5", f"--out={tmp_path / way[0]}", "--engine", *way]
        done = CliRunner().invoke(app, ["prepare", "table", *options])
        assert done.exit_code == 0, done.output
    assert content(tmp_path / "local") == content(tmp_path / "ray")


@pytest.mark.cluster
def test_the_tasks_of_killed_workers_are_done_again(ray_engine: RayEngine, tmp_path: Path) -> None:
    source = table([write_csv(tmp_path / f"{k}.csv", rows(40_000, k), HEADER) for k in range(4)])
    prepare(source, tmp_path / "here", SessionConfig(max_rejected=0.9))
    with Assassin(tmp_path) as assassin:
        prepare(source, tmp_path / "spread", SessionConfig(max_rejected=0.9), engine=ray_engine)
    assert assassin.killed == ["reading", "cutting"]
    assert content(tmp_path / "here") == content(tmp_path / "spread")
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_file_is_named_and_nothing_left(ray_engine: RayEngine, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^the log cannot be read: .*b\.parquet"):
        prepare(damaged(tmp_path), tmp_path / "store", engine=ray_engine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


class Assassin:
    """Kills, with -9, one worker that reads and one that cuts, each in the middle of its task."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.killed = folder, list[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._lurk)

    def __enter__(self) -> Assassin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _lurk(self) -> None:
        stages: dict[str, Callable[[Path], bool]] = {
            "reading": lambda worker_dir: (worker_dir / "work.duckdb").exists(),
            "cutting": lambda worker_dir: (worker_dir / "store").exists(),
        }
        for stage, begun in stages.items():
            while stage not in self.killed and not self._over.is_set():
                for worker_dir in self.folder.glob(".spread.partial-*/scratch/worker-*"):
                    if begun(worker_dir) and (worker := owner(worker_dir)):
                        os.kill(worker, signal.SIGKILL)
                        self.killed.append(stage)
                        break
                time.sleep(0.002)


def owner(worker_dir: Path) -> int | None:
    """The worker that has a file of this folder open."""
    for worker in psutil.Process().children(recursive=True):
        try:
            if any(Path(file.path).is_relative_to(worker_dir) for file in worker.open_files()):
                return int(worker.pid)
        except psutil.Error:
            continue
    return None
