"""evaluate_models and fit_simulator as library functions; tests/cli/test_models.py has their commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mbcal import (
    GRU4Rec,
    NetConfig,
    NewsfeedConfig,
    SessionConfig,
    Simulator,
    SimulatorConfig,
    Store,
    TrainingConfig,
    evaluate,
    evaluate_models,
    fit_simulator,
    prepare_newsfeed,
)
from mbcal.agents import AgentConfig
from mbcal.distributed.engines.local import LocalEngine
from mbcal.errors import ModelError, OptionError, OutputError, TrainingError

TRAINING = TrainingConfig(epochs=1)
CONFIG = SimulatorConfig(hidden=8, embedding=8, training=TRAINING)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store `feed`, a simulator `sim` and a model `gru`; not to be changed."""
    folder = tmp_path_factory.mktemp("shop")
    store = prepare_newsfeed(folder / "feed", NewsfeedConfig(sessions=300, items=100), SessionConfig(horizon=4, history=4))
    fit_simulator(store, folder / "sim", CONFIG, device="cpu")
    agent = GRU4Rec(AgentConfig(net=NetConfig(hidden=8, embedding=8), training=TRAINING), "cpu")
    agent.fit(store.sessions("train")).save(folder / "gru")
    return folder


def test_folders_objects_and_engines_give_the_same_result(shop: Path) -> None:
    folders = evaluate_models([shop / "gru"], [shop / "sim", "truth"], shop / "feed", sessions=30, device="cpu")
    agent, simulator = GRU4Rec.load(shop / "gru", "cpu"), Simulator.load(shop / "sim", "cpu")
    objects = evaluate_models([agent, agent], [simulator], Store.open(shop / "feed"), sessions=30, device="cpu")
    by_engine = evaluate_models([shop / "gru"], [shop / "sim", "truth"], shop / "feed", sessions=30, engine=LocalEngine())
    assert by_engine == folders
    assert [(row.judge, row.model) for row in objects.rows] == [
        ("lstm simulator", "gru4rec"),
        ("lstm simulator", "gru4rec (2)"),
        ("lstm simulator", "chance"),
    ]
    assert [row.reward for row in folders.rows[:2]] == [objects.rows[0].reward, objects.rows[2].reward]
    assert objects.rows[1].gap.mean == 0
    assert folders.judges == [str(shop / "sim"), "the generated users themselves"]


def test_rewards_and_differences_are_those_of_evaluate(shop: Path) -> None:
    comparison = evaluate_models([shop / "gru"], [shop / "sim"], shop / "feed", epsilon=0.5, seed=3, device="cpu")
    test = Store.open(shop / "feed").sessions("test")
    agent, simulator = GRU4Rec.load(shop / "gru", "cpu"), Simulator.load(shop / "sim", "cpu")
    expected = evaluate(agent, simulator, test, epsilon=0.5, seed=3)
    model, chance = comparison.rows
    assert model.reward == expected.reward
    assert (model.gap.mean, model.agent, chance.agent) == (0, "gru4rec", "random")
    assert chance.gap.mean == pytest.approx(chance.reward.mean - model.reward.mean, abs=1e-5)
    assert comparison.logged.mean == pytest.approx(float(test.rewards.sum(1).mean()))
    assert comparison.sessions == len(test)
    record = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert record["rows"][0]["interval"] == [model.reward.low, model.reward.high]
    assert str(comparison).startswith(f"judged by {shop / 'sim'}, {len(test):,} test sessions\n")


def test_mistakes_of_a_comparison(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="evaluate: give at least one model and one judge"):
        evaluate_models([shop / "gru"], [], shop / "feed")
    with pytest.raises(OptionError, match="engine: its workers read models and judges from folders"):
        evaluate_models([GRU4Rec.load(shop / "gru", "cpu")], ["truth"], shop / "feed", engine=LocalEngine())
    other = prepare_newsfeed(
        tmp_path / "other", NewsfeedConfig(sessions=320, items=100), SessionConfig(horizon=4, history=4)
    )
    with pytest.raises(ModelError, match="was fitted on another store"):
        evaluate_models([shop / "gru"], ["truth"], other, device="cpu")


def test_fit_simulator_writes_a_card_and_keeps_what_is_there(shop: Path, tmp_path: Path) -> None:
    fit = fit_simulator(shop / "feed", tmp_path / "sim", CONFIG, device="cpu", family="transformer", seed=2)
    assert (fit.simulator.config.family, fit.simulator.config.hidden, fit.path) == ("transformer", 8, tmp_path / "sim")
    card = json.loads((tmp_path / "sim" / "report-card.json").read_text())
    assert card["nll"] == fit.card.nll
    assert np.isfinite(fit.card.nll)
    assert [path.name for path in tmp_path.iterdir()] == ["sim"]  # no checkpoint is left
    with pytest.raises(OutputError, match="sim: already exists"):
        fit_simulator(shop / "feed", tmp_path / "sim", CONFIG, device="cpu")
    with pytest.raises(OptionError, match=r"simulator: .*hiden"):
        fit_simulator(shop / "feed", tmp_path / "new", CONFIG, device="cpu", hiden=4)


def test_a_stopped_simulator_fit_resumes_and_refuses_other_settings(shop: Path, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    class StopInSecondPhase:
        phases = 0

        def phase(self, title: str, total: int | None = None) -> None:
            self.phases += 1
            if self.phases == 2:
                raise StopError

        def advance(self, amount: int) -> None: ...

    resumed: list[bool] = []
    with pytest.raises(StopError):
        fit_simulator(shop / "feed", tmp_path / "sim", CONFIG, device="cpu", progress=StopInSecondPhase())
    with pytest.raises(TrainingError):
        fit_simulator(shop / "feed", tmp_path / "sim", CONFIG, device="cpu", seed=9)
    fit_simulator(shop / "feed", tmp_path / "sim", CONFIG, device="cpu", on_resume=lambda: resumed.append(True))
    assert resumed == [True]
    weights = [(folder / "sim" / "weights.safetensors").read_bytes() for folder in (shop, tmp_path)]
    assert weights[0] == weights[1]
