"""The store as a reader meets it: whole, checked, and never half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mbcal import Labels, SessionConfig, Store, TableLog, prepare
from mbcal.data.describe import describe
from mbcal.errors import OptionError, StoreError
from mbcal.storage.manifest import listed_files, write_manifest
from tests.support.logs import REWARDS, Row, content, expected, read_back, table, write_rows

ROWS = [Row(f"u{k % 23}", f"i{k * k % 31}", 1_600_000_000 + k // 3, ("skip", "click", "like")[k % 3]) for k in range(600)]
HOW = SessionConfig(horizon=5, history=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return prepare(table(write_rows(tmp_path / "log.csv", ROWS)), tmp_path / "store", HOW)


def test_every_file_flipped_by_one_bit_is_found(store: Store) -> None:
    for name in store.manifest["files"]:
        path = store.path / name
        whole = path.read_bytes()
        for position in (len(whole) // 3, len(whole) - 9):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
            with pytest.raises(StoreError, match=rf"{name}: damaged"):
                Store.open(store.path).verify()
        path.write_bytes(whole[:-1])
        with pytest.raises(StoreError, match=rf"{name}: damaged"):
            Store.open(store.path).verify()
        path.unlink()
        with pytest.raises(StoreError, match=rf"{name}: missing"):
            Store.open(store.path)
        path.write_bytes(whole)
    Store.open(store.path).verify()


def test_a_changed_manifest_is_found(store: Store) -> None:
    path = store.path / "manifest.json"
    manifest = json.loads(path.read_text())
    for change in (
        {"counts": {**manifest["counts"], "rows": 1}},
        {"options": {**manifest["options"], "seed": 9}},
        {"rejected": {"x": 1}},
    ):
        path.write_text(json.dumps({**manifest, **change}))
        with pytest.raises(StoreError, match="content hash mismatch"):
            Store.open(store.path)
    path.write_text(json.dumps({**manifest, "schema": 99}))
    with pytest.raises(StoreError, match="schema 99, this mbcal reads schema 1"):
        Store.open(store.path)
    for text in ("", "{", "[]", "null", '{"schema": 1}'):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"manifest\.json: damaged"):
            Store.open(store.path)


def test_a_hostile_manifest_is_one_sentence(store: Store) -> None:
    """Also where its hash is right: anyone can compute it."""
    path = store.path / "manifest.json"
    entries = {key: value for key, value in json.loads(path.read_text()).items() if key != "content_hash"}
    deep: list[object] = []
    for _ in range(60):
        deep = [deep]
    for changes, problem in (
        ({"deep": deep}, "nested too deeply"),
        ({"files": 5}, "AttributeError"),
        ({"files": {"items.parquet": 5}}, "TypeError"),
        ({"files": {"items.parquet": {"sha256": 5}}}, "TypeError: a hash must be text"),
    ):
        write_manifest(store.path, {**entries, **changes})
        with pytest.raises(StoreError, match=rf"manifest\.json: damaged \({problem}") as error:
            Store.open(store.path)
        assert "\n" not in str(error.value)
    for text in ("[" * 100_000, '{"a":' * 100_000, '{"schema": 1, "files": {}, "content_hash": "", "x": "\\ud800"}'):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"manifest\.json: damaged"):
            Store.open(store.path)
        assert listed_files(store.path, "store") in (None, {"manifest.json"})


def test_folders_that_are_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder; make a store with 'mbcal prepare'"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="not a store"):
        Store.open(tmp_path)


def test_unknown_part_and_part_without_users(tmp_path: Path) -> None:
    store = prepare(table(write_rows(tmp_path / "log.csv", ROWS[:3])), tmp_path / "store", SessionConfig(split=(1, 0, 0)))
    with pytest.raises(OptionError, match="Did you mean 'train'"):
        store.sessions("trian")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="no sessions for part 'test'"):
        store.sessions("test")


def test_small_blocks_and_shards_change_nothing_but_the_files(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mbcal.data.shards.SHARD_STEPS", 40)
    monkeypatch.setattr("mbcal.data.ingest.BATCH", 64)
    small = prepare(table(tmp_path / "log.csv"), tmp_path / "small", HOW)
    assert len(small.manifest["files"]) > len(store.manifest["files"]) + 10
    assert read_back(small) == read_back(store) == expected(ROWS, HOW)
    assert small.manifest["counts"] == store.manifest["counts"]
    assert small.manifest["source_hashes"] == store.manifest["source_hashes"]


def test_parts_are_contiguous_ranges_of_users(store: Store) -> None:
    parts = store.table("users.parquet")["part"].to_pylist()
    assert parts == sorted(parts, key=["simulator", "train", "test"].index)
    for part in ("simulator", "train", "test"):
        users = store.sessions(part).user
        assert {parts[user] for user in users} == {part}
        assert (np.diff(users) >= 0).all()


def test_source_hash_knows_the_log_and_no_option(store: Store, tmp_path: Path) -> None:
    other = prepare(table(tmp_path / "log.csv"), tmp_path / "other", SessionConfig(horizon=9, seed=5))
    assert other.manifest["source_hashes"] == store.manifest["source_hashes"]
    assert other.manifest["content_hash"] != store.manifest["content_hash"]
    named = TableLog(tmp_path / "log.csv", "user", "item", "time", "behaviour", Labels(dict(reversed(REWARDS.items()))))
    reordered = prepare(named, tmp_path / "reordered", HOW)  # the same labels, told in another order
    assert reordered.manifest["source_hashes"] == store.manifest["source_hashes"]
    by_session = [
        prepare(
            table(write_rows(tmp_path / f"{k}.csv", [replace(r, session=f"{k}") for r in ROWS]), session=True),
            tmp_path / f"{k}",
        )
        for k in "ab"
    ]
    assert by_session[0].manifest["source_hashes"] != by_session[1].manifest["source_hashes"]
    changed = prepare(table(write_rows(tmp_path / "less.csv", ROWS[1:])), tmp_path / "less", HOW)
    assert changed.manifest["source_hashes"]["log"] != store.manifest["source_hashes"]["log"]


def test_same_input_same_bytes(store: Store, tmp_path: Path) -> None:
    again = prepare(table(tmp_path / "log.csv"), tmp_path / "again", HOW)
    assert content(again.path) == content(store.path)


def test_manifest_names_no_path_and_no_clock(store: Store, tmp_path: Path) -> None:
    text = (store.path / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert "log.csv" not in text


def test_a_killed_run_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    rows = [Row(f"u{k % 997}", f"i{k % 31}", 1_600_000_000 + k, "click") for k in range(150_000)]
    log = write_rows(tmp_path / "log.csv", rows)
    command = [sys.executable, "-m", "mbcal", "prepare", "table", str(log), "--out", str(tmp_path / "store")]
    command += [
        "--user",
        "user",
        "--item",
        "item",
        "--time",
        "time",
        "--behaviour",
        "behaviour",
        "--rewards",
        "skip=0,click=1",
    ]
    for delay in (0.4, 0.6, 0.8):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if (tmp_path / "store").exists():  # it had finished: then it is whole
            Store.open(tmp_path / "store").verify()
            return
    # and what was left behind does not stand in the way of the next run
    subprocess.run(command, check=True, capture_output=True)
    Store.open(tmp_path / "store").verify()


def test_describe_counts_what_is_there(store: Store) -> None:
    found = describe(store)
    assert json.loads(json.dumps(found)) == found
    sessions = expected(ROWS, HOW)
    assert found["rows"] == 600
    assert found["users"] == 23
    assert found["items"] == len({row.item for row in ROWS})
    assert found["sessions"] == len(sessions)
    assert found["full_sessions"] == sum(len(session.steps) == 5 for session in sessions)
    assert {entry["name"]: entry["count"] for entry in found["behaviours"]} == {"skip": 200, "click": 200, "like": 200}
    assert found["reward_per_step"] == pytest.approx(2.0)
    assert found["rejected"] == {}
    lengths = {int(length): count for length, count in found["lengths"].items()}
    assert lengths == {n: sum(len(s.steps) == n for s in sessions) for n in lengths}
    assert sum(lengths.values()) == len(sessions)
    reward = {"skip": 0.0, "click": 1.0, "like": 5.0}
    for part, entry in found["parts"].items():
        mine = [sum(reward[behaviour] for _, behaviour, _ in s.steps) for s in sessions if s.part == part]
        assert entry["sessions"] == len(mine)
        assert entry["reward_per_session"] == pytest.approx(np.mean(mine))
    first = [reward[session.steps[0][1]] for session in sessions]
    assert found["reward_by_step"][0] == pytest.approx(np.mean(first))
    shown = {item: sum(row.item == item for row in ROWS) for item in {row.item for row in ROWS}}
    assert found["popularity"]["top"][0]["count"] == max(shown.values())
    most_first = np.cumsum(sorted(shown.values(), reverse=True))
    assert found["popularity"]["half"] == int(np.argmax(most_first >= 300)) + 1
    pairs = np.abs(np.subtract.outer(list(shown.values()), list(shown.values()))).mean()
    assert found["popularity"]["gini"] == pytest.approx(pairs / (2 * np.mean(list(shown.values()))))
    times = [(row.user, row.time) for row in ROWS]
    assert found["ties"] == len(times) - len(set(times))


def test_describe_finds_damage_everywhere_and_copes_with_parts_without_sessions(store: Store, tmp_path: Path) -> None:
    short = prepare(table(tmp_path / "log.csv"), tmp_path / "short", SessionConfig(horizon=100, min_length=100))
    found = describe(short)
    assert found["sessions"] == 0
    assert [entry["reward_per_session"] for entry in found["parts"].values()] == [None, None, None]
    with pytest.raises(StoreError, match="no sessions for part 'train'"):
        short.sessions("train")
    for name in ("users.parquet", "rejected.parquet"):
        with (store.path / name).open("ab") as file:
            file.write(b"x")
        with pytest.raises(StoreError, match=f"{name}: damaged"):
            describe(store)
        store = prepare(table(tmp_path / "log.csv"), tmp_path / f"again-{name}", HOW)


def test_shards_without_sessions_can_be_read(tmp_path: Path) -> None:
    rows = [replace(row, session=f"s{k}") for k, row in enumerate(ROWS[:20])]
    store = prepare(
        table(write_rows(tmp_path / "log.csv", rows), session=True), tmp_path / "store", SessionConfig(min_length=2)
    )
    assert describe(store)["sessions"] == 0


def test_long_histories_of_named_sessions_come_in_smaller_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.data.shards.SHARD_STEPS", 2000)
    rows = [replace(row, session=f"s{k % 5}") for k, row in enumerate(ROWS)]
    log = table(write_rows(tmp_path / "log.csv", rows), session=True)
    short, long = (prepare(log, tmp_path / f"{h}", SessionConfig(history=h)) for h in (20, 400))
    assert len(long.manifest["files"]) > len(short.manifest["files"])
    assert read_back(long) == expected(rows, SessionConfig(history=400), by_session=True)
