"""Data frames as logs: the store is that of a file with the same rows, and errors name the column."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # its stubs are no dependency
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import ItemTable, MovieLens, SessionConfig, Store, prepare
from mbcal.errors import InputError, OptionError
from tests.support.documents import blocks
from tests.support.logs import ONE_PART, ROOT, content, read_back, steps

ROWS = 400
COLUMNS: dict[str, Any] = {
    "user": "uid",
    "item": "doc",
    "time": "ts",
    "behaviour": "action",
    "rewards": {"skip": 0, "click": 1, "like": 5},
}


def make_frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    seconds = 1_650_000_000 + np.sort(rng.integers(0, 10**6, rows))
    return pd.DataFrame(
        {
            "uid": rng.integers(160_000, 160_040, rows),
            "doc": rng.integers(1, 60, rows),
            "ts": pd.to_datetime(seconds, unit="s"),
            "action": rng.choice(["skip", "click", "like"], rows),
            "unused": [object() for _ in range(rows)],
        }
    )


def arrow_table(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame.drop(columns="unused"), preserve_index=False)


def one_row(**changes: Any) -> pd.DataFrame:
    return pd.DataFrame({"uid": ["a"], "doc": ["x"], "ts": [1_650_000_000], "action": ["click"], **changes})


class Exporter:
    """A frame of another library: only the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.fixture(scope="module")
def from_parquet(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("parquet")
    pq.write_table(arrow_table(make_frame()), folder / "log.parquet")
    return prepare(folder / "log.parquet", folder / "store", **COLUMNS)


@pytest.mark.parametrize(
    "convert",
    [
        lambda frame: frame,
        lambda frame: frame.sample(frac=1, random_state=3),
        lambda frame: frame.set_index(frame["uid"].rename("index")),
        lambda frame: frame.astype({"uid": "Int64", "doc": "category", "action": "category"}),
        lambda frame: frame.astype({"uid": float, "doc": str}),
        arrow_table,
        lambda frame: arrow_table(frame).to_reader(50),
        lambda frame: arrow_table(frame).combine_chunks().to_batches()[0],
        lambda frame: Exporter(arrow_table(frame)),
        lambda frame: arrow_table(frame).set_column(3, "action", arrow_table(frame)["action"].cast(pa.string_view())),
    ],
    ids=["pandas", "shuffled", "index", "nullable", "floats", "table", "reader", "batch", "capsule", "string view"],
)
def test_a_frame_gives_the_store_of_a_parquet_file(tmp_path: Path, from_parquet: Store, convert: Any) -> None:
    prepare(convert(make_frame()), tmp_path / "store", **COLUMNS)
    assert content(tmp_path / "store") == content(from_parquet.path)


def test_a_frame_gives_the_store_of_a_csv_file(tmp_path: Path, from_parquet: Store) -> None:
    make_frame().drop(columns="unused").to_csv(tmp_path / "log.csv", index=False)
    store = prepare(tmp_path / "log.csv", tmp_path / "store", **COLUMNS)
    assert store.manifest["source_hashes"] == from_parquet.manifest["source_hashes"]
    assert content(store.path) == content(from_parquet.path)


def test_integers_become_their_text(tmp_path: Path) -> None:
    frame = one_row(uid=[160974], doc=[2**62 + 1])
    assert steps(prepare(frame, tmp_path / "store", ONE_PART, **COLUMNS)) == {
        "160974": [(str(2**62 + 1), "click", 1_650_000_000)]
    }


def test_missing_values_are_rejected_and_whole_floats_keep_their_names(tmp_path: Path) -> None:
    """A missing id makes pandas store the others as floats: 160974.0 is still user 160974."""
    frame = pd.DataFrame(
        {
            "uid": [160974, np.nan, 160974, 160975, 160975],
            "doc": ["x", "x", None, "y", "z"],
            "ts": [
                dt.datetime(2022, 4, 15),
                dt.datetime(2022, 4, 15),
                dt.datetime(2022, 4, 15),
                pd.NaT,
                dt.datetime(2022, 4, 16),
            ],
            "action": ["click", "click", "click", "click", "like"],
        }
    )
    assert frame["uid"].dtype == float
    config = SessionConfig(split=(0, 1, 0), max_rejected=0.7)
    store = prepare(frame, tmp_path / "store", config, **COLUMNS)
    assert steps(store) == {"160974": [("x", "click", 1_649_980_800)], "160975": [("z", "like", 1_650_067_200)]}
    assert store.manifest["rejected"] == {"item is missing": 1, "time is missing": 1, "user is missing": 1}


@pytest.mark.parametrize(
    "times",
    [
        [dt.date(2022, 4, 15)],
        ["2022-04-15"],
        pd.to_datetime(["2022-04-15"]),
        pd.to_datetime(["2022-04-15 02:00"]).tz_localize("Europe/Paris"),
        [1_649_980_800_000],
    ],
    ids=["date", "text", "timestamp", "zone", "milliseconds"],
)
def test_times_as_they_come(tmp_path: Path, times: Any) -> None:
    store = prepare(one_row(ts=times), tmp_path / "store", ONE_PART, **COLUMNS)
    assert steps(store) == {"a": [("x", "click", 1_649_980_800)]}


def test_levels_and_items_from_frames(tmp_path: Path) -> None:
    frame = one_row(action=[4.5])
    items = pd.DataFrame({"id": ["x"], "kind": ["news"], "tags": [["b", "a"]], "name": ["An item"]})
    columns = {**COLUMNS, "rewards": (0, 1, 2), "levels": (1, 3)}
    table = ItemTable(items, ["kind", "tags"], key="id", title="name")
    store = prepare(frame, tmp_path / "store", ONE_PART, items=table, **columns)
    assert store.behaviours.rewards == (0, 1, 2)
    assert [session.steps[0][1] for session in read_back(store)] == [store.behaviours.names[2]]
    row = int(store.catalog.rows_of(["x"])[0])
    assert store.catalog.title_of(row) == "An item"
    assert {name: feature.values(row) for name, feature in store.catalog.features.items()} == {
        "kind": ("news",),
        "tags": ("a", "b"),
    }


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (make_frame(0), "the log holds no rows"),
        (one_row().drop(columns="ts"), "the data frame: no column 'ts'; its columns are uid, doc, action"),
        (
            one_row().rename(columns={"uid": "uidd"}),
            "no column 'uid'; its columns are uidd, doc, ts, action. Did you mean 'uidd'?",
        ),
        (pd.DataFrame({0: [1], 1: [2]}), r"no column 'uid'; its columns are 0 \(int\), 1 \(int\)"),
        (pa.table({"uid": ["a"]}), "the data frame: no column 'doc'; its columns are uid"),
        (pd.concat([one_row(), one_row()["uid"]], axis=1), "column 'uid' appears twice"),
        (one_row(uid=[["a"]]), r"column 'uid' holds VARCHAR\[\]; a log's columns must hold one plain value each"),
        (one_row(uid=[b"a"]), "column 'uid' holds BLOB"),
        (one_row(ts=[dt.timedelta(days=19000)]), r"the data frame: column 'ts' holds duration\[.s\]; convert it"),
        (one_row(ts=pd.period_range("2022-04-15", periods=1)), "the data frame: column 'ts' holds extension"),
        (one_row(ts=[True]), "the time column has type BOOLEAN"),
        (pd.concat([one_row(), one_row(uid=[1])]), "the data frame: cannot be read .*; give every column one type"),
        (one_row(action=["share"]), "behaviour is unknown .*for instance 'share'"),
    ],
)
def test_bad_frames_are_one_sentence(tmp_path: Path, frame: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        prepare(frame, tmp_path / "store", **COLUMNS)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        (one_row(), {"time": None}, "time: missing; name the column"),
        (one_row(), {"rewards": None}, "rewards: missing; give a reward for each label"),
        (one_row(), {"rewards": [0, 1]}, "rewards: give a reward for each label"),
        (one_row(), {"rewards": {"skip": 0, "click": "one"}}, r"rewards: must be numbers, got \[0, 'one'\]"),
        (one_row(), {"rewards": None, "levels": ["3s", 10]}, r"levels: must be numbers, got \['3s', 10\]"),
        (one_row(), {"levels": [1]}, "rewards: with levels, give one number for each level"),
        (one_row(), {"items": one_row()}, r"items: got a DataFrame; write items=mbcal.ItemTable\(TABLE, \['COLUMN', …\]\)"),
        (one_row(), {"users": "users.csv"}, r"users: got a str; write users=mbcal.UserTable\(TABLE, \['COLUMN', …\]\)"),
        ({"uid": [1]}, {}, "source: dict is not a log"),
        (MovieLens("ml.zip"), {}, "user: belongs to a path or data frame; MovieLens has its own columns"),
        (MovieLens("ml.zip"), {**dict.fromkeys(COLUMNS), "time_unit": "s"}, "time_unit: belongs to a path or data frame"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, source: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        prepare(source, tmp_path / "store", **{**COLUMNS, **changes})
    assert list(tmp_path.iterdir()) == []


def test_pandas_need_not_be_installed(tmp_path: Path) -> None:
    script = f"""
import sys
class WithoutPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)
sys.meta_path.insert(0, WithoutPandas())
import pyarrow as pa, mbcal
table = pa.table({{"uid": ["a"], "doc": ["x"], "ts": [1650000000], "action": ["click"]}})
mbcal.prepare(table, {str(tmp_path / "store")!r}, user="uid", item="doc", time="ts", behaviour="action",
              rewards={{"skip": 0, "click": 1}})
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_example_of_the_guide_runs(tmp_path: Path) -> None:
    guide = (ROOT / "docs/data.md").read_text()
    done = subprocess.run(
        [sys.executable, "-c", blocks(guide, "python")[0]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert f"```\n{done.stdout}```" in guide
