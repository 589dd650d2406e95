"""`mbcal log` as its user meets it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from mbcal import Behaviours, Catalog
from mbcal.decision_log import Decision, DecisionLog, Feedback
from mbcal.decision_log.reader import read_log
from mbcal.release.gate import GateConfig, split_judges
from mbcal.storage.artifacts import MODEL_KIND, write_artifact
from tests.support.command_line import mbcal, refused
from tests.support.decision_records import decision, feedback, write_log
from tests.support.documents import blocks, commands_of, run
from tests.support.logs import ROOT


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A log of two versions, and what a model says of its items and behaviours."""
    behaviours = Behaviours(("skip", "click"), (0.0, 1.0))
    said = {"names": behaviours.names, "rewards": behaviours.rewards, "cuts": behaviours.cuts}
    write_artifact(tmp_path / "model", MODEL_KIND, {"behaviours": said}, {}, Catalog(("a", "b", "c")))
    with DecisionLog(tmp_path / "log", segment_bytes=1000) as log:
        for number in range(30):
            session, user, version = f"s{number // 5}", f"u{number // 10}", "v2" if number >= 20 else "v1"
            log.append(
                Decision(
                    id=f"d{number}", time=1_700_000_000_000_000 + number, session=session, user=user, step=number % 5,
                    version=version, epsilon=0.1, history=[("c", "click")], shown=[], candidates=["a", "b", "new"],
                    items=["a", "b"], propensities=[0.5, 1.0],
                )
            )  # fmt: skip
            if number % 2 == 0:
                log.append(Feedback(f"d{number}", "b", "click" if number else "odd", number, f"f{number}"))
    return tmp_path


def test_show_counts_by_version(shop: Path) -> None:
    printed = mbcal("log", "show", "log", "--last", "1", cwd=shop).stdout.splitlines()
    assert printed[0] == "log: 30 decisions in 6 sessions, 15 feedback records"
    assert [line.split() for line in printed[1:4]] == [
        ["version", "decisions", "answered", "share", "sessions"],
        ["v1", "20", "10", "50.0%", "4"],
        ["v2", "10", "5", "50.0%", "2"],
    ]
    assert json.loads(printed[4])["id"] == "d29"
    found = json.loads(mbcal("log", "show", "log", "--last", "2", "--json", cwd=shop).stdout)
    assert (found["decisions"], found["feedback"], found["lost"]) == (30, 15, [])
    assert found["versions"][1] == {"version": "v2", "decisions": 10, "answered": 5, "sessions": 2}
    assert [(record["kind"], record["id"]) for record in found["last"]] == [("feedback", "f28"), ("decision", "d29")]


def test_a_decision_without_session_and_user_is_a_session_of_its_own(tmp_path: Path) -> None:
    write_log(tmp_path / "log", [decision(number, session="", user="") for number in (1, 2, 3)])
    printed = mbcal("log", "show", "log", cwd=tmp_path).stdout.splitlines()
    assert printed[0] == "log: 3 decisions in 3 sessions, 0 feedback records"


def test_feedback_is_counted_for_the_latest_of_decisions_with_one_id(tmp_path: Path) -> None:
    write_log(tmp_path / "log" / "worker-0", [decision(1, time=9, version="v2"), feedback(1)])
    write_log(tmp_path / "log" / "worker-1", [decision(1, time=5, version="v1")])  # read last, and nobody saw it
    found = json.loads(mbcal("log", "show", "log", "--json", cwd=tmp_path).stdout)
    assert [(entry["version"], entry["answered"]) for entry in found["versions"]] == [("v1", 0), ("v2", 1)]


def test_names_cannot_command_a_terminal(tmp_path: Path) -> None:
    write_log(tmp_path / "log", [decision(1, user="\x7f \x9b2J \u202e \U000e0001 é")])
    for options in ((), ("--json",)):
        printed = mbcal("log", "show", "log", "--last", "1", *options, cwd=tmp_path).stdout
        assert printed.replace("\n", "").isprintable()
        assert "\\u007f \\u009b2J \\u202e \\udb40\\udc01 é" in printed
        record = json.loads(printed)["last"][0] if options else json.loads(printed.splitlines()[-1])
        assert record["user"] == "\x7f \x9b2J \u202e \U000e0001 é"


def test_compact_and_export(shop: Path) -> None:
    before, segments = list(read_log(shop / "log")), len(list((shop / "log").glob("*.log")))
    printed = mbcal("log", "export", "log", "--model", "model", "--out", "first.parquet", "--horizon", "2", cwd=shop).stdout
    assert printed.splitlines() == [
        "first.parquet: 8 sessions, 14 steps of 3 users",
        "decisions 30, feedback 15, unanswered 16",
        "first.items.parquet: 1 items that model does not know, with the features that requests gave",
        "left out: behaviour 'odd' is not in model, 1 feedback records",
    ]
    printed = mbcal("log", "export", "log", "--model", "model", "--out", "part.parquet", "--teaching", cwd=shop).stdout
    teaching = {row["user"] for row in pq.read_table(shop / "part.parquet").to_pylist()}
    names = ("u0", "u1", "u2")
    expected, _ = split_judges(names, np.arange(3, dtype=np.int32), GateConfig().judge_share)
    assert {int(user[1:]) for user in teaching} == set(expected.tolist())
    assert f" steps of {len(teaching)} users" in printed.splitlines()[0]
    assert 0 < len(teaching) < 3
    assert f"log: {segments - 1} segments compacted" in mbcal("log", "compact", "log", cwd=shop).stdout
    assert list(read_log(shop / "log")) == before
    mbcal("log", "export", "log", "--model", "model", "--out", "second.parquet", "--horizon", "2", cwd=shop)
    assert (shop / "first.parquet").read_bytes() == (shop / "second.parquet").read_bytes()
    rows = {(row["session"], row["times"][0].microsecond): row for row in pq.read_table(shop / "first.parquet").to_pylist()}
    assert pq.read_table(shop / "first.items.parquet").to_pylist() == [{"item": "new"}]
    row = rows["s0", 2]
    assert (row["user"], row["items"], row["behaviours"]) == ("u0", ["b", "b"], ["click", "click"])
    assert (row["propensities"], row["candidates"]) == ([1.0, 1.0], [["b", "new"]] * 2)
    assert (row["history_items"], row["history_behaviours"]) == (["c"], ["click"])
    assert rows["s2", 14]["history_items"] == ["c", "b", "b"]


def test_the_page_on_it_runs(shop: Path) -> None:
    page = (ROOT / "docs/decision-log.md").read_text()
    (code,) = blocks(page, "python")
    shutil.rmtree(shop / "log")
    subprocess.run([sys.executable, "-c", code], cwd=shop, check=True)
    assert [record.id for record in read_log(shop / "log")] == ["d1", "f1"]
    commands = commands_of(page, 0)
    assert len(commands) == 3
    run(commands, shop)
    (row,) = pq.read_table(shop / "log.parquet").to_pylist()
    assert (row["user"], row["items"], row["behaviours"]) == ("ada", ["b"], ["click"])
    assert row["candidates"] == [["a", "b", "c"]]


def test_a_missing_segment_is_named(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "log/segment-000001.log").unlink()
    shown = mbcal("log", "show", "log", "--json", cwd=shop)
    (loss,) = json.loads(shown.stdout)["lost"]
    assert loss.startswith("log/segment-000001.log: missing; records 1 to ")
    assert shown.stderr == f"{loss}; the rest is used\n"
    export = ("log", "export", "log", "--model", "model", "--out", "x.parquet")
    assert refused(*export, cwd=shop, capsys=capsys).startswith(f"mbcal: {loss}; restore the file, or skip what is lost")
    assert mbcal(*export, "--skip-damaged", cwd=shop).stderr.startswith(loss)


def test_mistakes_are_one_sentence(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = ("log", "export", "log", "--model", "model", "--out", "x.parquet")
    (shop / "x.parquet").write_bytes(b"mine")
    assert refused(*export, cwd=shop, capsys=capsys) == "mbcal: x.parquet: already exists; add --overwrite to replace it"
    assert "end it with .parquet" in refused(*export[:-1], "x.csv", cwd=shop, capsys=capsys)
    assert "no decision log (no segments)" in refused("log", "show", "model", cwd=shop, capsys=capsys)
    first = shop / "log/segment-000001.log"
    whole = first.read_bytes()
    first.write_bytes(whole[:100] + b"?" + whole[101:])
    said = refused(*export, "--overwrite", cwd=shop, capsys=capsys)
    assert said.startswith("mbcal: log/segment-000001.log: damaged at byte ")
    assert (shop / "x.parquet").read_bytes() == b"mine"
    done = mbcal(*export, "--overwrite", "--skip-damaged", cwd=shop)
    assert "damaged at byte" in done.stderr
    assert pq.read_table(shop / "x.parquet").num_rows > 0
    assert "its segment is left as it is" in mbcal("log", "compact", "log", cwd=shop).stderr
