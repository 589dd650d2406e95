"""Runs: both protocols, the settings they were told, and what is left of them after being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal import agents, load
from mbcal.agents import GRU4Rec
from mbcal.errors import OptionError, OutputError, StoreError
from mbcal.evaluation.evaluator import evaluate
from mbcal.evaluation.experiment.batch_rl import TEST_SEED, batch_rl
from mbcal.evaluation.experiment.config import PRESETS, ExperimentConfig, experiment_config, load_experiment_config
from mbcal.evaluation.experiment.context import ExperimentContext, summarise
from mbcal.evaluation.experiment.growing_batch import collect, growing_batch
from mbcal.evaluation.experiment.run import Cell, Run, _folder_name
from mbcal.evaluation.variance import analyse_variance
from mbcal.report.page_writer import write_report
from mbcal.report.summary import RunSummary
from mbcal.report.tables import rewards_table
from tests.support.experiments import TINY
from tests.support.toys import BEST, DelayedPrize, logged, starts


def context(**more: Any) -> ExperimentContext:
    settings = experiment_config(
        {**TINY, "rounds": 6, "round_sessions": 300, "epochs": 15, "learning_rate": 3e-3, "batch": 64, **more}
    )
    return ExperimentContext(settings, logged(1200), starts(200, seed=5), {"toy": DelayedPrize()}, (), "cpu")


def test_batch_rl_finds_the_delayed_prize_where_it_should() -> None:
    shared = context()
    for name, low, high in (("mbcal", 0.85 * BEST, BEST), ("gru4rec", 5.0, 7.5)):
        record, rewards, _ = batch_rl(shared, name, 0)
        assert low <= record["judges"]["toy"]["mean"] <= high
        assert rewards["toy"].shape == (200,)
        assert rewards["toy"].mean() == pytest.approx(record["judges"]["toy"]["mean"])
    assert record["regression"] is None  # gru4rec has no value network


def test_growing_batch_learns_round_by_round() -> None:
    record, _, _ = growing_batch(context(rounds=3, round_epochs=15, round_sessions=1200), "mcpe", 0)
    curve = [entry["mean"] for entry in record["rounds"]]
    assert [entry["round"] for entry in record["rounds"]] == [1, 2, 3]
    assert 0.6 * BEST < curve[0] < curve[-1]
    assert curve[-1] > 0.95 * BEST
    assert record["rounds"][0]["collected"] == pytest.approx(7.84, abs=0.3)  # by chance
    assert record["rounds"][2]["collected"] > 0.8 * BEST  # by the policy of the round before


def test_a_round_is_resumed_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.evaluation.experiment.growing_batch.CHECKPOINT_EVERY", 0.0)
    for replay in (1, 2):
        shared = context(rounds=3, replay=replay)
        straight, rewards, _ = growing_batch(shared, "gru4rec", 0)
        kept = tmp_path / str(replay)
        kept.mkdir()
        two = context(rounds=2, replay=replay)
        growing_batch(two, "gru4rec", 0, kept)
        assert len(list(kept.glob("agent-*"))) == 1
        again, rewards_again, _ = growing_batch(shared, "gru4rec", 0, kept)
        assert again == straight
        assert np.array_equal(rewards["toy"], rewards_again["toy"])


def test_replay_keeps_as_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[int] = []
    fit = agents.Agent.fit

    def spy(self: Any, sessions: Any, **more: Any) -> Any:
        taught.append(len(sessions))
        return fit(self, sessions, **more)

    monkeypatch.setattr(agents.Agent, "fit", spy)
    for replay, wanted in ((1, [50, 50, 50]), (2, [50, 100, 100]), (9, [50, 100, 150])):
        taught.clear()
        growing_batch(context(rounds=3, replay=replay, round_sessions=50), "popular", 0)
        assert taught == wanted


def test_networks_stop_on_users_held_out_where_told() -> None:
    for share, wanted in ((0.0, {"loss"}), (0.2, {"loss", "held_out"})):
        played = batch_rl(context(epochs=2, validation=share), "gru4rec", 0)
        assert played.agent is not None
        assert set(played.agent.curves["behaviour"][0]) == wanted
    with pytest.raises(OptionError, match="validation"):
        ExperimentConfig(validation=1.0)


def test_who_explores_collects_with_epsilon() -> None:
    shared = context(epsilon=0.3, round_sessions=2000)
    for kind, share in ((GRU4Rec, 0.0), (agents.GRU4RecEpsilon, 0.3)):
        agent = shared.agent(kind.name, 0, shared.settings.training(1)).fit(logged(300))
        served = collect(shared, agent, 0, 1)
        assert served.propensities is not None
        off = (served.propensities[:, 0] < 0.5).float().mean().item()  # of twelve candidates one is the best anyhow
        assert off == pytest.approx(share * 11 / 12, abs=0.04)


def test_test_sessions_never_enter_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fit of a whole run is watched: no test user, and nothing from the simulator's users either."""
    seen: list[set[int]] = []
    fit = agents.Agent.fit

    def spy(self: Any, sessions: Any, **more: Any) -> Any:
        seen.append(set(sessions.user.tolist()))
        return fit(self, sessions, **more)

    monkeypatch.setattr(agents.Agent, "fit", spy)
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", experiment_config({**TINY, "seeds": 1}), "cpu")
        run.prepare()
        for cell in run.missing:
            run.execute(cell)
        store = run.store()
        tested = set(store.sessions("test").user.tolist())
        simulated = set(store.sessions("simulator").user.tolist())
        assert set(run.context.test.user.tolist()) <= tested
    assert len(seen) == 3 * (1 + 2)
    assert all(not users & (tested | simulated) for users in seen)


def test_common_random_numbers_across_cells() -> None:
    shared = context()
    first, again = (batch_rl(shared, "random", 0)[1]["toy"] for _ in range(2))
    assert np.array_equal(first, again)
    assert TEST_SEED == 1_000_003


def test_variety_by_hand() -> None:
    from dataclasses import replace

    from mbcal.evaluation.evaluator import EvaluationResult

    served = starts(2)
    items = served.candidates[:, [0, 1, 2, 3, 4, 5]].copy()  # type: ignore[index]
    items[1] = items[1, 0]
    found = summarise(EvaluationResult(replace(served, items=items)))
    assert found["diversity"] == pytest.approx((1 + 1 / 6) / 2)
    assert found["repetition"] == pytest.approx(0.5)
    assert found["coverage"] == len(np.unique(items)) / 24


def test_the_noise_of_labels_is_the_noise_of_the_world() -> None:
    """In a world without luck the label of a (state, action) is the same however often its future is resampled."""
    shared = context(epochs=2)
    agent = shared.agent("mcpe", 0, shared.settings.training(2)).fit(shared.train)
    for noise, low, high in ((False, 0.0, 1e-9), (True, 0.5, 50.0)):
        users = DelayedPrize(noise=noise)
        served = evaluate(agent, users, shared.test, seed=1).served
        found = analyse_variance(agent, users, served, futures=16, states=20, seed=0)
        assert found is not None
        assert low <= found.future_variance <= high
        assert found.explained <= 1
    assert found.label_variance > 0


def test_settings_are_typed_and_named() -> None:
    assert experiment_config({}) == ExperimentConfig()
    assert experiment_config({}, "paper").rounds == 40
    assert experiment_config({}, "paper").round_sessions == 256_000
    for preset in PRESETS:
        experiment_config({}, preset)
    overrides = ["rounds=3", "simulator.hidden=64", "agents=mbcal,dqn", "epsilon=0.2", "data=some/store"]
    made = load_experiment_config(overrides=overrides)
    assert (made.rounds, made.simulator.hidden, made.agents, made.epsilon) == (3, 64, ("mbcal", "dqn"), 0.2)
    assert made.data == "some/store"
    for values, said in (
        ({"roundz": 3}, r"roundz: unknown; .*Did you mean 'rounds'\?"),
        ({"rounds": 0}, "rounds: must be at least 1, got 0"),
        ({"epsilon": 2.0}, r"epsilon: must be in \[0, 1\]"),
        ({"protocols": ["batches"]}, r"protocols: 'batches' is unknown; known are batch, growing\. Did you mean 'batch'\?"),
        ({"simulator": {"hiden": 3}}, r"simulator\.hiden: unknown"),
        ({"hidden": 0}, "hidden: must be at least 1"),
    ):
        with pytest.raises(OptionError, match=said):
            experiment_config(values)
    with pytest.raises(OptionError, match="preset: 'quik' is unknown"):
        experiment_config({}, "quik")
    with pytest.raises(OptionError, match="'roundz' is unknown"):
        load_experiment_config(overrides=["roundz=3"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run by the command; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "tiny.toml"
    config.write_text(
        'agents = ["mbcal", "gru4rec", "random"]\nseeds = 2\nlog_sessions = 400\ntest_sessions = 60\nepochs = 2\n'
        "rounds = 2\nround_sessions = 80\nhidden = 8\nembedding = 8\nfutures = 4\nfuture_states = 4\nxray = 2\n"
        "[simulator]\nhidden = 8\nembedding = 8\n[simulator.training]\nepochs = 1\n"
    )
    command = [sys.executable, "-m", "mbcal", "experiment", str(config), "--out", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
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
    findings = RunSummary(Run.open(finished, "cpu"))
    rows = {(row[0], row[1]): row for row in rewards_table(findings, "batch").rows}
    rewards = findings.rewards("batch", "truth")
    assert rows["truth", "mbcal"][2] == pytest.approx(rewards["mbcal"].mean(), rel=1e-6)
    assert rows["truth", "mbcal"][3] == pytest.approx(rewards["mbcal"].mean(1).std(ddof=1), rel=1e-5)
    assert rows["truth", "random"][6] == pytest.approx(rewards["random"].mean() - rewards["gru4rec"].mean(), rel=1e-5)
    oracle = rewards["oracle"].mean()
    assert rows["truth", "mbcal"][10] == pytest.approx(oracle - rewards["mbcal"].mean(), rel=1e-5)
    assert rows["truth", "oracle"][2] == max(row[2] for row in rewards_table(findings, "batch").rows if row[0] == "truth")


def test_what_is_done_is_not_done_again(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "cells").rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "mbcal", "experiment", "--resume", str(finished)]
    subprocess.run(command, capture_output=True, check=True)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_killed_at_random_moments_the_tables_are_the_same(finished: Path, tmp_path: Path) -> None:
    """A dozen kills with -9, spread over the run; children die too."""
    given = json.loads((finished / "settings.json").read_text())
    run = Run.create(tmp_path / "run", experiment_config(given), "cpu")
    resume = [sys.executable, "-m", "mbcal", "experiment", "--resume", str(run.folder), "--workers", "2"]
    draw, kills = np.random.default_rng(0), 0
    while kills < 12:
        running = subprocess.Popen(resume, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        before = progress_of(run.folder)
        deadline = time.monotonic() + 60
        while running.poll() is None and progress_of(run.folder) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(float(draw.uniform(0, 0.3)))
        if running.poll() is not None:
            break
        running.send_signal(signal.SIGKILL)
        running.wait()
        kills += 1
    time.sleep(0.2)
    done = subprocess.run(resume, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert kills >= 5
    assert tables(run.folder) == tables(finished)
    assert not list(run.folder.rglob(".*.partial-*"))
    alive = subprocess.run(["pgrep", "-f", str(run.folder)], capture_output=True, text=True, check=False).stdout
    assert not alive.strip()


def progress_of(folder: Path) -> int:
    """Changes whenever anything new is on disk."""
    try:
        return hash(tuple(sorted(str(path) for path in folder.rglob("manifest.json"))))
    except FileNotFoundError:  # a folder was renamed under our eyes
        return 0


def test_in_one_process_or_two_the_tables_are_the_same(finished: Path, tmp_path: Path) -> None:
    given = json.loads((finished / "settings.json").read_text())
    run = Run.create(tmp_path / "run", experiment_config(given), "cpu")
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
    said = json.loads((finished / "run.json").read_text())
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "run.json").write_text(json.dumps({**said, "schema": 99}))
    with pytest.raises(StoreError, match="schema 99, this mbcal reads schema 1"):
        Run.open(tmp_path)
    with pytest.raises(OptionError, match=r"agent: 'mbcall' is unknown.*Did you mean 'mbcal'"):
        Run.create(tmp_path / "new", experiment_config({"agents": ["mbcall"]}))
    assert not (tmp_path / "new").exists()
    with pytest.raises(OptionError, match="features: no 'kategory'"):
        Run.create(tmp_path / "new", experiment_config({"features": ["kategory"]}))
    with pytest.raises(OptionError, match="hidden: must be at least 1"):
        experiment_config({"simulator": {"hidden": 0}})
    with pytest.raises(OptionError, match="agents: a name is there twice"):
        experiment_config({"agents": ["mbcal", "mbcal"]})
    assert not (tmp_path / "new").exists()
    assert Cell("batch", "mbcal", 0) in Run.open(finished, "cpu").cells


def test_options_in_a_name_reach_the_network() -> None:
    shared = context(gamma=0.7, epochs=1)
    agent = shared.agent("mbcal+net.hidden=64+mask_rate=0.4+net.user=id", 3, shared.settings.training(2))
    config = agent.config
    assert (config.net.hidden, config.net.user, config.mask_rate) == (64, "id", 0.4)
    assert (config.gamma, config.net.embedding, config.seed, config.training.epochs) == (0.7, 8, 3, 2)
    assert agent.fit(shared.train).nets["environment"].cell.hidden_size == 64
    assert shared.agent("mbcal", 0, shared.settings.training(2)).config.net.hidden == 8
    assert shared.agent("dqn+copy_every=50+gamma=1", 0, shared.settings.training(2)).config.copy_every == 50
    assert shared.agent("mbcal+net.features=[]", 0, shared.settings.training(2)).config.net.features == ()


def test_unknown_options_are_refused_before_anything_runs(tmp_path: Path) -> None:
    for name, said in (
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
        with pytest.raises(OptionError, match=said):
            Run.create(tmp_path / "new", experiment_config({**TINY, "agents": [name]}), "cpu")
        assert not (tmp_path / "new").exists()


def test_variants_in_one_run_have_folders_and_rows_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from mbcal.agents import MBCAL\nclass Mine(MBCAL):\n    name = 'mine'\n")
    names = ["gru4rec", "mbcal", "mbcal+net.hidden=6", f"{tmp_path}/mine.py:Mine+gamma=0.5", f"{tmp_path}/mine.py:Mine"]
    sizes = [f"{name}={value}" for name, value in TINY.items() if name not in ("agents", "seeds", "simulator")]
    command = [sys.executable, "-m", "mbcal", "experiment", "newsfeed", "--out", str(tmp_path / "run"), "--seeds", "1"]
    command += ["--agents", ",".join([*names, 'mbcal+net.features=["category", "type"]']), "--protocols", "batch"]
    changes = [*sizes, "judges=truth"]
    done = subprocess.run([*command, *(part for one in changes for part in ("--set", one))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "run", "cpu")
    assert len({run.path(cell) for cell in run.cells}) == len(run.cells) == 7
    assert {path.name for path in (run.folder / "models" / "batch").iterdir()} >= {"mbcal", "mbcal+net.hidden=6"}
    kept = {name: load(run.path(Cell("batch", name, 0), "models"), "cpu").config.net for name in ("mbcal", names[2])}
    assert (kept["mbcal"].hidden, kept[names[2]].hidden) == (8, 6)
    rows = {row[1]: row for row in rewards_table(RunSummary(run), "batch").rows}
    assert set(rows) == {"oracle", *names, 'mbcal+net.features=["category", "type"]'}
    rewards = RunSummary(run).rewards("batch", "truth")
    gap = float(rewards[names[2]].mean(dtype=float) - rewards["mbcal"].mean(dtype=float))
    assert rows[names[2]][8] == pytest.approx(gap, abs=1e-6)
    page = (run.folder / "report.html").read_text()
    assert names[2] in page


def test_folders_of_agents_never_collide() -> None:
    names = ["a/b.py:C", "a_b.py:C", "a_b.py_C", "mbcal", "mbcal+gamma=0.9", "mbcal+gamma=0_9", "x" * 300, "x" * 301]
    folders = [_folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folders[3:5] == ["mbcal", "mbcal+gamma=0.9"]
    assert all("/" not in folder and len(folder) < 200 for folder in folders)


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    from mbcal import NewsfeedConfig, prepare_newsfeed
    from mbcal.data.cutting import SessionConfig

    how = SessionConfig(horizon=4, history=4)
    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=300, items=100), how)
    told = {**TINY, "data": str(tmp_path / "feed"), "judges": ["truth"], "protocols": ["batch"], "agents": ["random"]}
    run = Run.create(tmp_path / "run", experiment_config(told), "cpu")
    run.prepare()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["data"] == run.store().manifest["content_hash"]
    prepare_newsfeed(tmp_path / "feed", NewsfeedConfig(sessions=320, items=100), how, overwrite=True)
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
    command = [sys.executable, "-m", "mbcal", "compare", str(finished)]
    same = subprocess.run([*command, str(finished)], capture_output=True, text=True, check=True).stdout
    assert "batch, judged by truth" in same
    assert "+0.000 [+0.000, +0.000]" in same
    told = {**TINY, "seeds": 1, "protocols": ["batch"], "agents": ["gru4rec"], "log_sessions": 300}
    other = Run.create(tmp_path / "other", experiment_config(told), "cpu")
    missing = subprocess.run([*command, str(other.folder)], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "no method is done in both" in missing.stderr or "not a run" in missing.stderr
    other.prepare()
    for cell in other.missing:
        other.execute(cell)
    said = subprocess.run([*command, str(other.folder)], capture_output=True, text=True, check=True).stdout
    assert "gru4rec" in said
    assert "other data or test sessions" in said


@pytest.mark.skipif(sys.platform != "linux", reason="looks for workers in /proc")
def test_a_worker_that_dies_is_one_sentence(tmp_path: Path) -> None:
    told = {**TINY, "protocols": ["growing"], "agents": ["mbcal", "gru4rec"], "rounds": 60}
    run = Run.create(tmp_path / "run", experiment_config(told), "cpu")
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


def test_the_x_ray_adds_up_to_the_label() -> None:
    """What an item is said to change in each later step, discounted, is the counterfactual advantage itself."""
    shared = context(epochs=3)
    played = batch_rl(shared, "mbcal", 0)
    seen = played.record["xray"]
    agent, gamma = played.agent, shared.settings.gamma
    assert agent is not None
    served = evaluate(agent, DelayedPrize(), shared.test, seed=TEST_SEED).served[:2]
    label = agent.label(served.tensors())  # type: ignore[attr-defined]
    scorer, batch = agent.fitted_scorer, served.tensors()
    state = scorer.begin(*batch.history)
    assert len(seen) == 2
    for step in range(6):
        parts = scorer.score_parts(state, batch.items[:, step : step + 1])
        for row, session in enumerate(seen):
            told = session["steps"][step]
            assert told["item"] == served.catalog.title_of(int(served.items[row, step]))
            assert told["reward"] == served.rewards[row, step]
            assert told["instant"] == pytest.approx(float(parts["instant"][row, 0]), abs=1e-4)
            assert told["future"] == pytest.approx(float(parts["future"][row, 0]), abs=1e-4)
            assert len(told["changed"]) == 5 - step
            total = sum(value * gamma ** (k + 1) for k, value in enumerate(told["changed"]))
            assert total == pytest.approx(float(label[row, step]), abs=2e-3)
            gone = {one["item"] for one in session["steps"][:step]} | {told["item"]}
            assert not gone & {rival["item"] for rival in told["rivals"]}
        state = scorer.observe(state, batch.items[:, step], batch.behaviours[:, step])


def test_an_agent_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from mbcal.agents import GRU4Rec\nclass Mine(GRU4Rec):\n    name = 'mine'\nclass Other:\n    pass\n"
    )
    kind = agents.agent_class(f"{tmp_path}/mine.py:Mine")
    assert kind.name == "mine"
    for name, said in (
        (f"{tmp_path}/mine.py:Mein", "has no 'Mein'"),
        (f"{tmp_path}/mine.py:Other", "is not a subclass of mbcal.Agent; see docs/new-method.md"),
        (f"{tmp_path}/none.py:Mine", "cannot be read"),
    ):
        with pytest.raises(OptionError, match=said):
            agents.agent_class(name)
    shared = context(rounds=1)
    record, _, _ = growing_batch(shared, f"{tmp_path}/mine.py:Mine", 0)
    assert record["rounds"][0]["mean"] > 0


def test_a_full_disk_in_the_middle_of_a_round(tmp_path: Path) -> None:
    settings = experiment_config(
        {**TINY, "seeds": 1, "agents": ["mbcal"], "protocols": ["growing"], "hidden": 64, "embedding": 64}
    )
    run = Run.create(tmp_path / "run", settings, "cpu")
    run.prepare()
    script = f"ulimit -f 100; exec {sys.executable} -m mbcal experiment --resume {run.folder} --workers 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    subprocess.run(
        [sys.executable, "-m", "mbcal", "experiment", "--resume", str(run.folder)], check=True, capture_output=True
    )
    assert not Run.open(run.folder, "cpu").missing
