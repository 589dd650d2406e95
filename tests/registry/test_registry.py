"""Publishing, opening, activating, rolling back and removing versions."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mbcal import load
from mbcal.agents import AGENTS
from mbcal.errors import ModelError, OptionError, OutputError
from mbcal.registry import publication
from mbcal.registry import registry as registry_module
from mbcal.registry.registry import Registry
from mbcal.registry.updates import read_updates
from mbcal.registry.version import Version, open_version
from mbcal.scoring.backend import to_numpy
from tests.support import batches
from tests.support.agents import offered, scores_along

OPEN_WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
import numpy as np
from mbcal.registry.registry import Registry
inputs = np.load(sys.argv[2])
results = {}
for name in Registry(sys.argv[1]).versions():
    version = Registry(sys.argv[1]).open(name)
    state = version.scorer.begin(*(inputs[key] for key in ("user", "history_items", "history_behaviours", "history_length")))
    scores = []
    for step in range(inputs["items"].shape[1]):
        scores.append(version.scorer.score(state, inputs["candidates"]))
        state = version.scorer.observe(state, inputs["items"][:, step], inputs["behaviours"][:, step])
    results[name] = np.stack(scores, 1)
np.savez(sys.argv[3], **results)
"""


def test_every_agent_ranks_without_torch_as_with_it(models: Path, registry: Registry, tmp_path: Path) -> None:
    published = {registry.publish(models / name, activate=False): name for name in (*AGENTS, "by-id")}
    known, candidates = batches.sessions(count=12), offered(12)
    np.savez(tmp_path / "inputs.npz", candidates=candidates, **dict(known.arrays()))
    files = [str(tmp_path / "inputs.npz"), str(tmp_path / "scores.npz")]
    subprocess.run([sys.executable, "-c", OPEN_WITHOUT_TORCH, str(registry.path), *files], check=True)
    results = np.load(tmp_path / "scores.npz")
    assert list(results) == list(published) == registry.versions()
    for version, name in published.items():
        agent = load(registry.path / "versions" / version, "cpu")  # a version is a model, to rank by or to go on from
        assert np.allclose(results[version], scores_along(agent, known, candidates).numpy(), atol=1e-5), name
        opened = registry.open(version)
        assert (opened.seen == agent.seen()).all()
        assert opened.catalog.items == agent.domain.catalog.items
        assert (opened.behaviours, opened.horizon, opened.history) == (agent.domain.behaviours, 6, 4)
        assert opened.manifest["agent"] == agent.name
        for file in ("weights.safetensors", "optimiser.safetensors", "items.parquet"):
            assert (models / name / file).read_bytes() == (opened.path / file).read_bytes()


def test_a_version_warms_an_agent(models: Path, registry: Registry) -> None:
    name = registry.publish(models / "mbcal")
    more = batches.sessions(count=100, seed=4)
    direct, by_version = (load(path, "cpu").fit(more) for path in (models / "mbcal", registry.open(name).path))
    known = batches.sessions(count=12)
    assert (scores_along(direct, known, offered(12)) == scores_along(by_version, known, offered(12))).all()


def test_publish_activate_and_roll_back_in_order(models: Path, registry: Registry) -> None:
    assert registry.versions() == []
    assert registry.current() is None
    with pytest.raises(ModelError, match=r"no version is live; publish a model with 'mbcal registry publish'"):
        registry.open()
    with pytest.raises(ModelError, match="no version was live before now"):
        registry.rollback()
    first = registry.publish(models / "popular", metrics={"reward": 80.5}, activate=True)
    second = registry.publish(models / "random", activate=True)
    third = registry.publish(models / "linucb", activate=False)
    assert [first, second, third] == registry.versions() == ["v000001", "v000002", "v000003"]
    assert registry.current() == registry.open().name == second
    assert [registry.open(name).parent for name in registry.versions()] == [None, first, second]
    assert registry.open(first).metrics == {"reward": 80.5}
    registry.activate(third)
    registry.activate(third)  # already live: nothing to remember
    assert registry.previous_versions() == [first, second]
    assert [registry.rollback(), registry.rollback()] == [second, first]
    with pytest.raises(ModelError, match="no version was live before v000001; choose one with 'mbcal registry activate'"):
        registry.rollback()
    assert registry.current() == first
    assert registry.publish(models / "random", activate=True) == "v000004"
    assert registry.rollback() == first


def test_gc_keeps_live_previous_and_newer_versions(models: Path, registry: Registry) -> None:
    assert registry.gc(0) == []
    names = [registry.publish(models / "random", activate=False) for _ in range(6)]
    assert registry.gc(0) == []  # nothing is live yet
    for name in (names[0], names[1], names[3], names[4]):
        registry.activate(name)
    (registry.path / "versions" / ".v000099.partial-abc").mkdir()
    with pytest.raises(OptionError, match="keep: must be 0 or more, got -1"):
        registry.gc(-1)
    assert registry.gc(1) == [names[0], names[1], names[2]]
    assert not list((registry.path / "versions").glob(".*"))
    assert registry.versions() == [names[3], names[4], names[5]]
    assert registry.previous_versions() == [names[3]]
    assert registry.rollback() == names[3]
    assert registry.gc(9) == []
    registry.activate(names[5])
    assert registry.gc(0) == [names[3], names[4]]
    assert registry.publish(models / "random", activate=False) == "v000007"


def test_by_default_only_the_first_version_goes_live(models: Path, registry: Registry) -> None:
    assert registry.publish(models / "random") == registry.current() == "v000001"
    assert registry.publish(models / "popular") == "v000002"
    assert registry.current() == "v000001"
    assert registry.publish(models / "popular", activate=True) == registry.current() == "v000003"


def test_a_number_is_never_used_twice(models: Path, registry: Registry) -> None:
    for _ in range(3):
        registry.publish(models / "random", activate=True)
    registry.gc(0)
    shutil.rmtree(registry.path / "versions" / "v000003")  # by hand
    assert registry.publish(models / "random", activate=True) == "v000004"


@pytest.mark.parametrize("failing", ["open", "record", "pointer"])
def test_a_version_that_cannot_go_live_is_taken_back_and_its_number_is_not_used_again(
    models: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    registry.publish(models / "random", activate=True)
    told: list[str] = []

    def record(name: str) -> None:
        told.append(name)
        if failing == "record":
            raise OSError("full")

    def fail(*_: object) -> None:
        if failing == "open" or told:
            monkeypatch.undo()
            raise OutputError("cannot be written")

    if failing == "open":
        monkeypatch.setattr(registry, "open", fail)
    elif failing == "pointer":
        monkeypatch.setattr("mbcal.registry.registry.write_pointer", fail)
    with pytest.raises((OSError, OutputError)):
        registry.publish(models / "random", on_written=record, activate=True)
    assert (registry.versions(), registry.current()) == (["v000001"], "v000001")
    assert [entry.name for entry in (registry.path / "versions").iterdir()] == ["v000001"]
    assert registry.publish(models / "random", activate=True) == "v000003"


def test_a_refused_model_leaves_nothing(models: Path, registry: Registry, tmp_path: Path) -> None:
    for metrics in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(OptionError, match="metrics: must be names with finite numbers"):
            registry.publish(models / "random", metrics=metrics)
    with pytest.raises(ModelError, match="nothing: no such folder; make a model with 'mbcal fit'"):
        registry.publish(tmp_path / "nothing")
    assert not registry.path.exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    with pytest.raises(OutputError, match="home: already exists and is not a registry"):
        Registry(tmp_path / "home").publish(models / "random")
    registry.publish(models / "random")
    for name in ("v000009", "../..", "current", ""):
        with pytest.raises(ModelError, match="has no version"):
            registry.activate(name)


def test_a_model_that_ranks_differently_without_torch_is_not_published(
    models: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = load(models / "popular", "cpu")
    agent.nets["counts"].steps[3] = float("nan")
    agent.save(models.parent / "nan-model", overwrite=True)
    with pytest.raises(ModelError, match="nan-model: scorer: 'values' holds NaN or infinity; fit the model again"):
        registry.publish(models.parent / "nan-model")
    monkeypatch.setattr(publication, "to_numpy", lambda scorer: dataclasses.replace(to_numpy(scorer), start=0))
    with pytest.raises(ModelError, match=r"ranks differently without torch \(score is off by .*\); it was not published"):
        registry.publish(models / "gru4rec")
    assert registry.versions() == []


def test_opening_needs_no_lock(two: Path) -> None:
    """A reader may lack the permission to write to the registry."""
    reader = Registry(two)
    lock = two / ".lock"
    content = lock.read_bytes()
    lock.unlink()
    assert reader.open().name == "v000001"
    assert not lock.exists()
    lock.write_bytes(content)


def test_open_follows_the_pointer_if_the_version_was_removed(
    models: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(models / "random", activate=True)

    def open_after_removal(path: Path) -> Version:
        monkeypatch.setattr(registry_module, "open_version", open_version)
        registry.publish(models / "popular", activate=True)
        assert registry.gc(0) == ["v000001"]
        return open_version(path)

    monkeypatch.setattr(registry_module, "open_version", open_after_removal)
    assert registry.open().name == "v000002"


def test_long_texts_of_an_update_are_cut_in_lists(tmp_path: Path) -> None:
    (tmp_path / "updates").mkdir()
    check = {"name": "the log", "answer": "worse", "detail": "d" * 100_000}
    update = {
        "live": "v000001",
        "answer": "worse",
        "action": "refused",
        "version": None,
        "reason": "r" * 100_000,
        "checks": [check],
    }
    (tmp_path / "updates" / "000001.json").write_text(json.dumps(update))
    (listed,) = read_updates(tmp_path)
    assert listed["time"] == (tmp_path / "updates" / "000001.json").stat().st_mtime
    assert listed["reason"] == "r" * 999 + "…"
    assert listed["checks"] == [check | {"detail": "d" * 999 + "…"}]
    assert listed["version"] is None
    for time, is_known in ((1_800_000_000.5, True), ("noon", False), (float("nan"), False), (1e300, False)):
        (tmp_path / "updates" / "000001.json").write_text(json.dumps(update | {"time": time}))
        assert (read_updates(tmp_path)[0]["time"] == time) == is_known  # copies of files are younger than verdicts
