"""`prepare --like`: rows, codes and behaviours of a store are kept, what is new is appended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mbcal import GRU4Rec, ItemTable, KuaiRand, Labels, Levels, SessionConfig, Store, TableLog, load, prepare
from mbcal.agents.fit_job import fit
from mbcal.cli import app
from mbcal.errors import InputError, OptionError
from tests.support.layouts import kuairand
from tests.support.logs import ONE_PART, write_csv

HEADER = ("who", "what", "when", "did")
RULE = Labels({"no": 0, "yes": 1})


def table(path: Path, items: ItemTable | None = None, rule: Labels | Levels = RULE) -> TableLog:
    return TableLog(path, user="who", item="what", time="when", behaviour="did", rule=rule, items=items)


def log(folder: Path, name: str, items: list[str], start: int = 0) -> Path:
    rows = [(f"u{k % 9}", items[(k * 7) % len(items)], start + k, ("no", "yes")[k % 2]) for k in range(200)]
    return write_csv(folder / f"{name}.csv", rows, HEADER)


def item_table(folder: Path, name: str, values: dict[str, tuple[Any, ...]]) -> ItemTable:
    header = ("what", "kind", "words", "vector")
    lines = [";".join(map(str, row)) for row in (header, *((item, *row) for item, row in values.items()))]
    (folder / f"{name}.csv").write_text("\n".join(lines))
    return ItemTable(folder / f"{name}.csv", ["kind", "words:number", "vector"])


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    first = item_table(tmp_path, "first", {"b": ("x", 1, "[1, 0]"), "a": ("y", 2, "[0, 1]"), "zz": ("y", 3, "[1, 1]")})
    old = prepare(table(log(tmp_path, "old", ["b", "a", "zz"]), first), tmp_path / "old", ONE_PART)
    # without a declared kind 'words' would be a category here, and 'kind' a new value
    second = item_table(tmp_path, "second", {"c": ("a", 7, "[1, 2]"), "aa": ("x", 8, ""), "b": ("x", 1, "[1, 0]")})
    second = ItemTable(second.source, ["kind", "words", "vector"])
    new = prepare(table(log(tmp_path, "new", ["aa", "b", "c"], 500), second), tmp_path / "new", ONE_PART, like=old)
    return old, new


def test_rows_and_codes_are_appended(stores: tuple[Store, Store]) -> None:
    old, new = stores
    assert old.catalog.items == ("a", "b", "zz")
    assert new.catalog.items == ("a", "b", "zz", "c", "aa")
    assert new.catalog.features["kind"].vocabulary == ("x", "y", "a")
    assert {name: feature.kind for name, feature in new.catalog.features.items()} == {
        "kind": "category",
        "words": "number",
        "vector": "vector",
    }
    rows = new.catalog.rows_of(["zz", "c", "aa"])
    assert [new.catalog.features["words"].values(row) for row in rows] == [("3",), ("7",), ("8",)]
    assert [new.catalog.features["vector"].values(row) for row in rows] == [("1", "1"), ("1", "2"), ()]
    assert new.behaviours == old.behaviours
    assert new.manifest["counts"]["items"] == 5
    assert new.manifest["options"]["like"] == old.manifest["content_hash"]
    assert "like" not in old.manifest["options"]
    shown = {new.catalog.name_of(row) for row in np.unique(new.sessions("train").items) if row}
    assert shown == {"aa", "b", "c"}


def test_a_model_goes_on_from_the_old_store_to_the_new(stores: tuple[Store, Store], tmp_path: Path) -> None:
    old, new = stores
    small = {"epochs": 1, "hidden": 8, "embedding": 4, "device": "cpu"}
    fit(old, tmp_path / "model", "gru4rec", **small)
    result = CliRunner().invoke(
        app,
        [
            "fit",
            str(new.path),
            "--agent",
            "gru4rec",
            "--from",
            str(tmp_path / "model"),
            "--out",
            str(tmp_path / "next"),
            "--epochs",
            "1",
        ],
    )
    assert result.exit_code == 0, result.output
    assert "item features: kind (category), words (number), vector (vector)" in result.output
    agent = load(tmp_path / "next", "cpu")
    assert agent.domain.catalog.items == new.catalog.items
    assert agent.seen()[agent.domain.catalog.rows_of(["aa", "c"])].all()
    assert {entry.item: entry.known for entry in agent.rank([("c", "yes")], ["aa", "b", "q"])} == {
        "aa": True,
        "b": True,
        "q": False,
    }


class Stop(BaseException):
    """The process is stopped."""


class StopsAt:
    """A progress that stops the fit when an epoch begins."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch

    def phase(self, title: str, total: int | None = None) -> None:
        if self.epoch in title:
            raise Stop

    def advance(self, amount: int) -> None:
        pass


def test_a_fit_that_was_stopped_resumes_with_the_grown_model(stores: tuple[Store, Store], tmp_path: Path) -> None:
    old, new = stores
    fit(old, tmp_path / "model", "gru4rec", epochs=1, hidden=8, embedding=4, device="cpu")
    further: dict[str, Any] = {"warm_start": tmp_path / "model", "epochs": 3, "validation": 0.0, "device": "cpu"}
    fit(new, tmp_path / "whole", "gru4rec", **further)
    with pytest.raises(Stop):
        fit(new, tmp_path / "stopped", "gru4rec", progress=StopsAt("epoch 3"), **further)
    resumed: list[bool] = []
    fit(new, tmp_path / "stopped", "gru4rec", on_resume=lambda: resumed.append(True), **further)
    assert resumed
    files = ("weights.safetensors", "optimiser.safetensors")
    assert [(tmp_path / "stopped" / name).read_bytes() for name in files] == [
        (tmp_path / "whole" / name).read_bytes() for name in files
    ]


def test_levels_of_a_store_are_kept(tmp_path: Path) -> None:
    old = prepare(KuaiRand(kuairand(tmp_path)), tmp_path / "old")
    again = prepare(KuaiRand(kuairand(tmp_path)), tmp_path / "again", SessionConfig(seed=5), like=old)
    assert again.behaviours == old.behaviours
    assert again.catalog.items == old.catalog.items


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Labels({"no": 0, "yes": 2}), "the reward of 'yes' is 1 in that store, here 2; give the same"),
        (Levels((1.0,)), "behaviours of that store are labels"),
    ],
)
def test_behaviours_that_contradict_are_refused(
    stores: tuple[Store, Store], tmp_path: Path, rule: Labels | Levels, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        prepare(table(tmp_path / "new.csv", rule=rule), tmp_path / "third", ONE_PART, like=stores[0])


def test_new_labels_are_appended(stores: tuple[Store, Store], tmp_path: Path) -> None:
    rule = Labels({"buy": 5, "no": 0, "yes": 1})
    third = prepare(table(tmp_path / "new.csv", rule=rule), tmp_path / "third", ONE_PART, like=stores[0])
    assert third.behaviours.names == ("no", "yes", "buy")


def context_log(path: Path, rows: list[tuple[str, str]]) -> TableLog:
    lines = [(f"u{k % 9}", f"i{k % 3}", k, ("no", "yes")[k % 2], *rows[k % len(rows)]) for k in range(90)]
    write_csv(path, lines, (*HEADER, "device", "hour"))
    return TableLog(
        path, user="who", item="what", time="when", behaviour="did", rule=RULE, context=("device", "hour:number")
    )


def test_values_of_context_get_the_next_codes_and_numbers_keep_their_scale(tmp_path: Path) -> None:
    old = prepare(context_log(tmp_path / "old.csv", [("tv", "1"), ("web", "3")]), tmp_path / "old", ONE_PART)
    log = context_log(tmp_path / "new.csv", [("car", "20"), ("web", "30")])
    new = prepare(log, tmp_path / "new", ONE_PART, like=old)
    device, hour = new.fields.context
    assert device.vocabulary == ("tv", "web", "car")
    assert hour == old.fields.context.fields[1]
    steps = new.sessions("train")
    codes = steps.context[..., 0][steps.mask]
    assert set(codes.tolist()) == {2.0, 3.0}
    agent = load(fit_to(tmp_path, old), "cpu")
    agent.fit(new)
    assert agent.fields == new.fields


def fit_to(folder: Path, store: Store) -> Path:
    return GRU4Rec(hidden=8, epochs=1, device="cpu").fit(store).save(folder / "first-model")


def test_a_field_of_another_kind_is_one_sentence(tmp_path: Path) -> None:
    old = prepare(context_log(tmp_path / "old.csv", [("tv", "1"), ("web", "3")]), tmp_path / "old", ONE_PART)
    log = replace(context_log(tmp_path / "new.csv", [("1", "2")]), context=("device:number",))
    with pytest.raises(InputError, match=r"'device' is device \(number\) in the log and device \(category\) in the store"):
        prepare(log, tmp_path / "new", ONE_PART, like=old)
