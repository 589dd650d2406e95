"""Files, zips and folders that cannot be read or written are refused in one sentence, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import MovieLens, SessionConfig, Store, prepare
from mbcal.errors import InputError, MbcalError, OptionError, OutputError
from tests.support.bad_logs import GOOD, HEADER, log
from tests.support.logs import write_csv


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


def test_names_too_long_leave_no_folder(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", GOOD, HEADER)
    with pytest.raises(OutputError, match="cannot be written"):
        prepare(log(path), tmp_path / "new" / "deep" / ("x" * 250))
    assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]
