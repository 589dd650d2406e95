"""Features of the three kinds: missing values, growth of a catalogue, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbcal import Catalog, Feature
from mbcal.errors import InputError, OptionError
from mbcal.storage.catalog_io import catalog_table, parquet_table, table_catalog
from mbcal.types import AnyFeature, NumberFeature, VectorFeature
from mbcal.types.kinds import require_kind


def features(rows: list[tuple[str | None, list[str], float | None, list[float] | None]]) -> dict[str, AnyFeature]:
    kind, tags, words, vectors = zip(*rows, strict=True) if rows else ((), (), (), ())
    return {
        "kind": Feature.single("kind", kind),
        "tags": Feature.multi("tags", tags),
        "words": NumberFeature.create("words", words),
        "embedding": VectorFeature.create("embedding", [*vectors]),
    }


OLD = Catalog(("b", "a"), features([("news", ["x"], 3.0, [1.0, 2.0]), (None, [], None, None)]), titles=("Bee", None))
NEW = Catalog(
    ("c", "a", "aa"),
    features([("arts", ["y", "x"], 5.0, [3.0, 4.0]), ("sport", [], 7.0, None), (None, [], None, [5.0, 6.0])]),
    titles=("Cee", "Ay", None),
)


def content(catalog: Catalog) -> dict[str, dict[str, tuple[str, ...]]]:
    """Item -> feature -> its values."""
    rows = {name: int(catalog.rows_of([name])[0]) for name in catalog.items}
    return {item: {name: feature.values(row) for name, feature in catalog.features.items()} for item, row in rows.items()}


def read_back(catalog: Catalog, folder: Path) -> Catalog:
    pq.write_table(catalog_table(catalog), folder / "items.parquet")
    return table_catalog(parquet_table((folder / "items.parquet").read_bytes()))


def test_missing_values_are_missing_in_the_special_rows_too() -> None:
    for feature in OLD.features.values():
        assert feature.missing.tolist() == [True, True, False, True]
        assert feature.n_rows == 4


def test_rows_and_codes_are_appended_and_never_moved() -> None:
    grown = OLD.extended(NEW)
    assert grown.items == ("b", "a", "c", "aa")
    assert grown.extends(OLD)
    assert not OLD.extends(grown)
    assert grown.titles == ("Bee", "Ay", "Cee", None)
    assert grown.features["kind"].vocabulary == ("news", "arts", "sport")
    assert content(grown) == {
        "b": {"kind": ("news",), "tags": ("x",), "words": ("3",), "embedding": ("1", "2")},
        "a": {"kind": ("sport",), "tags": (), "words": ("7",), "embedding": ()},
        "c": {"kind": ("arts",), "tags": ("y", "x"), "words": ("5",), "embedding": ("3", "4")},
        "aa": {"kind": (), "tags": (), "words": (), "embedding": ("5", "6")},
    }


def test_kinds_and_grown_vocabularies_are_read_back(tmp_path: Path) -> None:
    grown = OLD.extended(NEW)
    again = read_back(grown, tmp_path)
    assert content(again) == content(grown)
    assert {name: type(feature) for name, feature in again.features.items()} == {
        "kind": Feature,
        "tags": Feature,
        "words": NumberFeature,
        "embedding": VectorFeature,
    }
    assert again.features["kind"].vocabulary == ("news", "arts", "sport")
    assert b"vocabulary" not in str(catalog_table(OLD).schema.metadata).encode()
    assert catalog_table(OLD).schema.field("feature:kind").metadata is None  # only grown ones are stored


def test_features_of_one_side_alone_are_kept() -> None:
    plain = Catalog(("z",))
    grown = plain.extended(OLD)
    assert content(grown)["b"] == content(OLD)["b"]
    assert content(grown)["z"] == {"kind": (), "tags": (), "words": (), "embedding": ()}
    assert content(OLD.extended(plain))["b"] == content(OLD)["b"]
    assert OLD.extended(OLD) is OLD
    assert OLD.extended(Catalog(("a",))) is OLD


@given(st.permutations(["a1", "a2", "b", "ccc"]), st.permutations(["kind", "tags", "words", "embedding"]))
def test_the_order_of_items_and_of_features_does_not_matter(order: list[str], names: list[str]) -> None:
    values = {
        "a1": ("news", ["x"], 1.0, [1.0, 0.0]),
        "a2": ("arts", ["y", "z"], None, None),
        "b": (None, [], 2.0, [0.0, 1.0]),
        "ccc": ("sport", ["x"], 3.0, [1.0, 1.0]),
    }
    listed = features([values[item] for item in order])  # type: ignore[arg-type]
    other = Catalog(tuple(order), {name: listed[name] for name in names})
    reference = OLD.extended(Catalog(tuple(values), features(list(values.values()))))  # type: ignore[arg-type]
    grown = OLD.extended(other)
    assert set(grown.items) == set(reference.items)
    assert content(grown) == content(reference)
    assert grown.features["kind"].vocabulary == reference.features["kind"].vocabulary


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="'words' is a category, but was a number; declare it as words:number"):
        OLD.extended(Catalog(("q",), {"words": Feature.single("words", ["many"])}))
    with pytest.raises(InputError, match="vectors of length 3, those known have 2"):
        OLD.extended(Catalog(("q",), {"embedding": VectorFeature.create("embedding", [[1.0, 2.0, 3.0]])}))
    with pytest.raises(InputError, match="all be of one length, got 1 and 2"):
        VectorFeature.create("embedding", [[1.0], [1.0, 2.0]])
    with pytest.raises(InputError, match="a vector holds NaN or infinity"):
        VectorFeature.create("embedding", [[1.0, np.nan]])
    with pytest.raises(InputError, match="holds infinity"):
        NumberFeature.create("words", [np.inf])
    with pytest.raises(OptionError, match="kind 'numbers' of 'words' is unknown; known are category, number, vector"):
        require_kind("numbers", "words")
