"""Kills, full disks and concurrent writers: the live version stays valid."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mbcal.errors import OutputError
from mbcal.registry.registry import Registry
from mbcal.storage import atomic as folder


def test_concurrent_publishers_get_different_numbers(models: Path, registry: Registry) -> None:
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda _: registry.publish(models / "random", activate=True), range(8)))
    assert sorted(names) == registry.versions() == [f"v{number:06d}" for number in range(1, 9)]
    assert sorted([*registry.previous_versions(), registry.current() or ""]) == registry.versions()  # none was forgotten


PUBLISH = """
import sys
from mbcal.registry.registry import Registry
print(Registry(sys.argv[1]).publish(sys.argv[2], activate=True))
"""


def test_concurrent_processes_keep_the_pointer_valid(models: Path, registry: Registry) -> None:
    registry.publish(models / "random", activate=True)
    command = [sys.executable, "-c", PUBLISH, str(registry.path), str(models / "random")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    while any(process.poll() is None for process in running):
        assert registry.current() in registry.versions()
        time.sleep(0.001)
    names = [process.communicate()[0].strip() for process in running]
    assert sorted(names) == ["v000002", "v000003"]
    assert registry.open().name in names


KILLED = """
import json, os, signal, sys
from mbcal import agents
from mbcal.storage import artifacts as bundle
from mbcal.storage import atomic as folder
from mbcal.registry import pointer, publication, registry
owners = {"os": os, "folder": folder, "registry": registry, "publication": publication, "pointer": pointer, "bundle": bundle}
def killed(verb, path, argument, moment):
    owner, name, after = moment.split(":")
    real, calls_left = getattr(owners[owner], name), [int(after)]
    def count(*args, **kwargs):
        calls_left[0] -= 1
        if calls_left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(owners[owner], name, count)
    options = {"activate": True} if verb == "publish" else {}
    getattr(registry.Registry(path), verb)(argument, **options)
for job in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        killed(*job)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, job
"""


MOMENTS = [
    "publication:write_artifact:0",
    "bundle:file_entry:2",  # half of the files are written
    "bundle:write_manifest:0",
    "folder:fsync:1",
    "os:rename:0",
    "folder:fsync:7",  # renamed, but not yet flushed
    "registry:open_version:0",
    "registry:write_pointer:0",
    "pointer:write_atomic:0",
    "os:replace:0",
]


def kill_at_moments(moments: list[str], verb: str, argument: str | int, start: Path) -> dict[str, Registry]:
    """Copies of `start`, in each of which a process was killed at one of the moments."""
    registries = {moment: Registry(start.with_name(f"killed-{number}")) for number, moment in enumerate(moments)}
    for registry in registries.values():
        shutil.copytree(start, registry.path)
    jobs = [(verb, str(registry.path), argument, moment) for moment, registry in registries.items()]
    subprocess.run([sys.executable, "-c", KILLED, json.dumps(jobs)], check=True)
    return registries


def test_a_publisher_killed_anywhere_leaves_the_old_version_live(models: Path, registry: Registry) -> None:
    first = registry.publish(models / "popular", activate=True)
    before = (registry.path / "current.json").read_bytes()
    for moment, survivor in kill_at_moments(MOMENTS, "publish", str(models / "random"), registry.path).items():
        assert (survivor.path / "current.json").read_bytes() == before, moment
        assert survivor.open().name == first
        for name in survivor.versions():
            survivor.open(name)  # complete, or absent
        following = survivor.publish(models / "linucb", activate=True)  # no lock and no leftover is in the way
        assert survivor.open().name == following
        survivor.gc(1)
        assert not list((survivor.path / "versions").glob(".*")), moment
        assert survivor.rollback() == first


def test_a_gc_killed_anywhere_leaves_complete_versions(models: Path, registry: Registry) -> None:
    for _ in range(4):
        registry.publish(models / "random", activate=True)
    moments = ["os:rename:0", "os:rename:1", "pointer:write_atomic:0", "os:replace:0", "os:rmdir:1"]
    for moment, survivor in kill_at_moments(moments, "gc", 1, registry.path).items():
        assert survivor.current() == "v000004", moment
        for name in {*survivor.versions(), *survivor.previous_versions()}:
            survivor.open(name)
        survivor.gc(1)
        assert survivor.versions() == ["v000003", "v000004"]
        assert sorted(entry.name for entry in survivor.path.iterdir()) == [".lock", "current.json", "versions"]


@pytest.mark.parametrize("where", ["write_manifest", "fsync", "write_bytes"])
def test_a_full_disk_leaves_the_live_version(
    models: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    first = registry.publish(models / "random")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if where == "write_bytes":
            patch.setattr(Path, "write_bytes", full)
        else:
            patch.setattr(
                "mbcal.storage.artifacts.write_manifest" if where == "write_manifest" else "mbcal.storage.atomic.fsync", full
            )
        with pytest.raises(OutputError, match="the disk is full"):
            registry.publish(models / "random")
    assert registry.current() == first
    assert registry.versions() == [first]
    assert not list((registry.path / "versions").glob(".*"))


def test_write_atomic_syncs_before_it_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    real = folder.fsync
    monkeypatch.setattr(folder, "fsync", lambda path: (done.append(path.name), real(path)))
    folder.write_atomic(tmp_path / "current.json", b"{}")
    assert done[0].startswith(".current.json.partial-")
    assert done[1] == tmp_path.name
