"""Kinds of item features: inferred, declared, and what is refused."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from mbcal import ItemTable, Labels, Store, TableLog, prepare
from mbcal.cli import app
from mbcal.data.feature_kinds import doubtful_category
from mbcal.errors import InputError, MbcalError, OptionError
from mbcal.types import Feature, NumberFeature, VectorFeature
from tests.support.logs import ONE_PART, write_csv

COUNT = 60
HEADER = ("who", "what", "when", "did")
COLUMNS = {
    "what": [f"i{k}" for k in range(COUNT)],
    "category_id": list(range(COUNT)),  # named like an id
    "stars": [k % 5 for k in range(COUNT)],
    "words": [100 + k if k else None for k in range(COUNT)],
    "published": [f"2026-11-{1 + k % 28:02d} 10:{k:02d}:00" for k in range(COUNT)],
    "fresh": [k % 2 == 0 for k in range(COUNT)],
    "zip": [f"0{k:04d}" for k in range(COUNT)],
    "tags": [["a", "b"][: k % 3] for k in range(COUNT)],
    "embedding": [[k / 7, -k / 3, 0.5] if k != 1 else None for k in range(COUNT)],
    "text_embedding": [f"[{k / 8}, {k}]" if k != 2 else None for k in range(COUNT)],
    "bag": [[float(j) for j in range(k % 3)] for k in range(COUNT)],  # lengths differ
}
KINDS = {
    "category_id": "category",
    "stars": "category",
    "words": "number",
    "published": "category",
    "fresh": "category",
    "zip": "category",
    "tags": "category",
    "embedding": "vector",
    "text_embedding": "vector",
    "bag": "category",
}


def log(folder: Path, items: ItemTable) -> TableLog:
    rows = [("a", f"i{k}", k, "yes") for k in range(COUNT)]
    path = write_csv(folder / "log.csv", rows, HEADER)
    names = {"user": "who", "item": "what", "time": "when", "behaviour": "did"}
    return TableLog(path, **names, rule=Labels({"no": 0, "yes": 1}), items=items)


def prepared(folder: Path, features: list[str], columns: dict[str, list] | None = None) -> Store:  # type: ignore[type-arg]
    pq.write_table(pa.table(columns or COLUMNS), folder / "items.parquet")
    return prepare(log(folder, ItemTable(folder / "items.parquet", features)), folder / "store", ONE_PART, overwrite=True)


def test_kinds_are_inferred(tmp_path: Path) -> None:
    store = prepared(tmp_path, list(KINDS))
    catalog = store.catalog
    assert {name: feature.kind for name, feature in catalog.features.items()} == KINDS
    row = int(catalog.rows_of(["i3"])[0])
    values = {name: feature.values(row) for name, feature in catalog.features.items()}
    assert values["words"] == ("103",)
    assert values["embedding"] == ("0.428571", "-1", "0.5")
    assert values["text_embedding"] == ("0.375", "3")
    assert values["bag"] == ()
    assert [int(feature.missing[2:].sum()) for name, feature in catalog.features.items() if KINDS[name] != "category"] == [
        1
    ] * 3
    assert store.manifest["options"]["features"] == list(KINDS)
    assert store.agent_features == tuple(KINDS)


def test_kinds_are_declared(tmp_path: Path) -> None:
    store = prepared(tmp_path, ["words:category", "stars:number", "embedding:category", "category_id:number"])
    kinds = {name: feature.kind for name, feature in store.catalog.features.items()}
    assert kinds == {"words": "category", "stars": "number", "embedding": "category", "category_id": "number"}
    stars = store.catalog.features["stars"]
    assert isinstance(stars, NumberFeature)
    assert stars.numbers[store.catalog.rows_of(["i0", "i7"])].tolist() == [0.0, 2.0]


def test_times_become_seconds_when_they_are_declared_numbers(tmp_path: Path) -> None:
    times = pa.array([1_700_000_000 + 86_400 * k for k in range(COUNT)], pa.timestamp("s"))
    store = prepared(tmp_path, ["published"], {"what": COLUMNS["what"], "published": times})  # type: ignore[dict-item]
    published = store.catalog.features["published"]
    assert isinstance(published, NumberFeature)
    row = int(store.catalog.rows_of(["i1"])[0])
    assert published.numbers[row] == pytest.approx(1_700_000_000 + 86_400, abs=200)


def test_text_tables_and_the_order_of_rows(tmp_path: Path) -> None:
    names = ["words", "embedding", "stars"]
    rows = [(f"i{k}", "" if k == 4 else 1000 + k, f"[{k}, 0.5]", k % 3) for k in range(COUNT)]
    stores = []
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        order = random.Random(seed).sample(range(3), 3)
        header, shuffled = ["what", *(names[k] for k in order)], [[row[0], *(row[1 + k] for k in order)] for row in rows]
        path = tmp_path / f"items{seed}.csv"
        lines = [";".join(map(str, row)) for row in (header, *shuffled)]
        path.write_text("\n".join(lines))
        items = ItemTable(path, [f"{names[k]}" for k in order])
        stores.append(prepare(log(tmp_path, items), tmp_path / f"store{seed}", ONE_PART))
    first = stores[0].catalog
    assert {name: first.features[name].kind for name in names} == {
        "words": "number",
        "embedding": "vector",
        "stars": "category",
    }
    for store in stores[1:]:
        for name in names:
            one, other = first.features[name], store.catalog.features[name]
            assert [one.values(row) for row in range(first.n_rows)] == [other.values(row) for row in range(first.n_rows)]


@pytest.mark.parametrize(
    ("features", "column", "message"),
    [
        (["embedding"], {"embedding": [[1.0, 2.0]] * 59 + [[1.0]]}, None),
        (["embedding:vector"], {"embedding": [[1.0, 2.0]] * 59 + [[1.0]]}, "item 'i59' has 1 numbers, most have 2"),
        (["embedding:vector"], {"embedding": [[1.0, float("nan")]] * 60}, "item 'i0' holds NaN or infinity"),
        (["embedding:vector"], {"embedding": ["[1, 2]"] * 59 + ["north"]}, "'north' is not a vector"),
        (["words:number"], {"words": ["7"] * 59 + ["many"]}, "'many' is not a number"),
        (["words:numbr"], {"words": [1] * 60}, "kind 'numbr' of 'words' is unknown; known are category, number, vector"),
        (["tags:number"], {"tags": [["a"]] * 60}, "'tags' holds lists, not numbers"),
        (["embedding:vector"], {"embedding": [None] * 59 + [[]]}, "no item has a vector"),
    ],
)
def test_what_is_refused(tmp_path: Path, features: list[str], column: dict, message: str | None) -> None:  # type: ignore[type-arg]
    if message is None:
        assert (
            prepared(tmp_path, features, {"what": COLUMNS["what"], **column}).catalog.features["embedding"].kind
            == "category"
        )
        return
    with pytest.raises(MbcalError, match=message) as caught:
        prepared(tmp_path, features, {"what": COLUMNS["what"], **column})
    assert isinstance(caught.value, InputError | OptionError)
    assert "\n" not in str(caught.value)


def test_contradicting_rows_are_counted_only_if_there_are_any(tmp_path: Path) -> None:
    columns = {
        "what": ["i1", "i1", "i2", "i2"],
        "words:": [3, 4, 5, 5],
        "embedding": [[1.0, 2.0], [1.0, 2.0], None, [2.0, 1.0]],
    }
    columns = {name.strip(":"): values for name, values in columns.items()}
    store = prepared(tmp_path, ["words:number", "embedding"], columns)
    assert store.manifest["counts"]["item_conflicts"] == 1
    vectors = store.catalog.features["embedding"]
    assert isinstance(vectors, VectorFeature)
    assert vectors.vectors[store.catalog.rows_of(["i2"])].tolist() == [[2.0, 1.0]]
    assert "item_conflicts" not in prepared(tmp_path, ["embedding"], columns).manifest["counts"]


def test_the_command_says_what_was_inferred_and_what_a_fit_uses(tmp_path: Path) -> None:
    rows = [(f"u{k % 40}", f"i{k % COUNT}", k, ("no", "yes")[k % 2]) for k in range(900)]
    write_csv(tmp_path / "log.csv", rows, HEADER)
    pq.write_table(pa.table(COLUMNS), tmp_path / "items.parquet")
    command = ["prepare", "table", str(tmp_path / "log.csv"), "--user", "who", "--item", "what", "--time", "when"]
    command += ["--behaviour", "did", "--rewards", "no=0,yes=1", "--items", str(tmp_path / "items.parquet")]
    command += ["--features", "stars,words,embedding", "--horizon", "5", "--out", str(tmp_path / "store")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "Item features: stars (category), words (number), embedding (vector)" in result.output
    result = CliRunner().invoke(app, ["describe", str(tmp_path / "store")])
    assert "101 to 159" in result.output
    assert "3 numbers each" in result.output
    fit = ["fit", str(tmp_path / "store"), "--agent", "gru4rec", "--epochs", "1", "--hidden", "8", "--embedding", "4"]
    result = CliRunner().invoke(app, [*fit, "--out", str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    assert "item features: stars (category), words (number), embedding (vector)" in result.output


@pytest.mark.parametrize(
    ("column", "doubt"),
    [
        ({"words": [str(k) for k in range(59)] + ["many"]}, "'many' is no number, .* declare words:number"),
        ({"words": [str(k) for k in range(59)] + ["inf"]}, "'inf' is no number, .* declare words:number"),
        ({"vector": [[k + 0.25, k + 0.5] for k in range(59)] + [[0.25]]}, "differ in length; .* declare vector:vector"),
        ({"category_id": list(range(60))}, None),
        ({"word": [f"w{k}" for k in range(60)]}, None),
        ({"stars": [str(k % 5) for k in range(59)] + ["none given"]}, None),
        ({"places": [[str(k), str(k + 1)] for k in range(60)]}, None),
    ],
)
def test_a_category_that_was_meant_otherwise_is_told(tmp_path: Path, column: dict, doubt: str | None) -> None:  # type: ignore[type-arg]
    (name,) = column
    feature = prepared(tmp_path, [name], {"what": COLUMNS["what"], **column}).catalog.features[name]
    assert isinstance(feature, Feature)
    said = doubtful_category(feature)
    assert said is None if doubt is None else re.search(doubt, said or "")
