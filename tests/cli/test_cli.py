"""The command line as its user meets it, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mbcal import Store, __version__
from mbcal.data.log_facts import first_time
from mbcal.data.store_format import PARTS
from tests.support.command_line import HEADER, REWARDS, ROWS, TABLE, mbcal, refused
from tests.support.logs import write_csv


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_csv(tmp_path / "log.csv", ROWS, HEADER)
    return tmp_path


def test_version_and_help_teach() -> None:
    assert mbcal("--version").stdout == f"mbcal {__version__}\n"
    assert "prepare" in mbcal("--help").stdout
    listed = mbcal("prepare", "--help").stdout
    for layout in ("movielens", "netflix", "kuairand", "table", "newsfeed"):
        assert layout in listed
    options = mbcal("prepare", "table", "--help").stdout
    for option in ("--horizon", "--history", "--min-length", "--split", "--seed", "--memory-limit", "--rewards", "--levels"):
        assert option in options


@pytest.mark.parametrize(
    ("layout", "owner"), [("movielens", "grouplens.org"), ("netflix", "kaggle.com"), ("kuairand", "kuairand.com")]
)
def test_without_a_path_each_layout_says_where_to_get_it(layout: str, owner: str) -> None:
    said = mbcal("prepare", layout).stdout
    assert owner in said
    assert "Terms" in said or "licensed" in said


def test_prepare_and_describe(folder: Path) -> None:
    done = mbcal(*TABLE, *REWARDS, "--horizon", "5", "--out", "store", cwd=folder)
    assert "300 steps of 17 users with 9 items" in done.stdout
    assert done.stderr.splitlines()[0] == "finding and unpacking files"  # plain lines in a pipe
    found = json.loads(mbcal("describe", "store", "--json", cwd=folder).stdout)
    assert (found["rows"], found["users"], found["items"], found["rejected"]) == (300, 17, 9, {})
    assert [entry["count"] for entry in found["behaviours"]] == [100, 100, 100]
    shown = mbcal("describe", "store", cwd=folder).stdout
    assert f"sessions ({found['full_sessions']} full: 5 steps)" in done.stdout
    assert f"sessions of up to 5 steps ({found['full_sessions']} full: that many steps)" in shown
    for heading in ("Behaviours", "Session lengths", "Parts", "Popularity"):
        assert heading in shown


def test_prepare_says_which_rows_are_missing_and_why(folder: Path) -> None:
    done = mbcal(*TABLE, "--rewards", "skip=0,click=1", "--max-rejected", "0.5", "--out", "two-labels", cwd=folder)
    assert "100 rejected rows in rejected.parquet: behaviour is unknown (100)\n" in done.stdout
    assert "Warning: rows with 'like' were left out; give every label a reward in --rewards\n" in done.stderr
    done = mbcal(*TABLE, *REWARDS, "--split", "time:0.4,0.4,0.2", "--out", "by-time", cwd=folder)
    left_out = json.loads((folder / "by-time" / "manifest.json").read_text())["counts"]["outside_parts"]
    assert f"{left_out} of 300 rows left out: outside the time of their part (docs/time.md)\n" in done.stdout


def test_a_table_that_names_items_or_users_otherwise(folder: Path) -> None:
    write_csv(folder / "people.csv", [("u1", 31)], ("id", "age"))
    done = mbcal(*TABLE, *REWARDS, "--items", "people.csv", "--features", "age", "--out", "s", cwd=folder, code=2)
    assert "no column 'doc'; its columns are id, age. Name its item column with --items-key" in done.stderr
    done = mbcal(*TABLE, *REWARDS, "--users", "people.csv", "--user-features", "age", "--out", "s", cwd=folder, code=2)
    assert (
        "no column 'uid'; its columns are id, age. Did you mean 'id'? Name its user column with --users-key" in done.stderr
    )


def test_clicks_alone_and_times_are_told(folder: Path) -> None:
    derived = [*TABLE[: TABLE.index("--behaviour")], "--behaviour", "next-click", "--levels", "5,60", "--gap", "60"]
    done = mbcal(*derived, "--split", "time:0.4,0.4,0.2", "--max-per-user", "15", "--out", "store", cwd=folder)
    assert "can re-rank a short list, not rank a whole catalogue" in done.stderr
    shown = mbcal("describe", "store", cwd=folder).stdout
    for part in (
        "\nfrom 20",
        "Session length by outcome",
        "cut at 20",
        "Heaviest users",
        "Steps on items first seen that day",
    ):
        assert part in shown
    assert "Warning: The log holds clicks alone" in shown
    store = Store.open(folder / "store")
    test = json.loads(mbcal("describe", "store", "--json", cwd=folder).stdout)["parts"]["test"]
    in_sessions = int(store.sessions("test").length.sum())
    assert test["session_steps"] == in_sessions < test["steps"] == sum(len(shard.items) for shard in store.shards("test"))
    counts = [test["users"], test["sessions"], in_sessions, test["steps"] - in_sessions]
    assert "steps in sessions  in histories only" in shown
    assert next(line for line in shown.splitlines() if line.startswith("test ")).split()[1:5] == [*map(str, counts)]


def test_options_reach_the_store(folder: Path) -> None:
    options = [
        "--horizon",
        "4",
        "--history",
        "2",
        "--min-length",
        "3",
        "--split",
        "0.1,0.2,0.7",
        "--seed",
        "9",
        "--gap",
        "30",
    ]
    mbcal(*TABLE, *REWARDS, *options, "--max-rejected", "0", "--memory-limit", "600MB", "--out", "store", cwd=folder)
    found = json.loads(mbcal("describe", "store", "--json", cwd=folder).stdout)
    known = found["options"]
    assert (known["horizon"], known["history"], known["min_length"], known["gap"], known["seed"]) == (4, 2, 3, 30, 9)
    assert known["split"] == [0.1, 0.2, 0.7]
    assert set(found["lengths"]) <= {"3", "4"}
    assert found["short_windows"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TABLE, *REWARDS], "out: missing"),
        ([*TABLE, "--out", "s"], "rewards: missing; give a reward for each label"),
        ([*TABLE, "--rewards", "skip,click=1", "--out", "s"], "rewards: 'skip' is not a new LABEL=NUMBER"),
        ([*TABLE, "--rewards", "skip=0,skip=1", "--out", "s"], "rewards: 'skip=1' is not a new"),
        ([*TABLE, "--rewards", "skip=0", "--out", "s"], "at least two"),
        ([*TABLE, "--levels", "3,x", "--out", "s"], "levels: '3,x' is not a list of numbers"),
        ([*TABLE, "--levels", "3,1", "--out", "s"], "levels: cut points must be finite and rising"),
        ([*TABLE, "--levels", "1,3", "--out", "s"], "300 of 300 rows would be rejected"),
        ([*TABLE, *REWARDS, "--split", "0.5,0.5", "--out", "s"], "split: must be three shares"),
        ([*TABLE, *REWARDS, "--features", "kind", "--out", "s"], "features: need an item table"),
        ([*TABLE, *REWARDS, "--items", "log.csv", "--out", "s"], "name the columns to use with --features"),
        ([*TABLE, *REWARDS, "--items", "log.csv", "--features", "kind", "--out", "s"], "no column 'kind'"),
        ([*TABLE, *REWARDS, "--horizon", "0", "--out", "s"], "horizon: must lie in 1..10000, got 0"),
        ([*TABLE, *REWARDS, "--memory-limit", "1MB", "--out", "s"], "memory-limit: 1MB is too little"),
        ([*TABLE, *REWARDS, "--time-format", "%Y", "--out", "s"], "time cannot be read (300)"),
        ([*TABLE, *REWARDS, "--out", "/proc/no/store"], "cannot be written"),
        ([*TABLE, *REWARDS, "--time-format", "%Q", "--out", "s"], "time-format: '%Q' is not a strptime format"),
        ([*TABLE, "--rewards", "=1,a=0", "--out", "s"], "rewards: a label is empty"),
        ([*TABLE, "--rewards", "1=0,1.0=1", "--out", "s"], "two labels are the same number"),
        ([*TABLE, "--rewards", "nan=0,1=1", "--out", "s"], "most often: behaviour is unknown (300), for instance 'click'"),
        (
            [*TABLE, *REWARDS, "--items", "log.csv", "--features", "ts,ts", "--out", "s"],
            "'ts' is empty, reserved or named twice",
        ),
        ([*TABLE[:6], "uid", *TABLE[7:], *REWARDS, "--out", "s"], "item: 'uid' is the user column too"),
        ([*TABLE, *REWARDS, "--horizon", "9" * 30, "--out", "s"], "horizon: must lie in"),
        ([*TABLE, *REWARDS, "--split", "a", "--out", "s"], "write 0.4,0.4,0.2"),
        (
            [*TABLE, *REWARDS, "--split", "tme:0.4,0.4,0.2", "--out", "s"],
            "'tme:' is unknown; write 0.4,0.4,0.2, or time:0.4",
        ),
        ([*TABLE, *REWARDS, "--split", "tme:0.4,0.4,0.2", "--out", "s"], "Did you mean 'time:'?"),
        ([*TABLE[:-1], "nextclick", "--levels", "5", "--gap", "9", "--out", "s"], "Did you mean 'next-click'?"),
        ([*TABLE, *REWARDS, "--propensity", "ts", "--out", "s"], "propensity is not in (0, 1] (300), for instance '1"),
        ([*TABLE, *REWARDS, "--out", "log.csv"], "log.csv: already exists"),
        (["describe", "log.csv"], "log.csv: a file, not a store"),
        (["prepare", "movielens", "log.csv", "--out", "s"], "log.csv: no column 'userId'"),
        (["prepare", "movielens", "nowhere", "--out", "s"], "nowhere: no such file or folder"),
        (["prepare", "newsfeed", "--sessions", "0", "--out", "s"], "sessions: must be at least 1"),
        (["describe", "."], ".: not a store"),
        (["describe", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(folder: Path, arguments: list[str], message: str) -> None:
    done = mbcal(*arguments, cwd=folder, code=2)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("mbcal: ")
    assert message in last
    assert not any("Error" in line for line in done.stderr.splitlines())
    assert [file.name for file in folder.iterdir()] == ["log.csv"]


def test_prepare_warns_of_times_in_the_wrong_unit_as_describe_does(folder: Path) -> None:
    done = mbcal(*TABLE, *REWARDS, "--time-unit", "ms", "--out", "store", cwd=folder)
    [warning] = [line for line in done.stderr.splitlines() if "1995" in line]
    assert warning.startswith("Warning: The first step is of 1970-01-")
    assert warning in mbcal("describe", "store", cwd=folder).stdout
    store = Store.open(folder / "store")
    times = [shard.timestamps for part in PARTS for shard in store.shards(part) if shard.timestamps is not None]
    assert first_time(store) == min(int(array.min()) for array in times if len(array))
    assert "1995" not in mbcal(*TABLE, *REWARDS, "--time-unit", "s", "--out", "right", cwd=folder).stderr


def test_head_may_leave_early(folder: Path) -> None:
    mbcal(*TABLE, *REWARDS, "--out", "store", cwd=folder)
    command = f"{sys.executable} -m mbcal describe store --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


def test_names_may_hold_anything(folder: Path) -> None:
    rows = [("u", name, k, "click") for k, name in enumerate(["[/INST]", "[red]x", "é", ":smile:"])]
    write_csv(folder / "log.csv", rows, HEADER)
    mbcal(*TABLE, *REWARDS, "--out", "store", cwd=folder)
    shown = mbcal("describe", "store", cwd=folder).stdout
    for name in ("[/INST]", "[red]x", "é", ":smile:"):
        assert name in shown
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "mbcal", "describe", "store"]
    subprocess.run(command, cwd=folder, env=ascii_only, capture_output=True, check=True)
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_cleans_up(tmp_path: Path, number: int) -> None:
    rows = [(f"u{k % 997}", f"d{k % 31}", 1_600_000_000 + k, "click") for k in range(400_000)]
    write_csv(tmp_path / "log.csv", rows, HEADER)
    command = [sys.executable, "-m", "mbcal", *TABLE, *REWARDS, "--out", "store"]
    for wait in (0.0, 0.1):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        while b"reading the log" not in process.stderr.readline():
            pass
        time.sleep(wait)
        process.send_signal(number)
        _, said = process.communicate()
        assert process.returncode == 128 + number, said
        assert b"Traceback" not in said
        assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]


def test_a_watcher_needs_a_registry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused("watch-canary", "--registry", "nowhere", "--log", "log", cwd=tmp_path, capsys=capsys)
    assert said == "mbcal: nowhere: no such folder; create one with 'mbcal registry publish'"
