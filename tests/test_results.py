"""What stands behind docs/results.md: the experiments exist, miniatures run, and the page is what its files say."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mbcal import NetConfig, TrainingConfig
from mbcal.agents import AGENTS, agent_class
from mbcal.errors import InputError
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.context import agent_config, split_agent_name
from mbcal.evaluation.experiment.overrides import parse_override
from tests.support.logs import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import results
from results_experiments import EXPERIMENTS
from results_page import BLOCK, page_table, page_text

SMALL = ("netflix-batch", "newsfeed-growing", "netflix-ablation", "netflix-size")


@pytest.mark.parametrize(
    "page", [ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "methods").glob("*.md"))], ids=lambda page: page.stem
)
def test_the_pages_say_what_their_files_say(page: Path) -> None:
    remedy = f"run python benchmarks/results.py page --page {page.relative_to(ROOT)}"
    assert BLOCK.search(page.read_text())
    assert page_text(ROOT / "docs" / "results", page) == page.read_text(), remedy


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_told(name: str) -> None:
    settings = experiment_config({**EXPERIMENTS[name], "data": "store"})
    for agent in AGENTS if settings.agents == ("all",) else settings.agents:
        base, options = split_agent_name(agent)
        known = {field.name for field in dataclasses.fields(agent_class(base).Config)}
        if "mix" not in known and any(option.startswith("mix=") for option in options):
            pytest.skip(f"{base} has no option mix")
        config = agent_config(agent, settings, (), 0)[1]
        for option in options:
            path, value = parse_override(option, type(config))
            found: Any = config
            for part in path:
                found = getattr(found, part)
            assert found == value


def test_the_sizes_are_those_announced() -> None:
    batch, growing, feed = (
        results.settings_of(name, Path("build")) for name in ("netflix-batch", "netflix-growing", "newsfeed-growing")
    )
    assert batch.data == "build/data/netflix"
    assert batch.training == TrainingConfig()  # the defaults, as users have them
    assert batch.net == NetConfig()
    assert (batch.seeds, batch.log_sessions, batch.gamma, batch.mask_rate) == (3, 0, None, None)
    assert (batch.protocols, batch.judges) == (("batch",), ("lstm", "transformer"))
    assert (growing.rounds, growing.round_sessions, growing.seeds, growing.agents) == (10, 25_600, 3, ("all",))
    assert (feed.rounds, feed.round_sessions, feed.judges) == (10, 25_600, ("truth", "lstm", "transformer"))
    assert len(EXPERIMENTS) == 21


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature of one experiment of each kind, run; not to be changed."""
    folder = tmp_path_factory.mktemp("build")
    with pytest.MonkeyPatch.context() as patch:  # a small choice of little evidence
        patch.setattr("mbcal.agents.plan.MIN_BRANCHES", 64)
        patch.setattr("mbcal.agents.advantage_choice.JUDGES", 1)
        for name in SMALL:
            results.main(["run", name, "--small", "--device", "cpu", "--workers", "1", "--build", str(folder)])
    return folder / "small"


@pytest.fixture(scope="module")
def kept(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "results"
    results.main(["collect", "--build", str(build), "--out", str(folder)])
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def earned(path: Path, judge: str, agent: str) -> float:
    return next(float(row["reward per session"]) for row in rows(path) if (row["judge"], row["agent"]) == (judge, agent))


def test_kept_tables_are_the_runs_own(build: Path, kept: Path) -> None:
    for name, table in (("netflix-batch", "batch"), ("newsfeed-growing", "growing"), ("netflix-ablation", "batch")):
        own, copied = rows(build / "results" / name / "tables" / f"{table}.csv"), rows(kept / f"{name}-{table}.csv")
        assert [(row["judge"], row["agent"]) for row in own] == [(row["judge"], row["agent"]) for row in copied]
        for row, copy in zip(own, copied, strict=True):
            assert float(copy["reward per session"]) == pytest.approx(float(row["reward per session"]), rel=1e-5)
            assert len(copy["low"].replace(".", "").lstrip("0")) <= 6
    said = json.loads((kept / "netflix-batch.json").read_text())["netflix-batch"]
    assert said["cells"] == {"all": 14, "done": 14, "missing": []}
    assert said["test sessions"] == 40
    assert said["command"] == "python benchmarks/results.py run netflix-batch --device cpu --small"
    assert said["run"]["data"] == json.loads((build / "data" / "newsfeed" / "manifest.json").read_text())["content_hash"]
    assert set(said["simulators"]) == {"lstm", "transformer"}


def test_claims_are_paired_and_go_the_papers_way(kept: Path) -> None:
    claims = {(row["claim"], row["judge"]): row for row in rows(kept / "netflix-batch-claims.csv")}
    claim = claims["mbcal > gru4rec", "lstm"]
    mbcal, gru4rec = (earned(kept / "netflix-batch-batch.csv", "lstm", agent) for agent in ("mbcal", "gru4rec"))
    assert float(claim["gap"]) == pytest.approx(mbcal - gru4rec, abs=2e-3)
    assert float(claim["paper's gap"]) == pytest.approx(79.71 - 79.63)
    assert ("gru4rec > dqn", "transformer") in claims
    for row in claims.values():
        decided = "yes" if float(row["gap"]) > 0 else "no"
        assert row["holds"] == (decided if float(row["p"]) < 0.05 else "undecided")
    growing = {row["claim"] for row in rows(kept / "newsfeed-growing-claims.csv")}
    assert {"dqn > gru4rec", "gru4rec-eps > gru4rec"} <= growing  # on its NewsFeed the paper has DQN ahead


def test_an_ablation_has_a_row_for_every_value(kept: Path) -> None:
    found = [row for row in rows(kept / "netflix-ablation-options.csv") if row["judge"] == "lstm"]
    values = {option: [row["value"] for row in found if row["option"] == option] for option in {r["option"] for r in found}}
    assert values == {
        "gamma": ["0", "0.8", "0.95", "1", "auto"],
        "mask_rate": ["0.05", "0.2", "0.4"],
        "net.hidden": ["8", "32", "128"],  # 8 is what --small makes of the default
        "net.user": ["history", "id", "none"],
    }
    usual = earned(kept / "netflix-ablation-batch.csv", "lstm", "mbcal")
    assert all(float(row["reward per session"]) == usual for row in found if row["gap to mbcal"] == "")
    assert sum(row["gap to mbcal"] == "" for row in found) == 4


def test_sizes_are_shares_of_the_log(build: Path, kept: Path) -> None:
    found = rows(kept / "netflix-size-size.csv")
    manifest = json.loads((build / "data" / "newsfeed" / "manifest.json").read_text())
    train = manifest["counts"]["parts"]["train"]["sessions"]
    assert sorted({int(row["log sessions"]) for row in found}) == [train // share for share in (16, 8, 4, 2, 1)]
    whole = [row for row in found if row["log sessions"] == str(train)]
    own = build / "results" / "netflix-size" / "1-1" / "tables" / "batch.csv"
    assert len(whole) == 10
    assert all(
        float(row["reward per session"]) == pytest.approx(earned(own, row["judge"], row["agent"]), rel=1e-5) for row in whole
    )
    # what learns from everything is the same in both experiments, and so are its judges
    alike = earned(kept / "netflix-batch-batch.csv", "transformer", "dqn")
    assert [float(row["reward per session"]) for row in whole if row["agent"] == "dqn"][1] == alike
    varied = rows(kept / "netflix-size-variance.csv")
    whole = rows(build / "results" / "netflix-size" / "1-1" / "tables" / "variance.csv")
    assert {row["log sessions"] for row in varied} == {row["log sessions"] for row in found}
    largest = max(int(row["log sessions"]) for row in varied)
    kept_of = {row["agent"]: float(row["label variance"]) for row in varied if int(row["log sessions"]) == largest}
    assert kept_of == pytest.approx({row["agent"]: float(row["label variance"]) for row in whole}, rel=1e-5)


def test_equal_runs_equal_bytes(build: Path, kept: Path, tmp_path: Path) -> None:
    results.main(["collect", "netflix-size", "newsfeed-growing", "--build", str(build), "--out", str(tmp_path)])
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (kept / path.name).read_bytes()
    assert {path.name for path in tmp_path.glob("*.svg")} >= {"netflix-size-size.svg", "newsfeed-growing-curves.svg"}
    assert "<dc:date>" not in (tmp_path / "netflix-size-size.svg").read_text()


def test_a_run_under_way_is_collected(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(build, tmp_path / "build")
    for name, protocol, agent in (("netflix-batch", "batch", "mbcal"), ("newsfeed-growing", "growing", "gru4rec")):
        shutil.rmtree(tmp_path / "build" / "results" / name / "cells" / protocol / agent)
    shutil.rmtree(tmp_path / "build" / "results" / "netflix-size" / "1-4" / "cells")
    shutil.rmtree(tmp_path / "build" / "results" / "netflix-ablation" / "cells")
    results.main(["collect", "--build", str(tmp_path / "build"), "--out", str(tmp_path / "docs")])
    said = capsys.readouterr().out
    assert "netflix-batch: 13 of 14 results\n" in said
    assert "netflix-ablation: nothing is done yet\n" in said
    kept = json.loads((tmp_path / "docs" / "netflix-batch.json").read_text())["netflix-batch"]
    assert kept["cells"]["missing"] == ["batch mbcal seed 0"]
    assert not any(row["claim"].startswith("mbcal >") for row in rows(tmp_path / "docs" / "netflix-batch-claims.csv"))
    assert len({row["log sessions"] for row in rows(tmp_path / "docs" / "netflix-size-size.csv")}) == 4


def test_the_page_is_filled_from_the_files(kept: Path) -> None:
    page = kept.parent / "results.md"
    shutil.copy(ROOT / "docs" / "results.md", page)
    results.main(["page", "--results", str(kept), "--page", str(page)])
    text = page.read_text()
    reward = earned(kept / "netflix-batch-batch.csv", "lstm", "mbcal")
    assert f"| lstm | mbcal | {reward:.2f} | 79.71 | – | [" in text
    assert "| netflix | lstm | " in text  # simulators of all data in one table
    assert "![newsfeed-growing-curves](results/newsfeed-growing-curves.svg)" in text
    assert "Not run yet: `python benchmarks/results.py run ml1m-batch`." in text
    before, after = (BLOCK.sub("", shown) for shown in ((ROOT / "docs" / "results.md").read_text(), text))
    assert before == after
    results.main(["page", "--results", str(kept), "--page", str(page)])
    assert page.read_text() == text


def test_a_block_takes_columns_and_rows(kept: Path) -> None:
    file = kept / "netflix-batch-batch.csv"
    table = page_table([file], ["columns: agent, reward per session as reward", "where: judge=lstm, agent=mbcal"])
    assert table.columns == ("agent", "reward")
    assert table.rows == [["mbcal", earned(file, "lstm", "mbcal")]]
    with pytest.raises(InputError, match=r"netflix-batch-batch\.csv: there is no column 'agnt'\. Did you mean 'agent'\?"):
        page_table([file], ["columns: agnt"])


def test_a_log_that_is_not_there_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.main(["prepare", "netflix", "--sources", str(tmp_path / "none"), "--build", str(tmp_path)])
    assert "netflix: skipped, there is no " in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"results: .*netflix"):
        results.main(["run", "netflix-size", "--build", str(tmp_path), "--device", "cpu"])
    with pytest.raises(SystemExit):
        results.main(["collect", "netflix-bach"])
    assert "Did you mean 'netflix-batch'?" in capsys.readouterr().err
