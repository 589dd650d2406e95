"""Damaged versions are refused, and the live version stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal.errors import ModelError
from mbcal.registry.registry import Registry
from mbcal.registry.version import VERSION_KIND
from mbcal.storage.artifacts import Artifact, write_artifact
from tests.support.registries import with_value


def rewrite_version(
    path: Path,
    arrays: dict[str, Any] | None = None,
    entries: dict[str, Any] | None = None,
    files_instead: dict[str, bytes] | None = None,
    **changes: Any,
) -> None:
    """Write a version again with other arrays, manifest entries or entries of its `version`, and valid hashes."""
    opened = Artifact.open(path, VERSION_KIND)
    manifest = {key: value for key, value in opened.manifest.items() if key not in ("files", "content_hash")}
    extra = {name: (path / name).read_bytes() for name in ("weights.safetensors", "optimiser.safetensors", "items.parquet")}
    extra |= files_instead or {}
    files = {"scorer": opened.arrays("scorer") if arrays is None else arrays, "verification": opened.arrays("verification")}
    manifest |= {"version": {**manifest["version"], **changes}, **(entries or {})}
    write_artifact(path, VERSION_KIND, manifest, files, overwrite=True, extra=extra)


def changed_description(**changes: Any) -> Callable[[Path], None]:
    """Change the description of the scorer; `terms` is the number of terms to keep."""

    def damage(path: Path) -> None:
        description = Artifact.open(path, VERSION_KIND).manifest["version"]["scorer"]
        terms = description["terms"][: changes.get("terms", 2)]
        rewrite_version(path, scorer={**description, **changes, "terms": terms})

    return damage


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        arrays = Artifact.open(path, VERSION_KIND).arrays("scorer")
        rewrite_version(path, {**arrays, name: change(arrays[name])})

    return damage


def with_names(change: Callable[[list[str]], list[Any]]) -> Callable[[Path], None]:
    """Change the names of the items."""

    def damage(path: Path) -> None:
        table = pq.read_table(path / "items.parquet")
        names = pa.array(change(table["item"].to_pylist()))
        pq.write_table(table.set_column(0, "item", names), buffer := pa.BufferOutputStream())
        rewrite_version(path, files_instead={"items.parquet": buffer.getvalue().to_pybytes()})

    return damage


def without(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        arrays = Artifact.open(path, VERSION_KIND).arrays("scorer")
        rewrite_version(path, {key: array for key, array in arrays.items() if key != name})

    return damage


def flipped(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[len(data) // 2] ^= 1
        (path / name).write_bytes(data)

    return damage


def truncated(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-1])


FILES = ["scorer.safetensors", "verification.safetensors", "items.parquet", "weights.safetensors", "optimiser.safetensors"]


TABLE = "future/cell/items"


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    **{f"flipped {name}": (flipped(name), rf"{name}: damaged \(hash mismatch\)") for name in FILES},
    **{f"truncated {name}": (truncated(name), rf"{name}: damaged \(hash mismatch\)") for name in FILES},
    **{
        f"missing {name}": (lambda path, name=name: (path / name).unlink(), f"{name}: missing from the model")
        for name in FILES
    },
    "flipped manifest": (flipped("manifest.json"), "manifest.json: damaged"),
    "truncated manifest": (lambda path: (path / "manifest.json").write_bytes(b"{"), "manifest.json: damaged"),
    "missing manifest": (lambda path: (path / "manifest.json").unlink(), "no manifest.json"),
    "gone": (shutil.rmtree, "has no version 'v000002'; known are v000001"),
    "NaN": (changed(TABLE, lambda table: with_value(table, np.nan)), f"'{TABLE}' holds NaN or infinity"),
    "infinity": (changed(TABLE, lambda table: with_value(table, -np.inf)), f"'{TABLE}' holds NaN or infinity"),
    "fewer rows": (changed(TABLE, lambda table: table[:-1]), rf"'{TABLE}' has shape \(13, 24\), it must be \(14, 24\)"),
    "flat": (changed(TABLE, np.ravel), rf"'{TABLE}' has shape \(336,\), it must be \(14, 24\)"),
    "head": (changed("instant/head/2", lambda table: table[:2]), r"'instant/head/2' has shape \(2, \d+\), it must be \(3, "),
    "integers": (changed(TABLE, lambda table: table.astype(np.int32)), "'future/cell/items' holds int32"),
    "no array": (without("instant/history/bias"), "'instant/history/bias' is missing"),
    "no rewards": (without("instant/rewards"), "'instant/rewards' is missing"),
    "no seen": (without("seen"), "'seen' must hold 14 booleans"),
    "seen": (changed("seen", lambda seen: seen[1:]), "'seen' must hold 14 booleans"),
    "other numbers": (changed("future/head/3", lambda bias: bias + 0.01), "verification failed: .* off by 0.01"),
    "one term less": (changed_description(terms=1), "belongs to no part"),
    "no terms": (changed_description(terms=0), "has no terms"),
    "other kind": (changed_description(kind="tree"), "kind 'tree' is unknown; known are net, item"),
    "start": (changed_description(start=99), r"start must be a whole number in 0\.\.3, got 99"),
    "no start": (changed_description(start=None), "start must be a whole number"),
    "no scorer": (lambda path: rewrite_version(path, scorer=None), "the manifest does not describe one"),
    **{
        f"{name} {value}": (lambda path, entry={name: value}: rewrite_version(path, entries=entry), words)
        for name, value, words in (
            ("horizon", -3, r"horizon: must lie in 1\.\.10000, got -3"),
            ("horizon", 10**12, r"horizon: must lie in 1\.\.10000, got 1000000000000"),
            ("horizon", 1e308, r"horizon: must lie in 1\.\.10000, got 1"),
            ("history", -1, r"history: must lie in 0\.\.10000, got -1"),
        )
    },
    "numbers as names": (with_names(lambda names: list(range(len(names)))), "catalogue: item names must be text"),
    "an item without a name": (with_names(lambda names: [None, *names[1:]]), "catalogue: item names must be text"),
    "a name twice": (with_names(lambda names: [names[1], *names[1:]]), "catalogue: item names must differ"),
    "schema": (lambda path: rewrite_version(path, schema=9), "a version of schema 9, not 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_refused_and_the_old_version_stays_live(two: Path, tmp_path: Path, case: str) -> None:
    shutil.copytree(two, tmp_path / "registry")
    registry = Registry(tmp_path / "registry")
    damage, words = DAMAGE[case]
    damage(registry.path / "versions" / "v000002")
    for attempt in (registry.open, registry.activate):
        with pytest.raises(ModelError, match=words) as refusal:
            attempt("v000002")
        assert "\n" not in str(refusal.value)
    assert registry.current() == registry.open().name == "v000001"
    assert registry.previous_versions() == []


def test_rolling_back_to_a_damaged_version_is_refused(models: Path, registry: Registry) -> None:
    registry.publish(models / "popular", activate=True)
    registry.publish(models / "random", activate=True)
    flipped("items.parquet")(registry.path / "versions" / "v000001")
    with pytest.raises(ModelError, match=r"v000001/items\.parquet: damaged"):
        registry.rollback()
    assert registry.current() == "v000002"
    assert registry.previous_versions() == ["v000001"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"current": 3, "before": [], "newest": 0}',
                                     b'{"current": "../../x", "before": [], "newest": 0}'])  # fmt: skip
def test_a_damaged_pointer_is_reported(models: Path, registry: Registry, content: bytes) -> None:
    registry.publish(models / "random")
    (registry.path / "current.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"current.json: damaged .*; remove it and run 'mbcal registry activate'"):
        registry.current()
    (registry.path / "current.json").unlink()
    registry.activate("v000001")
    assert registry.current() == "v000001"


@pytest.mark.parametrize("special", ["pipe", "endless", "huge"])
def test_a_pointer_that_does_not_end_is_one_sentence(registry: Registry, special: str) -> None:
    registry.path.mkdir(parents=True)
    pointer = registry.path / "current.json"
    if special == "pipe":
        os.mkfifo(pointer)
    elif special == "endless":
        pointer.symlink_to("/dev/zero")
    else:
        with pointer.open("wb") as file:
            file.truncate(1 << 40)
    sentence = "larger than 16,777,216 bytes" if special == "huge" else "not a plain file"
    with pytest.raises(ModelError, match=rf"current.json: cannot be read \({sentence}\)"):
        registry.current()


def test_a_file_that_has_grown_is_not_read(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two, tmp_path / "registry")
    registry = Registry(tmp_path / "registry")
    scorer = registry.path / "versions" / "v000001" / "scorer.safetensors"
    os.truncate(scorer, 1 << 40)  # a hole, larger than the memory
    with pytest.raises(ModelError, match=r"scorer.safetensors: damaged \(hash mismatch\)"):
        registry.open("v000001")
