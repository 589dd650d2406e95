"""Logs of the layout `table`: forms of times, labels, levels, headers, names and item tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import ItemTable, Labels, Levels, SessionConfig, TableLog, prepare
from mbcal.errors import InputError
from tests.support.logs import ONE_PART, read_back, steps, write_csv


def make_table(paths: object, **changes: object) -> TableLog:
    known: dict[str, object] = {
        "user": "who",
        "item": "what",
        "time": "when",
        "behaviour": "did",
        "rule": Labels({"no": 0, "yes": 1}),
    }
    return TableLog(paths, **{**known, **changes})  # type: ignore[arg-type]


HEADER = ("who", "what", "when", "did")


@pytest.mark.parametrize(
    "time",
    [
        "1650000000",
        "1650000000.0",
        "1650000000000",
        "1650000000000000",
        "1650000000000000000",
        "2022-04-15T05:20:00",
        "2022-04-15 05:20:00.000000",
        "2022-04-15T05:20:00Z",
        "2022-04-15T07:20:00+02:00",
    ],
)
def test_table_reads_time_as_it_comes(tmp_path: Path, time: str) -> None:
    log = write_csv(tmp_path / "log.csv", [("a", "x", time, "yes")], HEADER)
    assert steps(prepare(make_table(log), tmp_path / "store", ONE_PART)) == {"a": [("x", "yes", 1650000000)]}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1650000000], pa.int64()),
        pa.array([1650000000], pa.uint32()),
        pa.array([1650000000.0], pa.float64()),
        pa.array([1650000000000], pa.int64()),
        pa.array([1650000000], pa.timestamp("s")),
        pa.array([1650000000000], pa.timestamp("ms")),
        pa.array([1650000000000000], pa.timestamp("us", tz="Europe/Paris")),
        pa.array([1650000000000000000], pa.timestamp("ns")),
        pa.array([1650000000000000000], pa.timestamp("ns", tz="UTC")),
        pa.array(["2022-04-15T05:20:00"], pa.string()),
    ],
    ids=lambda column: str(column.type),
)
def test_table_reads_typed_time(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"who": [1], "what": [2], "when": column, "did": ["yes"]}), tmp_path / "log.parquet")
    store = prepare(make_table(tmp_path / "log.parquet"), tmp_path / "store", ONE_PART)
    assert steps(store) == {"1": [("2", "yes", 1650000000)]}


def test_table_reads_dates_and_given_units_and_formats(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"who": ["a"], "what": ["x"], "when": pa.array([19097], pa.date32()), "did": ["yes"]}),
        tmp_path / "date.parquet",
    )
    day = 19097 * 86400
    assert steps(prepare(make_table(tmp_path / "date.parquet"), tmp_path / "1", ONE_PART)) == {"a": [("x", "yes", day)]}
    log = write_csv(tmp_path / "ms.csv", [("a", "x", 5000, "yes")], HEADER)
    assert steps(prepare(make_table(log, time_unit="ms"), tmp_path / "2", ONE_PART)) == {"a": [("x", "yes", 5)]}
    log = write_csv(tmp_path / "odd.csv", [("a", "x", "15/04/2022", "yes")], HEADER)
    assert steps(prepare(make_table(log, time_format="%d/%m/%Y"), tmp_path / "3", ONE_PART)) == {"a": [("x", "yes", day)]}


def test_table_reads_csv_in_many_forms(tmp_path: Path) -> None:
    rows = [("a", "x, y", 1, "yes"), ("b", 'a "quoted"\nline', 2, "no"), ("é", "ŝ", 3, "yes")]
    plain = write_csv(tmp_path / "log.csv", rows, HEADER)
    truth = read_back(prepare(make_table(plain), tmp_path / "plain", ONE_PART))
    assert {step[0] for session in truth for step in session.steps} == {"x, y", 'a "quoted"\nline', "ŝ"}
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    bom = tmp_path / "bom.csv"
    bom.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    unix = tmp_path / "unix.csv"
    unix.write_bytes(plain.read_bytes().replace(b"\r\n", b"\n"))
    mixed = tmp_path / "mixed.csv"
    mixed.write_bytes(plain.read_bytes().replace(b"\r\n", b"\n", 2))
    mac = tmp_path / "mac.csv"
    mac.write_bytes(unix.read_bytes().replace(b"\nline", b" line").replace(b"\n", b"\r"))
    disguised = tmp_path / "disguised.csv"
    disguised.write_bytes(packed.read_bytes())
    assert len(read_back(prepare(make_table(mac), tmp_path / "mac", ONE_PART))) == len(truth)
    for path in (packed, bom, unix, mixed, disguised):
        assert read_back(prepare(make_table(path), tmp_path / f"{path.name}.store", ONE_PART)) == truth, path.name


def test_table_reads_latin_1_tabs_and_semicolons(tmp_path: Path) -> None:
    for name, delimiter in (("log.tsv", "\t"), ("log.csv", ";")):
        lines = [delimiter.join(HEADER), delimiter.join(["é", "Amélie", "5", "yes"])]
        (tmp_path / name).write_bytes("\n".join(lines).encode("latin-1"))
        store = prepare(make_table(tmp_path / name), tmp_path / f"{name}.store", ONE_PART)
        assert steps(store) == {"é": [("Amélie", "yes", 5)]}


def test_table_mixes_parquet_and_csv(tmp_path: Path) -> None:
    pq.write_table(pa.table({"who": [1], "what": [2], "when": [5], "did": ["yes"]}), tmp_path / "a.parquet")
    write_csv(tmp_path / "b.csv", [(1, 3, 6, "no")], HEADER)
    store = prepare(make_table(tmp_path), tmp_path / "store", ONE_PART)
    assert steps(store) == {"1": [("2", "yes", 5), ("3", "no", 6)]}


def test_table_numeric_labels_match_by_value(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", [("a", "x", 1, "5.0"), ("a", "y", 2, "1")], HEADER)
    store = prepare(make_table(log, rule=Labels({"1": 1, "5": 5})), tmp_path / "store", ONE_PART)
    assert steps(store) == {"a": [("x", "5", 1), ("y", "1", 2)]}


def test_table_levels(tmp_path: Path) -> None:
    log = write_csv(
        tmp_path / "log.csv", [("a", str(k), k, dwell) for k, dwell in enumerate(("0.2", "0.5", "9", "10"))], HEADER
    )
    store = prepare(make_table(log, rule=Levels((0.5, 3, 10), (0, 1, 2, 9))), tmp_path / "store", ONE_PART)
    assert [step[1] for step in steps(store)["a"]] == ["<0.5", "0.5..3", "3..10", ">=10"]
    assert store.behaviours.cuts == (0.5, 3, 10)
    assert store.behaviours.rewards == (0, 1, 2, 9)


def test_table_propensities_follow_their_steps(tmp_path: Path) -> None:
    rows = [("a", "y", 2, "no", 0.25), ("a", "x", 1, "yes", 0.5), ("a", "z", 3, "no", 1.5), ("a", "z", 4, "no", 1.0)]
    log = write_csv(tmp_path / "log.csv", rows, (*HEADER, "p"))
    store = prepare(make_table(log, propensity="p"), tmp_path / "store", SessionConfig(split=(0, 1, 0), max_rejected=0.5))
    sessions = store.sessions("train")
    assert sessions.propensities is not None
    assert sessions.propensities[0, :4].tolist() == [0.5, 0.25, 1.0, 0.0]
    assert store.manifest["rejected"] == {"propensity is not in (0, 1]": 1}


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.string()])
def test_nan_in_parquet_is_rejected_as_in_csv(tmp_path: Path, kind: pa.DataType) -> None:
    """Statistics of Parquet files ignore NaN, so a comparison that is answered from them would accept it."""
    columns = {"who": ["a"] * 4, "what": list("wxyz"), "when": [1, 2, 3, 4], "did": ["yes"] * 4}
    propensities = pa.array([0.5, float("nan"), 0.5, float("nan")]).cast(kind)
    pq.write_table(pa.table({**columns, "p": propensities}), tmp_path / "log.parquet")
    config = SessionConfig(split=(0, 1, 0), max_rejected=0.5)
    store = prepare(make_table(tmp_path / "log.parquet", propensity="p"), tmp_path / "store", config)
    assert store.manifest["rejected"] == {"propensity is not in (0, 1]": 2}
    assert steps(store) == {"a": [("w", "yes", 1), ("y", "yes", 3)]}


def test_item_features_single_multi_missing_and_repeated(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", [("a", item, k, "yes") for k, item in enumerate("wxyz")], HEADER)
    items = write_csv(
        tmp_path / "items.csv",
        [
            ("x", "news", "b|a", "Ex"),
            ("y", "", "", ""),
            ("z", "sport", "c", "Zed"),
            ("z", "arts", "a", "Zed"),
            ("q", "never", "q", "Q"),
        ],
        ("id", "kind", "tags", "label"),
    )
    store = prepare(
        make_table(log, items=ItemTable(items, ["kind", "tags"], key="id", title="label")), tmp_path / "store", ONE_PART
    )
    kind, tags = store.catalog.features["kind"], store.catalog.features["tags"]
    assert [kind.values(row) for row in range(2, 6)] == [(), ("news",), (), ("arts",)]
    assert [tags.values(row) for row in range(2, 6)] == [(), ("a", "b"), (), ("a", "c")]
    assert store.catalog.titles == (None, "Ex", None, "Zed")
    assert kind.offsets is None
    assert tags.offsets is not None


def test_item_features_from_parquet_lists(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", [("a", "1", 1, "yes"), ("a", "2", 2, "yes")], HEADER)
    pq.write_table(pa.table({"what": [1, 2], "tags": [["b", "a"], None], "price": [3, None]}), tmp_path / "items.parquet")
    store = prepare(
        make_table(log, items=ItemTable(tmp_path / "items.parquet", ["tags", "price"])), tmp_path / "store", ONE_PART
    )
    features = store.catalog.features
    assert [features["tags"].values(row) for row in (2, 3)] == [("a", "b"), ()]
    assert [features["price"].values(row) for row in (2, 3)] == [("3",), ()]


@pytest.mark.parametrize(
    "header", [",who,what,when,did", "who,what,when,did,", "WHO,who,what,when,did", "extra,who,what,when,did,extra"]
)
def test_headers_that_are_no_identifiers(tmp_path: Path, header: str) -> None:
    """An index column of pandas, a trailing comma, names that differ in case, a name twice that nobody asked for."""
    values = {"who": "a", "what": "x", "when": "5", "did": "yes"}
    line = ",".join(values.get(column, "?") for column in header.split(","))
    (tmp_path / "log.csv").write_text(f"{header}\n{line}\n")
    store = prepare(make_table(tmp_path / "log.csv"), tmp_path / "store", ONE_PART)
    assert steps(store) == {"a": [("x", "yes", 5)]}


@pytest.mark.parametrize("name", ["log[1].csv", "lo*g.csv", "log?.csv", "it's.csv", "log[1].parquet"])
def test_names_of_files_are_no_patterns(tmp_path: Path, name: str) -> None:
    for other in ("log1.csv", "loxg.csv", "logA.csv"):
        write_csv(tmp_path / other, [("WRONG", "x", 5, "yes")], HEADER)
    if name.endswith(".csv"):
        write_csv(tmp_path / name, [("a", "x", 5, "yes")], HEADER)
    else:
        pq.write_table(pa.table({"who": ["a"], "what": ["x"], "when": [5], "did": ["yes"]}), tmp_path / name)
    store = prepare(make_table(tmp_path / name), tmp_path / "store", ONE_PART)
    assert steps(store) == {"a": [("x", "yes", 5)]}


def test_whole_numbers_are_called_alike_in_every_file(tmp_path: Path) -> None:
    for name, users in (("a", pa.array([1, 2], pa.int64())), ("b", pa.array([1.0, None, 2.0], pa.float64()))):
        count = len(users)
        columns = {"who": users, "what": [7] * count, "when": list(range(count)), "did": ["yes"] * count}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    write_csv(tmp_path / "c.csv", [("1", "7", 9, "yes")], HEADER)
    store = prepare(make_table(tmp_path), tmp_path / "store", SessionConfig(split=(0, 1, 0), max_rejected=0.9))
    assert set(store.users) == {"1", "2"}


def test_a_store_within_the_folder_is_no_log(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", [("a", "x", 5, "yes")], HEADER)
    (tmp_path / "manifest.json").write_text('{"files": ["log.csv"]}')  # somebody else's
    for _ in range(2):
        store = prepare(make_table(tmp_path), tmp_path / "store", ONE_PART, overwrite=True)
        assert store.manifest["counts"]["rows"] == 1


def test_a_feature_may_be_called_item(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", [("a", "x", 1, "yes")], HEADER)
    items = write_csv(tmp_path / "items.csv", [("x", "thing", "t")], ("id", "item", "what"))
    store = prepare(make_table(log, items=ItemTable(items, ["item", "what"], key="id")), tmp_path / "store", ONE_PART)
    assert {name: feature.values(2) for name, feature in store.catalog.features.items()} == {
        "item": ("thing",),
        "what": ("t",),
    }


def test_folders_are_no_columns(tmp_path: Path) -> None:
    (tmp_path / "who=9").mkdir()
    columns = {"who": ["a", "b"], "what": ["x", "y"], "when": [5, 6], "did": ["yes", "no"]}
    pq.write_table(pa.table(columns), tmp_path / "who=9" / "log.parquet")
    store = prepare(make_table(tmp_path / "who=9" / "log.parquet"), tmp_path / "store", ONE_PART)
    assert set(store.users) == {"a", "b"}


def test_item_tables_of_several_files_and_types(tmp_path: Path) -> None:
    log = write_csv(tmp_path / "log.csv", [("a", item, item, "yes") for item in range(4)], HEADER)
    pq.write_table(pa.table({"what": [0.0, 1.0, None], "tags": [["p"], ["q", "r"], []]}), tmp_path / "i1.parquet")
    write_csv(tmp_path / "i2.csv", [(2, "p|q"), (3, "q")], ("what", "tags"))
    items = ItemTable([tmp_path / "i1.parquet", tmp_path / "i2.csv"], ["tags"])
    tags = prepare(make_table(log, items=items), tmp_path / "store", ONE_PART).catalog.features["tags"]
    assert [tags.values(row) for row in range(2, 6)] == [("p",), ("q", "r"), ("p", "q"), ("q",)]


def test_the_log_may_be_its_own_item_table(tmp_path: Path) -> None:
    rows = [("a", "x", k, "yes", "news", "Title") for k in range(20_000)]
    log = write_csv(tmp_path / "log.csv", rows, (*HEADER, "kind", "label"))
    store = prepare(make_table(log, items=ItemTable(log, ["kind"], title="label")), tmp_path / "store", ONE_PART)
    assert store.catalog.features["kind"].values(2) == ("news",)
    assert store.catalog.titles == ("Title",)


@pytest.mark.parametrize("files", [["Item"], ["item"]])
def test_parquet_columns_that_differ_in_case_are_refused(tmp_path: Path, files: list[str]) -> None:
    pq.write_table(pa.table({"who": [1], "Item": [2], "item": [3], "when": [4], "did": ["yes"]}), tmp_path / "log.parquet")
    with pytest.raises(InputError, match="but for upper and lower case"):
        prepare(make_table(tmp_path / "log.parquet", item=files[0]), tmp_path / "store")
