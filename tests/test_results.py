"""What stands behind docs/results.md: the experiments exist, miniatures run, and the pages are what their files say."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mbcal import NetConfig, TrainingConfig
from mbcal.agents import AGENTS, agent_class
from mbcal.config import to_dict
from mbcal.errors import InputError
from mbcal.evaluation.experiment.config import experiment_config
from mbcal.evaluation.experiment.context import agent_config, split_agent_name
from mbcal.evaluation.experiment.overrides import parse_override
from tests.support.logs import ROOT
from tests.support.worlds import KEYS

sys.path.append(str(ROOT / "benchmarks"))

import results
from results_experiments import EXPERIMENTS, PAGES, ResultFiles
from results_figures import MAIN, METHODS, curve_figure, gap_figure
from results_page import BLOCK, page_table, page_text, shortcomings
from results_pages import data_page, pages_with_blocks

SMALL: dict[str, tuple[str, ...]] = {
    "netflix-batch": (),
    "newsfeed-growing": ("mbcal", "mbcal-no-vr", "gru4rec", "gru4rec-eps", "dqn", "dyna-q", "random"),
    "netflix-ablation": (
        "gru4rec",
        "mbcal",
        "mbcal+mask_rate=0.4",
        "mbcal+gamma=0",
        "mbcal+gamma=0.8",
        "mbcal+net.hidden=32",
    ),
    "netflix-size": ("mbcal", "gru4rec", "dqn"),
}
"""Experiments that are run as miniatures, and which of their agents (all if none is named)."""
DOCS = ROOT / "docs"
ENDS = {"mbcal": 101, "mbcal-plan": 101.1, "dqn": 97}
"""Rewards of the last round, for a figure."""


@pytest.mark.parametrize("page", pages_with_blocks(DOCS), ids=lambda page: page.stem)
def test_pages_say_what_their_files_say(page: Path) -> None:
    remedy = "run python benchmarks/results.py page"
    assert page_text(ResultFiles(DOCS / "results"), page) == page.read_text(), remedy


@pytest.mark.parametrize("data", PAGES["data"])
def test_pages_of_data_say_what_their_files_say(data: str) -> None:
    remedy = "run python benchmarks/results.py page"
    assert data_page(data, ResultFiles(DOCS / "results")) == (DOCS / "results" / f"{data}.md").read_text(), remedy


def test_the_main_page_can_be_read_in_five_minutes() -> None:
    assert len((DOCS / "results.md").read_text().splitlines()) <= 160
    methods = {page.stem for page in (DOCS / "methods").glob("*.md")}
    assert methods | {"results", "leaving"} == {page.stem for page in pages_with_blocks(DOCS)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_told(name: str) -> None:
    settings = experiment_config({**EXPERIMENTS[name], "data": "store"})
    for agent in [agent for given in settings.agents for agent in (AGENTS if given == "all" else [given])]:
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
    assert (growing.rounds, growing.round_sessions, growing.seeds) == (40, 256_000, 3)
    assert growing.agents == ("all", "mbcal+counterfactual=behaviours")
    assert (feed.rounds, feed.round_sessions, feed.judges) == (20, 25_600, ("truth",))
    world = results.settings_of("sardine-growing", Path("build"))
    assert (world.data, world.judges, world.test_sessions) == ("gym:sardine/SingleItem-BoredInf-v0", (), 300)
    assert (world.rounds, world.round_sessions) == (20, 2_000)
    assert len(EXPERIMENTS) == 28


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if not name.endswith("-discount")])  # of value methods alone
def test_every_experiment_has_the_new_methods(name: str) -> None:
    agents = EXPERIMENTS[name]["agents"]
    assert "all" in agents or {"mbcal-plan", "gru4rec-regression"} <= set(agents)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature of one experiment of each kind, run; not to be changed."""
    folder = tmp_path_factory.mktemp("build")
    with pytest.MonkeyPatch.context() as patch:  # a small choice of little evidence
        patch.setattr("mbcal.agents.plan.MIN_BRANCHES", 64)
        patch.setattr("mbcal.agents.advantage_choice.JUDGES", 2)
        for name, agents in SMALL.items():
            chosen = ["--agents", *agents] if agents else []
            results.main([*command(name), "--build", str(folder), *chosen])
    return folder / "small"


def command(name: str) -> list[str]:
    return ["run", name, "--small", "--device", "cpu", "--workers", "1"]


@pytest.fixture(scope="module")
def kept(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "results"
    results.main(["collect", "--build", str(build), "--out", str(folder)])
    shutil.copy(DOCS / "results" / "paper.csv", folder)
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


def test_gaps_are_those_of_every_two_methods(kept: Path) -> None:
    gaps = rows(kept / "netflix-batch-gaps.csv")
    assert len(gaps) == 2 * 14 * 13 / 2
    rewards = kept / "netflix-batch-batch.csv"
    for row in gaps:
        first, second = (earned(rewards, row["judge"], row[name]) for name in ("method", "against"))
        assert float(row["gap"]) == pytest.approx(first - second, abs=2e-3)
        assert float(row["low"]) <= float(row["gap"]) <= float(row["high"])
    assert not any("oracle" in (row["method"], row["against"]) for row in rows(kept / "newsfeed-growing-gaps.csv"))


def test_curves_have_the_fall_of_the_worst_seed(build: Path, kept: Path) -> None:
    found = [row for row in rows(kept / "newsfeed-growing-curves.csv") if row["agent"] == "mbcal"]
    cell = build / "results" / "newsfeed-growing" / "cells" / "growing" / "mbcal" / "seed-0" / "manifest.json"
    means = [entry["mean"] for entry in json.loads(cell.read_text())["record"]["rounds"]]
    assert [float(row["reward per session"]) for row in found] == pytest.approx(means, rel=1e-5)
    assert [float(row["fall"]) for row in found] == pytest.approx([0, max(means[0] - means[1], 0)], abs=1e-4)


def test_an_ablation_has_a_row_for_every_value(kept: Path) -> None:
    found = [row for row in rows(kept / "netflix-ablation-options.csv") if row["judge"] == "lstm"]
    assert {row["agent"] for row in found} == {"mbcal"}  # variants of mbcal-plan were not run
    values = {option: [row["value"] for row in found if row["option"] == option] for option in {r["option"] for r in found}}
    assert values == {
        "gamma": ["0", "0.8", "1.0"],
        "mask_rate": ["0.05", "0.4"],
        "net.hidden": ["8", "32"],  # 8 is what --small makes of the default
    }
    usual = earned(kept / "netflix-ablation-batch.csv", "lstm", "mbcal")
    assert all(float(row["reward per session"]) == usual for row in found if row["gap to mbcal"] == "")
    assert sum(row["gap to mbcal"] == "" for row in found) == 3


def test_sizes_are_shares_of_the_log(build: Path, kept: Path) -> None:
    found = rows(kept / "netflix-size-size.csv")
    manifest = json.loads((build / "data" / "newsfeed" / "manifest.json").read_text())
    train = manifest["counts"]["parts"]["train"]["sessions"]
    assert sorted({int(row["log sessions"]) for row in found}) == [train // share for share in (16, 8, 4, 2, 1)]
    whole = [row for row in found if row["log sessions"] == str(train)]
    own = build / "results" / "netflix-size" / "1-1" / "tables" / "batch.csv"
    assert len(whole) == 6
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
    collected = list(tmp_path.iterdir())
    assert collected
    for path in collected:
        assert path.read_bytes() == (kept / path.name).read_bytes()


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
    assert not any("mbcal" in (row["method"], row["against"]) for row in rows(tmp_path / "docs" / "netflix-batch-gaps.csv"))
    assert len({row["log sessions"] for row in rows(tmp_path / "docs" / "netflix-size-size.csv")}) == 4


def test_a_part_of_an_experiment_is_run_and_resumed(tmp_path: Path, build: Path) -> None:
    (tmp_path / "small").mkdir()
    for name in ("data", "simulators"):
        shutil.copytree(build / name, tmp_path / "small" / name)
    part = [*command("netflix-batch"), "--build", str(tmp_path), "--seeds", "0", "--agents"]
    results.main([*part, "random"])
    results.main([*part, "popular", "random"])
    results.main(["collect", "netflix-batch", "--build", str(tmp_path / "small"), "--out", str(tmp_path / "docs")])
    found = rows(tmp_path / "docs" / "netflix-batch-batch.csv")
    assert {(row["agent"], row["seeds"]) for row in found} == {("random", "1"), ("popular", "1"), ("the log", "")}
    assert json.loads((tmp_path / "docs" / "netflix-batch.json").read_text())["netflix-batch"]["cells"]["done"] == 2
    with pytest.raises(SystemExit, match=r"agents: 'mbcl' is not in the experiment; .*Did you mean 'mbcal'\?"):
        results.main([*part, "mbcl"])
    with pytest.raises(SystemExit, match=r"--shares: netflix-batch learns from the whole log; only .*netflix-size"):
        results.main([*command("netflix-batch"), "--build", str(tmp_path), "--shares", "16"])
    results.main([*command("netflix-size"), "--build", str(tmp_path), "--shares", "16", "4", "--agents", "gru4rec"])
    begun = sorted(path.name for path in (tmp_path / "small" / "results" / "netflix-size").iterdir())
    assert begun == ["1-16", "1-4"]


def test_a_world_is_played_and_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"data": f"gym:{KEYS}", "test_sessions": 20, "rounds": 2, "round_sessions": 40, "agents": ["random", "popular"]}
    monkeypatch.setitem(EXPERIMENTS, "sardine-growing", {**EXPERIMENTS["sardine-growing"], **sizes, "seeds": 2})
    results.main(["run", "sardine-growing", "--device", "cpu", "--workers", "1", "--build", str(tmp_path)])
    results.main(["collect", "sardine-growing", "--build", str(tmp_path), "--out", str(tmp_path / "docs" / "results")])
    found = rows(tmp_path / "docs" / "results" / "sardine-growing-growing.csv")
    assert {(row["judge"], row["agent"], row["seeds"]) for row in found} == {
        ("world", "random", "2"),
        ("world", "popular", "2"),
    }
    results.main(["page", "--docs", str(tmp_path / "docs")])
    page = (tmp_path / "docs" / "results" / "sardine.md").read_text()
    assert "`python benchmarks/results.py run sardine-growing --device cpu`: 2 rounds of 40 sessions, 2 trainings" in page


@pytest.fixture
def docs(kept: Path, tmp_path: Path) -> Path:
    """Documents made from the miniatures, and from two seeds of planning."""
    shutil.copytree(kept, tmp_path / "docs" / "results")
    columns = "data,seed,models,imagined,true,planned in the true world,oracle\n"
    lines = "".join(f"newsfeed,{seed},2,{109 + seed},105,107,109.5\n" for seed in range(2))
    (tmp_path / "docs" / "results" / "planning-error.csv").write_text(columns + lines)
    (tmp_path / "docs" / "methods").mkdir()
    for name in ("results.md", "methods/mbcal.md"):
        shutil.copy(DOCS / name, tmp_path / "docs" / name)
    results.main(["page", "--docs", str(tmp_path / "docs")])
    return tmp_path / "docs"


def test_pages_are_filled_from_the_files(kept: Path, docs: Path) -> None:
    page = (docs / "results" / "netflix.md").read_text()
    reward = earned(kept / "netflix-batch-batch.csv", "lstm", "mbcal")
    assert f"| lstm | mbcal | {reward:.2f} | 79.71 | 1 | [" in page
    assert "![Sample efficiency, Netflix](netflix-size.svg)" in page
    assert "Not run yet: `python benchmarks/results.py run netflix-growing --device cuda`" in page
    assert "run netflix-batch --device cpu --small`: 1 training, 40 test sessions" in page
    assert "## Ablations\n\nEvery setting" in page
    newsfeed = (docs / "results" / "newsfeed.md").read_text()
    assert "Not run yet: `python benchmarks/advantages.py log" in newsfeed
    assert "| models | trainings | imagined | earned | planned in the true world | oracle |\n" in newsfeed
    assert "| 2 | 2 | 109.50 | 105.00 | 107.00 | 109.50 |\n" in newsfeed
    assert (docs / "results" / "overview-regret.svg").is_file()
    assert f"| netflix | lstm | {reward:.2f} | 79.71 |" in (docs / "methods" / "mbcal.md").read_text()
    main = (docs / "results.md").read_text()
    assert "(mcpe, one training)" in main or "(dqn, one training)" in main  # nothing can be told from one
    assert "`ml1m-batch`" in main[main.index("Not run yet:") :]
    before, after = (BLOCK.sub("", text) for text in ((DOCS / "results.md").read_text(), main))
    assert before == after
    assert "![Reward by round of Growing Batch-RL](results/overview-growing.svg)" in main
    assert "<dc:date>" not in (docs / "results" / "overview-growing.svg").read_text()


def test_pages_are_the_same_when_written_again(docs: Path) -> None:
    before = {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    assert sum(path.suffix == ".svg" for path in before) >= 5
    results.main(["page", "--docs", str(docs)])
    assert {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()} == before


def test_a_block_takes_columns_and_rows(kept: Path) -> None:
    files, name = ResultFiles(kept), "netflix-batch-batch"
    options = ["columns: agent, absent?, regret, reward per session as reward", "where: judge=lstm, agent=mbcal"]
    table = page_table(files, [name], options)
    assert table.columns == ("agent", "reward")
    assert table.rows == [["mbcal", earned(kept / f"{name}.csv", "lstm", "mbcal")]]
    with pytest.raises(InputError, match=r"netflix-batch-batch\.csv: there is no column 'agnt'\. Did you mean 'agent'\?"):
        page_table(files, [name], ["columns: agnt"])


def test_a_gap_figure_shows_every_method_and_what_is_known_beside() -> None:
    files = ResultFiles(DOCS / "results")
    figure = gap_figure(files, ["newsfeed"], METHODS, every_judge=True)
    shown = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert shown == set(AGENTS) - {"gru4rec"}
    assert [axes.get_title() for axes in figure.axes] == [f"newsfeed, {judge}" for judge in ("truth", "lstm", "transformer")]
    assert {text.get_text() for text in figure.axes[0].texts} == {"the log", "oracle"}
    assert len(figure.axes[0].patches) == 0  # the truth needs no zone
    assert len(figure.axes[1].patches) == 1
    assert set(AGENTS) <= set(METHODS)
    assert (len(MAIN), len(AGENTS)) == (7, 14)  # as the caption says


def test_curves_are_in_two_columns_with_names_at_their_ends(tmp_path: Path) -> None:
    columns = "agent,seeds,round,reward per session,lowest seed,highest seed,fall"
    curves = [f"{agent},3,{at},{end - 2 + at},{end - 2},{end},0" for agent, end in ENDS.items() for at in (1, 2)]
    for data in ("newsfeed", "leaving", "kuairand"):
        (tmp_path / f"{data}-growing-curves.csv").write_text("\n".join([columns, *curves]) + "\n")
    rewards = ["judge,agent,reward per session", "truth,the log,95", "truth,random,50"]
    (tmp_path / "newsfeed-growing-growing.csv").write_text("\n".join(rewards) + "\n")
    files = ResultFiles(tmp_path)
    figure = curve_figure(files, ["newsfeed", "leaving", "kuairand"])
    assert figure.get_size_inches().tolist() == pytest.approx([6.8, 2 * 2.5 + 0.4])
    newsfeed = figure.axes[0]
    names = {text.get_text(): text for text in newsfeed.texts}
    assert set(names) == {"mbcal", "mbcal-plan", "dqn", "the log", "below: random 50.0"}
    assert [names[name].get_color() for name in ENDS] == ["#1f5fd0", "#c77700", "#7a828e"]
    places = sorted(names[name].xy[1] for name in (*ENDS, "the log"))
    low, high = newsfeed.get_ylim()
    assert min(after - before for before, after in pairwise(places)) >= (high - low) / 13 - 1e-9


def test_curves_show_what_their_judge_cannot_tell(tmp_path: Path) -> None:
    rows = [
        "agent,seeds,round,reward per session,lowest seed,highest seed,fall",
        "gru4rec,1,1,4,4,4,0",
        "gru4rec,1,2,5,5,5,0",
    ]
    rows += ["mbcal,1,1,5,5,5,0", "mbcal,1,2,6,6,6,0"]
    for data in ("newsfeed", "kuairand"):
        (tmp_path / f"{data}-growing-curves.csv").write_text("\n".join(rows) + "\n")
        (tmp_path / f"{data}-growing-simulators.csv").write_text("family,trusted from\nlstm,0.5\n")
    truth, judged = curve_figure(ResultFiles(tmp_path), ["newsfeed", "kuairand"]).axes
    assert (truth.get_title(), len(truth.patches)) == ("newsfeed, judged by truth", 0)
    assert judged.get_title() == "KuaiRand, judged by lstm\ngrey: within its error of GRU4Rec"
    (zone,) = judged.patches
    assert (zone.get_y(), zone.get_y() + zone.get_height()) == (4.5, 5.5)


def test_yardsticks_have_neither_sessions_nor_trainings(tmp_path: Path) -> None:
    lines = ["kind,world,policy,sessions,clicks,stderr,spread over seeds,seeds"]
    lines += ["yardstick,BoredInf,chance,0,9,0.2,,1", "batch,BoredInf,mbcal,7200,41,0.4,0.3,3"]
    (tmp_path / "sardine-worlds.csv").write_text("\n".join(lines) + "\n")
    page = data_page("sardine", ResultFiles(tmp_path))
    header = "| kind | world | policy | sessions | clicks per session | standard error | spread over trainings | trainings |"
    assert header in page
    assert "| yardstick | BoredInf | chance | – | 9 | 0.200 | – | – |" in page
    assert "| batch | BoredInf | mbcal | 7,200 | 41 | 0.400 | 0.300 | 3 |" in page


def test_gaps_have_the_intervals_of_claims(tmp_path: Path) -> None:
    columns = "judge,agent,reward per session,spread over seeds,seeds,low,high,gap to mbcal,p to mbcal"
    lines = ["lstm,dqn,90,0.3,3,89,91,-2,0.0", "lstm,mcpe,91,,1,90,92,-1,0.0", "lstm,mbcal,92,0.3,3,91,93,,"]
    gaps = ["judge,method,against,gap,low,high", "lstm,mbcal,dqn,2,1.9,2.1", "lstm,mbcal,mcpe,1,0.9,1.1"]
    (tmp_path / "ml1m-batch-batch.csv").write_text("\n".join([columns, *lines]) + "\n")
    (tmp_path / "ml1m-batch-simulators.csv").write_text("family,trusted from\nlstm,2.5\n")
    alone = page_table(ResultFiles(tmp_path), ["ml1m-batch-batch"], [])  # the gaps were not collected
    assert [row[alone.columns.index("gap to mbcal")] for row in alone.rows] == [-2, -1, None]
    (tmp_path / "ml1m-batch-gaps.csv").write_text("\n".join(gaps) + "\n")
    table = page_table(ResultFiles(tmp_path), ["ml1m-batch-batch"], [])
    assert "p to mbcal" not in table.columns  # over users alone
    found = [row[table.columns.index("gap to mbcal")] for row in table.rows]
    assert found == ["-2.00 [-2.69, -1.31]°", "-1 (one training)°", None]  # Student's t, four degrees of freedom
    assert table.rows[0][table.columns.index("interval over users")] == "[89, 91]"


def test_growing_tables_have_the_largest_fall_of_any_training(tmp_path: Path) -> None:
    lines = ["judge,agent,reward per session", "lstm,mbcal,90", "transformer,mbcal,89", "lstm,the log,80"]
    (tmp_path / "ml1m-growing-growing.csv").write_text("\n".join(lines) + "\n")
    curves = ["agent,seeds,round,fall", "mbcal,3,1,0", "mbcal,3,2,3.5", "mbcal,3,3,1"]
    (tmp_path / "ml1m-growing-curves.csv").write_text("\n".join(curves) + "\n")
    table = page_table(ResultFiles(tmp_path), ["ml1m-growing-growing"], ["columns: judge, agent, largest fall?"])
    assert [row[2] for row in table.rows] == [3.5, None, None]  # rounds have the first judge alone


def test_what_results_lack_is_said_of_all_shares_and_settings(tmp_path: Path) -> None:
    defined = to_dict(results.experiment_config({**EXPERIMENTS["netflix-size"], "data": "build/data/netflix"}))
    record = {"cells": {"all": 33, "done": 33, "missing": []}, "settings": {**defined, "log_sessions": 7}}
    agents = EXPERIMENTS["netflix-size"]["agents"]
    rows = ["log sessions,judge,agent", *(f"7,lstm,{agent}" for agent in agents)]
    (tmp_path / "netflix-size-size.csv").write_text("\n".join(rows) + "\n")

    def said(**settings: Any) -> list[str]:
        changed = {**record, "settings": {**record["settings"], **settings}}
        (tmp_path / "netflix-size.json").write_text(json.dumps({"1-16": changed}))
        return shortcomings(ResultFiles(tmp_path), "netflix-size")

    assert said() == [f"33 of {5 * 33} results"]
    changes = said(gamma=0.95, judges=["lstm"], net={})[1:]
    assert set(changes) == {
        "gamma 0.95 in place of the default",
        "judges lstm in place of lstm and transformer",
        "other net",
    }


def test_commands_on_pages_are_those_that_were_run(tmp_path: Path) -> None:
    rows = ["data,seed,models,imagined,true,planned in the true world,oracle", "newsfeed,0,2,109,105,107,109.5"]
    (tmp_path / "planning-error.csv").write_text("\n".join(rows) + "\n")
    assert "planning.py error build/data/newsfeed --device cuda --output" in data_page("newsfeed", ResultFiles(tmp_path))
    (tmp_path / "planning-error.json").write_text(json.dumps({"newsfeed": {"command": "python … --models 2"}}))
    page = data_page("newsfeed", ResultFiles(tmp_path))
    assert "`python … --models 2`" in page
    assert "planning.py error" not in page


def test_a_log_that_is_not_there_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.main(["prepare", "netflix", "--sources", str(tmp_path / "none"), "--build", str(tmp_path)])
    assert "netflix: skipped, there is no " in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"results: .*netflix"):
        results.main(["run", "netflix-size", "--build", str(tmp_path), "--device", "cpu"])
    with pytest.raises(SystemExit):
        results.main(["collect", "netflix-bach"])
    assert "Did you mean 'netflix-batch'?" in capsys.readouterr().err
