"""Logs collected in Gymnasium worlds, and models that play them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import mbcal
from mbcal import cli
from mbcal.data.describe import describe
from mbcal.data.user_split import part_of, stable_hash
from mbcal.errors import ModelError, OptionError
from mbcal.evaluation.experiment.run import Run
from mbcal.report.runs import report
from mbcal.report.summary import RunSummary
from mbcal.scoring.scorers import RandomScorer
from tests.support import batches
from tests.support.command_line import refused
from tests.support.worlds import BEST, HORIZON, KEYS, SMALL


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> mbcal.Store:
    return mbcal.collect(KEYS, tmp_path_factory.mktemp("log") / "keys", sessions=1500, split=(0.1, 0.8, 0.1))


@pytest.fixture(scope="module")
def model(log: mbcal.Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    agent = mbcal.MBCAL(**SMALL).fit(log)
    assert agent.config.net.features == ("kind",)
    return agent.save(tmp_path_factory.mktemp("models") / "mbcal")


def test_a_log_is_a_store_like_any_other(log: mbcal.Store) -> None:
    options, counts = log.manifest["options"], log.manifest["counts"]
    assert log.manifest["source"] == "gymnasium"
    assert (options["world"], options["repeats"], options["policy"], options["epsilon"]) == (KEYS, False, "random", 1.0)
    assert (log.horizon, log.history, log.agent_features) == (HORIZON, 0, ("kind",))
    assert (counts["sessions"], counts["full_sessions"], counts["rows"]) == (1500, 1500, 6000)
    log.verify()
    description = describe(log)
    assert sum(entry["count"] for entry in description["behaviours"]) == 6000
    train = log.sessions("train")
    assert 1100 < len(train) < 1300
    assert train.propensities is not None
    assert np.allclose(train.propensities, [1 / 7, 1 / 6, 1 / 5, 1 / 4])
    for part_number, part in enumerate(("simulator", "train", "test")):
        for user in log.sessions(part).user[:20].tolist():
            assert part_of(stable_hash(log.users[user], 0, "part"), (0.1, 0.8, 0.1)) == part_number
    assert len(np.unique(train.user)) == len(train)


def test_equal_options_give_equal_bytes(log: mbcal.Store, tmp_path: Path) -> None:
    again = mbcal.collect(f"gym:{KEYS}", tmp_path / "again", sessions=1500, split=(0.1, 0.8, 0.1))
    assert again.manifest["content_hash"] == log.manifest["content_hash"]
    other = mbcal.collect(KEYS, tmp_path / "other", sessions=1500, split=(0.1, 0.8, 0.1), seed=1)
    assert not np.array_equal(other.sessions("train").items[:900], log.sessions("train").items[:900])


def test_a_model_finds_the_best_policy_and_is_compared_with_chance(model: Path) -> None:
    myopic = mbcal.Popular(device="cpu").fit(mbcal.GymnasiumWorld(KEYS).play(mbcal.load(model, "cpu"), 50, epsilon=1.0))
    comparison = mbcal.evaluate_in_world([model, myopic], KEYS, episodes=60, device="cpu")
    rows = {row.model: row for row in comparison.rows}
    assert list(rows) == [str(model), "popular", "chance"]
    assert comparison.judges == [f"gym:{KEYS}"]
    best, chance = rows[str(model)], rows["chance"]
    assert (best.reward.mean, best.reward.stderr, best.gap.mean) == (BEST, 0.0, 0.0)
    assert chance.reward.low < chance.reward.mean < BEST - 2
    assert chance.gap.mean == pytest.approx(chance.reward.mean - BEST)
    assert comparison.to_dict()["logged"] is None
    assert "as logged" not in str(comparison)
    again = mbcal.evaluate_in_world([model], KEYS, episodes=60, device="cpu")
    assert again.rows[-1] == chance


def test_a_model_collects(model: Path, tmp_path: Path) -> None:
    store = mbcal.collect(KEYS, tmp_path / "by-model", policy=model, sessions=300, epsilon=0.2, device="cpu")
    assert (store.manifest["options"]["policy"], store.manifest["options"]["epsilon"]) == ("mbcal", 0.2)
    train = store.sessions("train")
    assert train.rewards.sum(1).mean() > BEST - 2
    assert train.propensities is not None
    assert set(np.round(train.propensities[:, 0], 5).tolist()) <= {np.float32(0.82857), np.float32(0.02857)}


def test_a_model_of_other_items_or_behaviours_is_refused(model: Path) -> None:
    stranger = mbcal.GRU4Rec(hidden=8, embedding=8, epochs=1, device="cpu").fit(batches.sessions(count=40))
    with pytest.raises(ModelError, match="gru4rec: knows 12 items, gym:toy/Keys-v0 has 7; fit a model on a log of this"):
        mbcal.evaluate_in_world([stranger], "toy/Keys-v0", episodes=4)
    world = mbcal.GymnasiumWorld("toy/Scored-v0")
    with pytest.raises(ModelError, match="mbcal: knows the behaviours 0, 1, 2, gym:toy/Scored-v0 has <"):
        mbcal.evaluate_in_world([mbcal.load(model, "cpu")], world, episodes=4)


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="sessions: must be at least 1, got 0"):
        mbcal.collect(KEYS, tmp_path / "x", sessions=0)
    with pytest.raises(OptionError, match=r"epsilon: must be in \[0, 1\], got 3"):
        mbcal.collect(KEYS, tmp_path / "x", policy=RandomScorer(0), epsilon=3)
    with pytest.raises(OptionError, match="episodes: must be at least 2, got 1"):
        mbcal.evaluate_in_world(["nothing"], KEYS, episodes=1)
    assert not (tmp_path / "x").exists()


def test_the_commands(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> Result:
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == 0, done.output
        return done

    done = command("collect", f"gym:{KEYS}", "--sessions", "40", "--out", str(tmp_path / "log"))
    assert "160 steps of 40 users with 7 items, 40 sessions (40 full: 4 steps)" in done.stdout
    done = command("evaluate", str(model), "--env", f"gym:{KEYS}", "--episodes", "30", "--json", "--device", "cpu")
    rows = json.loads(done.stdout)["rows"]
    assert (rows[0]["mean"], rows[1]["model"]) == (BEST, "chance")
    table = command("evaluate", str(model), "--env", f"gym:{KEYS}", "--episodes", "30", "--device", "cpu").stdout
    assert f"judged by gym:{KEYS}, 30 test sessions" in table
    assert "as logged" not in table
    said = refused("collect", "gym:toy/Nothing-v0", "--out", "x", cwd=tmp_path, capsys=capsys)
    assert said.startswith("mbcal: gym:toy/Nothing-v0: not registered in Gymnasium")
    assert not (tmp_path / "x").exists()
    said = refused("evaluate", str(model), cwd=tmp_path, capsys=capsys)
    assert said == "mbcal: data: missing; give --data STORE whose test users are served, or --env gym:ID"
    said = refused("evaluate", str(model), "--env", "gym:toy/Keys-v0", "--truth", cwd=tmp_path, capsys=capsys)
    assert said.startswith("mbcal: env: episodes are played in the environment")


def test_an_experiment_in_a_world_learns_from_a_random_log_and_in_growing_rounds(tmp_path: Path) -> None:
    sizes = {"log_sessions": 600, "test_sessions": 20, "rounds": 2, "round_sessions": 300, "xray": 1}
    network = {"hidden": SMALL["hidden"], "embedding": SMALL["embedding"]}
    training = {name: SMALL[name] for name in ("batch", "epochs", "learning_rate")}
    settings = {**sizes, "agents": ["mbcal", "random"], "seeds": 1, "gamma": 0.95, "net": network, "training": training}
    config = mbcal.load_experiment_config(f"gym:{KEYS}", **settings)
    run = mbcal.run_experiment(config, tmp_path / "run", workers=1, device="cpu")
    assert (run.judge_names, run.missing) == (("world",), [])
    results = {(result.cell.protocol, result.cell.agent): result for result in run.results()}
    assert results["batch", "mbcal"].rewards["world"].tolist() == [BEST] * 20
    assert results["batch", "random"].rewards["world"].mean() < BEST - 2
    first, second = results["growing", "mbcal"].record["rounds"]
    assert first["collected"] < BEST - 2  # by a random policy
    assert first["mean"] == BEST  # tested greedily
    assert BEST - 1 < second["collected"] < BEST  # by the agent, epsilon-greedily
    assert run.store().n_sessions("train") == 600
    assert run.context.agent("mbcal", 0).config.net.features == ("kind",)
    page = report(run).page
    assert page.is_file()
    assert "judged by the world itself, 20 test sessions of 20 users" in RunSummary(run).headline()


def test_a_world_that_only_grows_plays_no_log(tmp_path: Path) -> None:
    sizes = {"log_sessions": 5_000, "test_sessions": 20, "rounds": 1, "round_sessions": 30}
    config = mbcal.load_experiment_config(f"gym:{KEYS}", **sizes, agents=["random"], seeds=1, protocols=["growing"])
    run = mbcal.run_experiment(config, tmp_path / "run", workers=1, device="cpu")
    assert (run.missing, run.store().n_sessions("train")) == ([], 10)


def test_settings_of_an_experiment_that_do_not_fit_a_world_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="judges: in a Gymnasium world, the world itself judges"):
        mbcal.load_experiment_config(f"gym:{KEYS}", judges=["lstm"])
    with pytest.raises(OptionError, match=r"judges: only a Gymnasium world \(gym:ID\) is its own judge"):
        mbcal.load_experiment_config("newsfeed", judges=["world"])
    with pytest.raises(OptionError, match="log_sessions: a generated log needs at least 10, got 2"):
        mbcal.load_experiment_config(f"gym:{KEYS}", log_sessions=2)
    with pytest.raises(OptionError, match="toy/Never-v0: never ends"):
        Run.create(tmp_path / "run", mbcal.load_experiment_config("gym:toy/Never-v0"))
    assert not (tmp_path / "run").exists()
