"""Bad logs: rows are rejected with a reason, files are refused in one sentence, and nothing is left behind."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import ItemTable, Labels, Levels, MovieLens, SessionConfig, Store, TableLog, prepare
from mbcal.errors import InputError, MbcalError, OptionError, OutputError
from tests.support.logs import write_csv

GOOD = [("a", f"item {k}", 1_600_000_000 + k, "yes") for k in range(40)]
HEADER = ("who", "what", "when", "did")


def log(path: Path | list[Path], rule: Labels | Levels | None = None, **changes: object) -> TableLog:
    known = {"user": "who", "item": "what", "time": "when", "behaviour": "did", **changes}
    return TableLog(path, rule=rule or Labels({"no": 0, "yes": 1}), **known)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.csv", b"", "empty.csv: the file is empty"),
        ("header.csv", b"who,what,when,did\n", "the log holds no rows"),
        (
            "columns.csv",
            b"who,what,wen,did\n1,2,3,yes\n",
            r"no column 'when'; its columns are who, what, wen, did. Did you mean 'wen'",
        ),
        ("twice.csv", b"who,what,when,did,did\n1,2,3,yes,no\n", "column 'did' appears twice"),
        ("fake.parquet", b"PAR1 but not really", "fake.parquet: not a readable Parquet file"),
        ("fake.zip", b"PK\x03\x04 but not really", "fake.zip: not a readable zip"),
        ("cut.csv.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab", "cut.csv.gz: cannot be read"),
        ("binary.csv", bytes(range(256)) * 20, "binary.csv: holds zero bytes, so it is not text"),
    ],
)
def test_files_that_are_no_log_are_one_sentence(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(MbcalError, match=message) as caught:
        prepare(log(path), tmp_path / "store")
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_missing_paths_and_folders_without_a_log(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv: no such file or folder"):
        prepare(log(tmp_path / "nowhere.csv"), tmp_path / "store")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"folder: no ratings file found; looked for ratings.csv or ratings.dat"):
        prepare(MovieLens(tmp_path / "folder"), tmp_path / "store")


def test_truncated_and_corrupt_zips(tmp_path: Path) -> None:
    whole = tmp_path / "log.zip"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("log.csv", "who,what,when,did\n" + "a,x,5,yes\n" * 5000)
    data = whole.read_bytes()
    for name, damaged in {"cut.zip": data[:-60], "flipped.zip": data[:60] + b"\x00\x01\x02\x03" + data[64:]}.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(InputError, match=rf"{name}: not a readable zip"):
            prepare(log(tmp_path / name), tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "member", ["../ratings.csv", "/etc/ratings.csv", "a/../../ratings.csv", "C:\\ratings.csv", "..\\ratings.csv"]
)
def test_zips_that_climb_out_are_refused(tmp_path: Path, member: str) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "evil.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), "userId,movieId,rating,timestamp\n1,1,1,1\n")
    with pytest.raises(InputError, match="has a path outside the archive"):
        prepare(MovieLens(path), tmp_path / "in" / "store")
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["evil.zip", "in"]


def test_existing_folders_are_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD, HEADER)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="mine: already exists; it is not a store"):
            prepare(log(path), tmp_path / "mine", overwrite=overwrite)
    (tmp_path / "empty").mkdir()
    prepare(log(path), tmp_path / "empty")
    with pytest.raises(OutputError, match="empty: already exists; add --overwrite"):
        prepare(log(path), tmp_path / "empty")
    assert prepare(log(path), tmp_path / "empty", SessionConfig(horizon=3), overwrite=True).horizon == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty", "log.csv", "mine"]


def test_a_failed_overwrite_leaves_the_old_store(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD, HEADER)
    old = prepare(log(path), tmp_path / "store").manifest
    bad = write_csv(tmp_path / "bad.csv", [("a", "x", "?", "yes")], HEADER)
    with pytest.raises(InputError):
        prepare(log(bad), tmp_path / "store", overwrite=True)
    assert Store.open(tmp_path / "store").manifest == old


@pytest.mark.parametrize("limit", ["lots", "-1GB", "5MB"])
def test_memory_limits_that_are_none(tmp_path: Path, limit: str) -> None:
    with pytest.raises(OptionError, match="memory-limit"):
        prepare(log(tmp_path), tmp_path / "store", memory_limit=limit)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not let us mount a small disk")
    try:
        rows = [(f"user {k * k % 9777}", f"item {k * k % 1009}", 1_600_000_000 + k, "yes") for k in range(120_000)]
        path = write_csv(tmp_path / "log.csv", rows, HEADER)
        with pytest.raises(OutputError, match="store: the disk is full; nothing was written"):
            prepare(log(path), disk / "store")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # lazy: the caught error may hold a file open


def test_file_size_limit_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """The same for machines that mount nothing: a limit on file size makes every large write fail."""
    rows = [(f"user {k % 977}", f"item {k % 1009}", 1_600_000_000 + k, "yes") for k in range(60_000)]
    columns = {name: [row[k] for row in rows] for k, name in enumerate(HEADER)}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "from mbcal.cli import main; sys.argv = ['mbcal', *sys.argv[1:]]; main()"
    )
    options = ["--user", "who", "--item", "what", "--time", "when", "--behaviour", "did", "--rewards", "no=0,yes=1"]
    command = [sys.executable, "-c", script, "prepare", "table", str(tmp_path / "log.parquet"), *options]
    done = subprocess.run([*command, "--out", str(tmp_path / "store")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the disk is full" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["log.parquet"]


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


def test_only_a_store_and_nothing_but_a_store_is_overwritten(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD, HEADER)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "my web app"}')
    store = prepare(log(path), tmp_path / "store").path
    (store / "notes.txt").write_text("mine")
    for folder in ("web", "store"):
        with pytest.raises(OutputError, match="it is not a store"):
            prepare(log(path), tmp_path / folder, overwrite=True)
    assert (store / "notes.txt").read_text() == "mine"


def test_failure_leaves_no_folder_behind_and_says_the_path_as_given(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        prepare(log(tmp_path / "nowhere.csv"), tmp_path / "new" / "deep" / "store")
    assert list(tmp_path.iterdir()) == []


def test_errors_within_a_zip_name_the_zip(tmp_path: Path) -> None:
    path = tmp_path / "log.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("deep/log 10:00.csv", "who,what\n1,2\n")
    with pytest.raises(InputError, match=r"^log\.zip: log 10:00\.csv: no column 'when'"):
        prepare(log(path), tmp_path / "store")


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD, HEADER)
    with pytest.raises(InputError, match="named twice"):
        prepare(log([path, tmp_path]), tmp_path / "store")


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


def test_odd_zips_are_one_sentence(tmp_path: Path) -> None:
    dot, bad = tmp_path / "dot.zip", tmp_path / "bad.zip"
    with zipfile.ZipFile(dot, "w") as archive:
        archive.writestr(".", "x")
        archive.writestr("log.csv", "who,what,when,did\na,x,5,yes\n")
    assert prepare(log(dot), tmp_path / "store").manifest["counts"]["rows"] == 1
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("log.csv", "who,what,when,did\n" + "a,x,5,yes\n" * 99)
    data = bytearray(bad.read_bytes())
    data[48:60] = b"\xff" * 12
    bad.write_bytes(data)
    with pytest.raises(InputError, match=r"bad\.zip: not a readable zip"):
        prepare(log(bad), tmp_path / "other")


def test_nested_columns_are_refused_in_any_file(tmp_path: Path) -> None:
    first = write_csv(tmp_path / "a.csv", GOOD, HEADER)
    columns = {"who": ["a"], "what": [["x", "y"]], "when": [5], "did": ["yes"]}
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="column 'what' holds VARCHAR"):
        prepare(log([first, tmp_path / "b.parquet"]), tmp_path / "store")


def test_names_too_long_leave_no_folder(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD, HEADER)
    with pytest.raises(OutputError, match="cannot be written"):
        prepare(log(path), tmp_path / "new" / "deep" / ("x" * 250))
    assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]
