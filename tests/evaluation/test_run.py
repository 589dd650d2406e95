"""Runs: their folder, resuming after kills, refusals, comparison and trackers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mbcal import load
from mbcal.errors import OptionError, OutputError, StoreError, TrainingError
from mbcal.evaluation.evaluator import TEST_SEED, evaluate
from mbcal.evaluation.experiment import workers
from mbcal.evaluation.experiment.config import ExperimentConfig, experiment_config
from mbcal.evaluation.experiment.run import Cell, Run
from mbcal.evaluation.experiment.tracking import track
from mbcal.report.page_writer import write_report
from mbcal.report.summary import RunSummary
from mbcal.report.tables import rewards_table
from tests.support.command_line import mbcal
from tests.support.experiments import TINY, set_options


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run by the command; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "tiny.toml"
    config.write_text(
        'agents = ["mbcal", "gru4rec", "random"]\nseeds = 2\nlog_sessions = 400\ntest_sessions = 60\ngamma = 0.95\n'
        "rounds = 2\nround_sessions = 80\nround_epochs = 1\nfutures = 4\nfuture_states = 4\nxray = 2\n"
        "[net]\nhidden = 8\nembedding = 8\n[training]\nepochs = 2\n"
        "[simulator]\nhidden = 8\nembedding = 8\n[simulator.training]\nepochs = 1\n"
    )
    done = mbcal("experiment", str(config), "--out", str(folder / "run"), "--workers", "2")
    assert "Batch-RL, judged by truth" in done.stdout
    assert "oracle" in done.stdout
    assert done.stdout.strip().splitlines()[-1] == f"Report: {folder / 'run' / 'report.html'}"
    return folder / "run"


def tables(run: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((run / "tables").glob("*.csv"))}


def test_a_run_folder_holds_everything(finished: Path) -> None:
    assert {"settings.json", "run.json", "metrics.jsonl", "report.html", "tables", "figures", "tensorboard"} <= {
        path.name for path in finished.iterdir()
    }
    assert {"data.csv", "simulators.csv", "batch.csv", "growing.csv", "variance.csv", "exposure.csv"} <= set(
        tables(finished)
    )
    assert {path.suffix for path in (finished / "figures").iterdir()} == {".svg", ".png"}
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert sum(1 for line in lines if line["protocol"] == "growing" and "round" in line) == 3 * 2 * 2
    assert not any((finished / "partial").iterdir())
    run = Run.open(finished, "cpu")
    assert not run.missing
    assert len(run.cells) == 1 + 2 * 2 * 3
    assert list((finished / "tensorboard").rglob("events.out.*"))


def test_the_tables_say_what_the_cells_hold(finished: Path) -> None:
    summary = RunSummary(Run.open(finished, "cpu"))
    made = rewards_table(summary, "batch")
    rows = {(row[0], row[1]): row for row in made.rows}
    by_name = {column: k for k, column in enumerate(made.columns)}
    rewards = {agent: earned.astype(float) for agent, earned in summary.rewards("batch", "truth").items()}
    assert rows["truth", "mbcal"][2] == pytest.approx(rewards["mbcal"].mean(), rel=1e-6)
    assert rows["truth", "mbcal"][3] == pytest.approx(rewards["mbcal"].mean(1).std(ddof=1), rel=1e-5)
    assert rows["truth", "random"][by_name["gap to gru4rec"]] == pytest.approx(
        rewards["random"].mean() - rewards["gru4rec"].mean(), rel=1e-5
    )
    oracle = rewards["oracle"].mean()
    assert rows["truth", "mbcal"][by_name["regret"]] == pytest.approx(oracle - rewards["mbcal"].mean(), rel=1e-5)
    logged = Run.open(finished, "cpu").test_sessions(summary.run.store()).rewards.sum(1).mean()
    assert rows["truth", "the log"][2] == rows["lstm", "the log"][2] == pytest.approx(float(logged), rel=1e-6)
    assert [rows["truth", agent][-1] for agent in ("mbcal", "oracle", "the log")] == [2, 1, None]  # seeds
    assert rows["truth", "oracle"][2] == max(row[2] for row in rewards_table(summary, "batch").rows if row[0] == "truth")


def test_what_is_done_is_not_done_again(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "cells").rglob("*") if path.is_file()}
    mbcal("experiment", "--resume", str(finished))
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_killed_at_random_moments_the_tables_are_the_same(finished: Path, tmp_path: Path) -> None:
    """Several kills with -9, spread over the run; children die too."""
    settings = json.loads((finished / "settings.json").read_text())
    run = Run.create(tmp_path / "run", experiment_config(settings), "cpu")
    resume = [sys.executable, "-m", "mbcal", "experiment", "--resume", str(run.folder), "--workers", "2"]
    generator, kills = np.random.default_rng(0), 0
    while kills < 3:
        running = subprocess.Popen(resume, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        before = progress_of(run.folder)
        deadline = time.monotonic() + 60
        while running.poll() is None and progress_of(run.folder) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(float(generator.uniform(0, 0.3)))
        if running.poll() is not None:
            break
        running.send_signal(signal.SIGKILL)
        running.wait()
        kills += 1
    time.sleep(0.2)
    done = subprocess.run(resume, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert kills == 3
    assert tables(run.folder) == tables(finished)
    assert not list(run.folder.rglob(".*.partial-*"))
    alive = subprocess.run(["pgrep", "-f", str(run.folder)], capture_output=True, text=True, check=False).stdout
    assert not alive.strip()


def progress_of(folder: Path) -> int:
    """Changes whenever anything new is on disk."""
    try:
        return hash(tuple(sorted(str(path) for path in folder.rglob("manifest.json"))))
    except FileNotFoundError:  # a folder was renamed meanwhile
        return 0


def test_in_one_process_or_two_the_tables_are_the_same(finished: Path, tmp_path: Path) -> None:
    settings = json.loads((finished / "settings.json").read_text())
    run = Run.create(tmp_path / "run", experiment_config(settings), "cpu")
    run.prepare()
    for cell in run.missing:
        run.execute(cell)
    write_report(run)
    assert tables(run.folder) == tables(finished)


def test_mistakes(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="already exists; resume it with --resume"):
        Run.create(finished, ExperimentConfig())
    with pytest.raises(StoreError, match="not a run"):
        Run.open(tmp_path)
    record = json.loads((finished / "run.json").read_text())
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps({**record, "schema": 99}))
    with pytest.raises(StoreError, match="schema 99, this mbcal reads schema 1"):
        Run.open(tmp_path)
    with pytest.raises(OptionError, match=r"agent: 'mbcall' is unknown.*Did you mean 'mbcal'"):
        Run.create(tmp_path / "new", experiment_config({"agents": ["mbcall"]}))
    assert not (tmp_path / "new").exists()
    with pytest.raises(OptionError, match="features: no 'kategory'"):
        Run.create(tmp_path / "new", experiment_config({"net": {"features": ["kategory"]}}))
    with pytest.raises(OptionError, match="hidden: must be at least 1"):
        experiment_config({"simulator": {"hidden": 0}})
    with pytest.raises(OptionError, match="agents: a name is there twice"):
        experiment_config({"agents": ["mbcal", "mbcal"]})
    assert not (tmp_path / "new").exists()
    assert Cell("batch", "mbcal", 0) in Run.open(finished, "cpu").cells


def test_unknown_options_are_refused_before_anything_runs(tmp_path: Path) -> None:
    for name, message in (
        ("mbcal+gama=0.9", r"^agent mbcal\+gama=0\.9: 'gama' is unknown; known are .*\. Did you mean 'gamma'\?$"),
        ("mbcal+hidden=64", r"'hidden' is unknown; .* Did you mean 'net\.hidden'\?$"),
        ("mbcal+net.hiden=64", r"net\.hiden: unknown; .* Did you mean 'hidden'\?$"),
        ("gru4rec+copy_every=50", "'copy_every' is unknown"),
        ("mbcal+gamma", "'gamma' is not NAME=VALUE"),
        ("mbcal+gamma=often", "gamma: must be a number, got 'often'"),
        ("mbcal+gamma=2", r"agent mbcal\+gamma=2: gamma: must be in \[0, 1\]"),
        ("mbcal+gamma.x=2", "gamma is a value, not a table that holds 'x'"),
        ("mbcal+net.user=nobody", "net.user: 'nobody' is unknown; known are history, id, none"),
        ("mbcal+net.features=kategory", "features: no 'kategory'"),
        ("mbcal+seed=0", "seed: the experiment sets it"),
        ("mbcall+gamma=0.9", r"agent: 'mbcall' is unknown.*Did you mean 'mbcal'\?"),
    ):
        with pytest.raises(OptionError, match=message):
            Run.create(tmp_path / "new", experiment_config({**TINY, "agents": [name]}), "cpu")
        assert not (tmp_path / "new").exists()


def test_variants_in_one_run_have_folders_and_rows_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from mbcal.agents import MBCAL\nclass Mine(MBCAL):\n    name = 'mine'\n")
    names = ["gru4rec", "mbcal", "mbcal+net.hidden=6", f"{tmp_path}/mine.py:Mine+gamma=0.5", f"{tmp_path}/mine.py:Mine"]
    sizes = {name: value for name, value in TINY.items() if name not in ("agents", "seeds", "simulator")}
    command = ["experiment", "newsfeed", "--out", str(tmp_path / "run"), "--seeds", "1", "--workers", "1"]
    command += ["--agents", ",".join([*names, 'mbcal+net.features=["category", "type"]']), "--protocols", "batch"]
    mbcal(*command, *set_options({**sizes, "judges": "truth"}))
    run = Run.open(tmp_path / "run", "cpu")
    assert len({run.path(cell) for cell in run.cells}) == len(run.cells) == 7
    assert {path.name for path in (run.folder / "models" / "batch").iterdir()} >= {"mbcal", "mbcal+net.hidden=6"}
    kept = {name: load(run.path(Cell("batch", name, 0), "models"), "cpu").config.net for name in ("mbcal", names[2])}
    assert (kept["mbcal"].hidden, kept[names[2]].hidden) == (8, 6)
    table = rewards_table(RunSummary(run), "batch")
    rows = {row[1]: row for row in table.rows}
    assert set(rows) == {"oracle", "the log", *names, 'mbcal+net.features=["category", "type"]'}
    rewards = RunSummary(run).rewards("batch", "truth")
    gap = float(rewards[names[2]].mean(dtype=float) - rewards["mbcal"].mean(dtype=float))
    assert rows[names[2]][table.columns.index("gap to mbcal")] == pytest.approx(gap, abs=1e-6)
    page = (run.folder / "report.html").read_text()
    assert names[2] in page


def test_folders_of_agents_never_collide(tmp_path: Path) -> None:
    run = Run(tmp_path, ExperimentConfig(), "cpu")
    names = ["a/b.py:C", "a_b.py:C", "a_b.py_C", "mbcal", "mbcal+gamma=0.9", "mbcal+gamma=0_9", "x" * 300, "x" * 301]
    paths = [run.path(Cell("batch", name, 0)) for name in names]
    assert all(path.parent.parent == tmp_path / "cells" / "batch" for path in paths)
    folders = [path.parent.name for path in paths]
    assert len(set(folders)) == len(names)
    assert folders[3:5] == ["mbcal", "mbcal+gamma=0.9"]
    assert all(len(folder) < 200 for folder in folders)


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    from mbcal import NewsfeedConfig, prepare_newsfeed
    from mbcal.data.cutting import SessionConfig

    cutting = SessionConfig(horizon=4, history=4)
    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=300, items=100), cutting)
    values = {**TINY, "data": str(tmp_path / "feed"), "judges": ["truth"], "protocols": ["batch"], "agents": ["random"]}
    run = Run.create(tmp_path / "run", experiment_config(values), "cpu")
    run.prepare()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"] == run.store().manifest["content_hash"]
    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=320, items=100), cutting, overwrite=True)
    with pytest.raises(StoreError, match="is not the data this run began with"):
        Run.open(tmp_path / "run", "cpu").prepare()


def test_the_agents_that_were_tested_are_kept(finished: Path) -> None:
    agent = load(finished / "models" / "batch" / "mbcal" / "seed-1", "cpu")
    run = Run.open(finished, "cpu")
    served = evaluate(agent, run.context.judges["truth"], run.context.test, seed=TEST_SEED)
    kept = next(result for result in run.results() if result.cell == Cell("batch", "mbcal", 1))
    assert np.array_equal(served.rewards, kept.rewards["truth"])
    assert agent.provenance["data"] == run.store().manifest["content_hash"]
    assert not (finished / "models" / "batch" / "oracle").exists()


def test_compare_puts_two_runs_side_by_side(finished: Path, tmp_path: Path) -> None:
    same = mbcal("compare", str(finished), str(finished)).stdout
    assert "batch, judged by truth" in same
    assert "+0.000 [+0.000, +0.000]" in same
    values = {**TINY, "seeds": 1, "protocols": ["batch"], "agents": ["gru4rec"], "log_sessions": 300}
    other = Run.create(tmp_path / "other", experiment_config(values), "cpu")
    missing = mbcal("compare", str(finished), str(other.folder), code=2)
    assert "no method is done in both" in missing.stderr or "not a run" in missing.stderr
    other.prepare()
    for cell in other.missing:
        other.execute(cell)
    different = mbcal("compare", str(finished), str(other.folder)).stdout
    assert "gru4rec" in different
    assert "different data or test sessions" in different


@pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc")
def test_a_worker_that_dies_is_one_sentence(tmp_path: Path) -> None:
    values = {**TINY, "protocols": ["growing"], "agents": ["mbcal", "gru4rec"], "rounds": 60}
    run = Run.create(tmp_path / "run", experiment_config(values), "cpu")
    run.prepare()
    resume = [sys.executable, "-m", "mbcal", "experiment", "--resume", str(run.folder), "--workers", "2"]
    running = subprocess.Popen(resume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not list(run.folder.glob("partial/growing-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = subprocess.run(
        ["pgrep", "-P", str(running.pid), "-f", "spawn_main"], capture_output=True, text=True, check=True
    )
    os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
    _, error = running.communicate(timeout=120)
    assert running.returncode == 2
    assert "a worker died (exit code -9" in error
    assert "resume the run" in error
    assert "Traceback" not in error


def test_a_dead_worker_is_noticed_while_another_sends_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECK_INTERVAL", 0.0)
    sent = iter([*[("advance", None, 1)] * 1_000, ("done", None)])
    events, dead = SimpleNamespace(get=lambda timeout: next(sent)), SimpleNamespace(exitcode=-9)
    with pytest.raises(TrainingError, match=r"a worker died \(exit code -9; .*\); resume the run"):
        workers._forward_events(events, 1, lambda event: None, [dead])


def test_a_full_disk_in_the_middle_of_a_round(tmp_path: Path) -> None:
    settings = experiment_config(
        {**TINY, "seeds": 1, "agents": ["mbcal"], "protocols": ["growing"], "net": {"hidden": 64, "embedding": 64}}
    )
    run = Run.create(tmp_path / "run", settings, "cpu")
    run.prepare()
    script = f"ulimit -f 100; exec {sys.executable} -m mbcal experiment --resume {run.folder} --workers 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    mbcal("experiment", "--resume", str(run.folder), "--workers", "1")
    assert not Run.open(run.folder, "cpu").missing


def test_unknown_and_missing_trackers_are_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", ExperimentConfig(), "cpu")
    with pytest.raises(OptionError, match="track: 'foo' is unknown; known are mlflow, wandb"):
        track(run, "foo")
    with pytest.raises(OptionError, match=r"mlflow is not installed; run pip install 'mbcal\[track\]'"):
        track(run, "mlflow")
