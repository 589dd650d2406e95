"""Bad rows of a log are rejected with a reason; too many of them stop the run in one sentence."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import ItemTable, Levels, SessionConfig, Store, prepare
from mbcal.errors import InputError
from tests.support.bad_logs import GOOD, HEADER, log
from tests.support.logs import write_csv


def rejected(store: Store) -> dict[str, list[tuple[str | None, ...]]]:
    """Reason -> the rows rejected for it."""
    found: dict[str, list[tuple[str | None, ...]]] = {}
    for row in store.table("rejected.parquet").to_pylist():
        found.setdefault(row["reason"], []).append((row["user"], row["item"], row["time"], row["behaviour"]))
    assert {reason: len(rows) for reason, rows in found.items()} == store.manifest["rejected"]
    return found


def test_bad_rows_of_text_are_rejected_with_their_reason(tmp_path: Path) -> None:
    bad = [
        ("", "x", 1_600_000_000, "yes"),
        ("a", "", 1_600_000_000, "yes"),
        ("a", "x", "", "yes"),
        ("a", "x", "last Tuesday", "yes"),
        ("a", "x", "nan", "yes"),
        ("a", "x", "infinity", "yes"),
        ("a", "x", -5, "yes"),
        ("a", "x", "9999-01-01", "yes"),
        ("a", "x", 1_600_000_000, ""),
        ("a", "x", 1_600_000_000, "maybe"),
        GOOD[3],
    ]
    path = write_csv(tmp_path / "log.csv", [*GOOD, *bad], HEADER)
    with path.open("a") as file:
        file.write("a,x\na,x,1,yes,and more\n")
    store = prepare(log(path), tmp_path / "store", SessionConfig(max_rejected=0.5))
    assert rejected(store) == {
        "user is missing": [(None, "x", "1600000000", "yes")],
        "item is missing": [("a", None, "1600000000", "yes")],
        "time is missing": [("a", "x", None, "yes")],
        "time cannot be read": [("a", "x", "infinity", "yes"), ("a", "x", "last Tuesday", "yes"), ("a", "x", "nan", "yes")],
        "time is absurd (before 1970 or after 2099)": [("a", "x", "-5", "yes"), ("a", "x", "9999-01-01", "yes")],
        "behaviour is missing": [("a", "x", "1600000000", None)],
        "behaviour is unknown": [("a", "x", "1600000000", "maybe")],
        "exact duplicate": [("a", "item 3", "2020-09-13 12:26:43", "yes")],
        "line has the wrong shape": [(None, None, None, "a,x"), (None, None, None, "a,x,1,yes,and more")],
    }
    counts = store.manifest["counts"]
    assert counts["rows"] == len(GOOD)
    assert counts["rows_read"] == len(GOOD) + len(bad) + 2


def test_bad_rows_of_parquet_are_rejected_with_their_reason(tmp_path: Path) -> None:
    columns = {
        "who": pa.array([1.0, None, math.nan, 1.0, 1.0, 1.0, 1.0], pa.float64()),
        "what": pa.array([1, 1, 1, None, 1, 1, 1], pa.int64()),
        "when": pa.array([5, 5, 5, 5, None, 5, 5], pa.int64()),
        "did": pa.array([0.5, 0.5, 0.5, 0.5, 0.5, math.nan, math.inf], pa.float32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    store = prepare(log(tmp_path / "log.parquet", Levels((1.0,))), tmp_path / "store", SessionConfig(max_rejected=0.9))
    assert {reason: len(rows) for reason, rows in rejected(store).items()} == {
        "user is missing": 2,
        "item is missing": 1,
        "time is missing": 1,
        "behaviour is not a number": 2,
    }
    assert store.manifest["counts"]["rows"] == 1


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("unit", ["auto", "s", "ns"])
def test_extreme_times_never_overflow(tmp_path: Path, value: int, unit: str) -> None:
    columns = {"who": [1, 1], "what": [1, 1], "when": pa.array([5_000_000_000, value], pa.int64()), "did": ["yes", "yes"]}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    if unit == "s":  # the good row is in the year 2128 as seconds
        with pytest.raises(InputError, match="2 of 2 rows"):
            prepare(log(tmp_path / "log.parquet", time_unit=unit), tmp_path / "store", SessionConfig(max_rejected=1.0))
    else:
        columns["when"] = pa.array([1_600_000_000 if unit == "auto" else 5, value], pa.int64())
        pq.write_table(pa.table(columns), tmp_path / "log.parquet")
        store = prepare(log(tmp_path / "log.parquet", time_unit=unit), tmp_path / "store", SessionConfig(max_rejected=1.0))
        assert store.manifest["counts"]["rows"] == 1


def test_too_many_bad_rows_stop_with_the_commonest_reason(tmp_path: Path) -> None:
    rows = [*GOOD[:6], *[("a", "x", "?", "yes")] * 3, ("a", "x", 5, "what")]
    path = write_csv(tmp_path / "log.csv", rows, HEADER)
    with pytest.raises(InputError, match=r"4 of 10 rows .* most often: time cannot be read \(3\)"):
        prepare(log(path), tmp_path / "store")
    assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]
    assert prepare(log(path), tmp_path / "store", SessionConfig(max_rejected=0.4)).manifest["counts"]["rows"] == 6


def test_too_many_duplicates_stop_too(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD * 2, HEADER)
    with pytest.raises(InputError, match=r"40 of 80 rows .* exact duplicate \(40\)"):
        prepare(log(path), tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_nan_ids_are_missing_even_where_statistics_hide_them(tmp_path: Path) -> None:
    """DuckDB 2.0 answers isnan() from Parquet's statistics, which know nothing of NaN."""
    ids = [float(k % 7) for k in range(200)]
    ids[5] = ids[50] = math.nan
    columns = {"who": ids, "what": [k % 9 for k in range(200)], "when": list(range(200)), "did": ["yes"] * 200}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    store = prepare(log(tmp_path / "log.parquet"), tmp_path / "store")
    assert store.manifest["rejected"] == {"user is missing": 2}
    assert set(store.users) == set("0123456")


def test_negative_zero_is_zero_whatever_the_order(tmp_path: Path) -> None:
    rows = [("a", "x", 5, "0.0"), ("a", "x", 5, "-0.0"), *[("a", "x", 6 + k, "1") for k in range(9)]]
    hashes = []
    for number, listed in enumerate((rows, rows[::-1])):
        path = write_csv(tmp_path / f"{number}.csv", listed, HEADER)
        store = prepare(log(path, Levels((0.5,))), tmp_path / f"{number}.store")
        hashes.append(store.manifest["content_hash"])
        assert store.manifest["rejected"] == {"exact duplicate": 1}
    assert hashes[0] == hashes[1]


def test_rows_that_differ_in_propensity_are_no_duplicates(tmp_path: Path) -> None:
    rows = [("a", "x", 5, "yes", 0.9), ("a", "x", 5, "yes", 0.1)]
    path = write_csv(tmp_path / "log.csv", rows, (*HEADER, "p"))
    assert prepare(log(path, propensity="p"), tmp_path / "store").manifest["counts"]["rows"] == 2


def test_broken_lines_of_an_item_table_are_no_rows_of_the_log(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", [("a", k % 3, k, "yes") for k in range(20)], HEADER)
    items = write_csv(tmp_path / "items.csv", [(k, "news", "a|b") for k in range(3)], ("what", "kind", "tags"))
    with items.open("a") as file:
        file.write("7\n8,x,y,z\n")
    store = prepare(log(path, items=ItemTable(items, ["kind", "tags"])), tmp_path / "store", SessionConfig(max_rejected=0))
    assert store.manifest["rejected"] == {"line of an item table has the wrong shape": 2}
    assert store.manifest["counts"]["rows_read"] == 20
    assert store.table("rejected.parquet")["behaviour"].to_pylist() == ["7", "8,x,y,z"]


def test_an_item_table_that_fits_no_item_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD, HEADER)
    items = write_csv(tmp_path / "items.csv", [("other", "news")], ("what", "kind"))
    with pytest.raises(InputError, match="no item of the log is in the item table"):
        prepare(log(path, items=ItemTable(items, ["kind"])), tmp_path / "store")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("excel.csv", "who,what,when,did\na,x,5,yes\n".encode("utf-16"), "this is UTF-16 text"),
        ("long.csv", b"x" * 200_000 + b",what,when,did\n", "its first line is not a header"),
    ],
)
def test_text_that_is_none_is_named(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        prepare(log(tmp_path / name), tmp_path / "store")


def test_bad_rows_by_the_million_stay_on_disk(tmp_path: Path) -> None:
    """Rejected rows are streamed; where the batches end does not show in the file."""
    rows = [("a", f"item {k}", 5 + k, "yes" if k % 2 else "never") for k in range(4000)]
    stores = []
    for batch in (64, 1 << 18):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mbcal.data.ingest.BATCH", batch)
            patch.setattr("mbcal.data.store_writer._ROW_GROUP", 700)
            path = write_csv(tmp_path / "log.csv", rows, HEADER)
            stores.append(prepare(log(path), tmp_path / f"{batch}", SessionConfig(max_rejected=0.9)))
    assert stores[0].manifest["content_hash"] == stores[1].manifest["content_hash"]
    assert pq.ParquetFile(stores[0].path / "rejected.parquet").num_row_groups == 3


def test_nested_columns_are_refused_in_any_file(tmp_path: Path) -> None:
    first = write_csv(tmp_path / "a.csv", GOOD, HEADER)
    columns = {"who": ["a"], "what": [["x", "y"]], "when": [5], "did": ["yes"]}
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="column 'what' holds VARCHAR"):
        prepare(log([first, tmp_path / "b.parquet"]), tmp_path / "store")
