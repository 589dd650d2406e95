"""The canary of a registry: started, promoted, withdrawn; and changes only while the expected version is live."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from mbcal.errors import ConflictError, MbcalError, ModelError
from mbcal.registry.registry import Registry


@pytest.fixture
def three(models: Path, registry: Registry) -> Registry:
    """Version 1 live, versions 2 and 3 published."""
    registry.publish(models / "random")
    for name in ("popular", "random"):
        registry.publish(models / name, activate=False)
    return registry


def test_a_canary_is_promoted_or_withdrawn(three: Registry) -> None:
    assert three.canary() is None
    before = time.time_ns() // 1000
    three.start_canary("v000002", expected=three.pointer())
    began, salt = three.pointer().canary_began, three.pointer().canary_salt
    assert before <= began <= time.time_ns() // 1000
    three.start_canary("v000002")  # already the canary: it goes on
    assert (three.pointer().canary_began, three.pointer().canary_salt) == (began, salt)
    assert (three.current(), three.canary()) == ("v000001", "v000002")
    assert three.promote_canary("v000002", expected=three.pointer()) == "v000002"
    assert (three.current(), three.canary(), three.previous_versions()) == ("v000002", None, ["v000001"])
    three.start_canary("v000003")
    assert three.withdraw_canary(reason="worse by 8%") == "v000003"
    assert (three.current(), three.canary()) == ("v000002", None)
    assert three.pointer().withdrawn == {"v000003": "worse by 8%"}
    assert three.pointer().canary_salt == ""
    three.start_canary("v000003")  # tried again: no longer withdrawn
    assert three.pointer().withdrawn == {}
    assert len(three.pointer().canary_salt) == len(salt) == 32
    assert three.pointer().canary_salt != salt
    pointer = json.loads((three.path / "current.json").read_text())
    (three.path / "current.json").write_text(json.dumps({name: pointer[name] for name in pointer if name != "canary_salt"}))
    assert (three.canary(), three.pointer().canary_salt) == ("v000003", "")  # written before there were salts


@pytest.mark.parametrize("change", [{"canary_salt": "\ud800"}, {"canary_salt": "salt"}, {"canary": "v00000\u0663"}])
def test_a_canary_that_no_command_wrote_is_damage(three: Registry, change: dict[str, str]) -> None:
    three.start_canary("v000002")
    path = three.path / "current.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ModelError, match=r"current\.json: damaged"):
        three.pointer()


def test_what_cannot_be_a_canary_is_refused(models: Path, registry: Registry, three: Registry, tmp_path: Path) -> None:
    empty = Registry(tmp_path / "empty")
    empty.publish(models / "random", activate=False)
    with pytest.raises(ModelError, match="no version is live to compare a canary with"):
        empty.start_canary("v000001")
    for name, words in (("v000001", "v000001 is live already"), ("v000009", "has no version 'v000009'")):
        with pytest.raises(ModelError, match=words):
            three.start_canary(name)
    for change in (three.promote_canary, three.withdraw_canary):
        with pytest.raises(ModelError, match="there is no canary; start one with 'mbcal registry canary VERSION'"):
            change()
    three.start_canary("v000002")
    with pytest.raises(ConflictError, match="v000002 is the canary; withdraw or promote it first"):
        three.start_canary("v000003")
    for change in (three.promote_canary, three.withdraw_canary):
        with pytest.raises(ConflictError, match="v000002 is the canary instead of v000003; it stays"):
            change("v000003")
    weights = registry.path / "versions/v000002/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="damaged"):
        three.promote_canary()
    assert (three.current(), three.canary()) == ("v000001", "v000002")
    three.withdraw_canary()
    with pytest.raises(ModelError, match="damaged"):
        three.start_canary("v000002")
    assert three.canary() is None


def test_nothing_changes_if_an_operator_activated_another_version(models: Path, three: Registry) -> None:
    three.start_canary("v000002")
    before = three.pointer()
    three.activate("v000003")  # ends the canary: it was compared with version 1
    assert (three.canary(), three.pointer().withdrawn) == (None, {"v000002": "v000003 went live"})
    changes = (
        lambda: three.activate("v000002", expected=before),
        lambda: three.publish(models / "popular", expected=before, activate=True),
        lambda: three.publish(models / "popular", activate=False, expected=before),
        lambda: three.start_canary("v000002", expected=before),
        lambda: three.promote_canary(expected=before),
    )
    for change in changes:
        with pytest.raises(
            ConflictError, match="v000003 is live instead of v000001; it was activated in the meantime"
        ) as error:
            change()
        assert isinstance(error.value, MbcalError)
    assert three.versions() == ["v000001", "v000002", "v000003"]
    assert three.current() == "v000003"
    assert three.publish(models / "popular", expected=three.pointer(), activate=True) == three.current() == "v000004"


def test_every_activation_ends_a_canary(models: Path, three: Registry) -> None:
    changes = (
        lambda: three.activate("v000001"),  # live already, and meant as a word against the canary
        lambda: three.publish(models / "popular", activate=True),
        three.rollback,
    )
    for change in changes:
        three.start_canary("v000003")
        change()
        assert (three.canary(), three.pointer().canary_began) == (None, 0)
    three.start_canary("v000003")
    three.publish(models / "popular", activate=False)
    assert three.canary() == "v000003"


def test_gc_keeps_the_canary(models: Path, three: Registry) -> None:
    three.start_canary("v000003")
    three.withdraw_canary(reason="slow")
    three.publish(models / "popular", activate=True)
    three.start_canary("v000002")  # older than the live one
    assert three.gc(0) == ["v000001", "v000003"]
    assert three.versions() == ["v000002", "v000004"]
    assert (three.canary(), three.pointer().withdrawn) == ("v000002", {})


def test_nothing_changes_if_a_canary_began_or_a_version_came_back_in_the_meantime(models: Path, three: Registry) -> None:
    before = three.pointer()
    three.start_canary("v000002")
    for activate in (True, False):
        with pytest.raises(ConflictError, match="v000002 became the canary in the meantime; its trial goes on"):
            three.publish(models / "popular", activate=activate, expected=before)
    assert (three.current(), three.canary()) == ("v000001", "v000002")
    during = three.pointer()
    three.withdraw_canary()
    with pytest.raises(ConflictError, match="the trial of v000002 has ended in the meantime"):
        three.activate("v000003", expected=during)
    three.activate("v000002")
    three.rollback()
    with pytest.raises(ConflictError, match="v000001 was activated again in the meantime and stays"):
        three.publish(models / "popular", expected=before)
    assert three.versions() == ["v000001", "v000002", "v000003"]


def test_a_version_is_published_as_the_canary_in_one_step_or_not_at_all(models: Path, three: Registry) -> None:
    assert three.publish(models / "random", activate=False, canary=True) == three.canary() == "v000004"
    with pytest.raises(ConflictError, match="v000004 is the canary; withdraw or promote it first"):
        three.publish(models / "random", activate=False, canary=True)
    assert three.versions() == ["v000001", "v000002", "v000003", "v000004"]  # no version is left behind
