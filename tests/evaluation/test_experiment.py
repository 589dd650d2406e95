"""Batch-RL, Growing Batch-RL, their settings, and the analyses of a cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mbcal import agents
from mbcal.agents import GRU4Rec
from mbcal.errors import OptionError
from mbcal.evaluation.evaluator import TEST_SEED, evaluate
from mbcal.evaluation.experiment.batch_rl import batch_rl
from mbcal.evaluation.experiment.config import PRESETS, ExperimentConfig, experiment_config, load_experiment_config
from mbcal.evaluation.experiment.context import ExperimentContext, agent_config, summarise
from mbcal.evaluation.experiment.growing_batch import collect, growing_batch
from mbcal.evaluation.experiment.run import Run
from mbcal.evaluation.variance import analyse_variance
from mbcal.training.config import TrainingConfig
from tests.support.experiments import TINY
from tests.support.toys import BEST, DelayedPrize, logged, starts


def context(epochs: int = 15, validation: float = 0.0, **more: Any) -> ExperimentContext:
    training = {**TINY["training"], "epochs": epochs, "validation": validation}
    settings = experiment_config({**TINY, "rounds": 6, "round_sessions": 300, "training": training, **more})
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
    shares: list[float] = []
    fit = agents.Agent.fit

    def spy(self: Any, sessions: Any, **more: Any) -> Any:
        taught.append(len(sessions))
        shares.append(more["training"].shrink)
        return fit(self, sessions, **more)

    monkeypatch.setattr(agents.Agent, "fit", spy)
    for replay, wanted, share in ((1, [50, 50, 50], 1.0), (2, [50, 100, 100], 1.0), (9, [50, 100, 150], 0.5)):
        taught.clear()
        growing_batch(context(rounds=3, replay=replay, round_sessions=50), "popular", 0)
        assert taught == wanted
        assert shares[-1] == share  # weights are shrunk where all rounds are learned from


def test_the_settings_of_an_experiment_reach_the_methods_that_have_them() -> None:
    changed = experiment_config({"copy_every": 7, "gamma": 0.9, "mask_rate": 0.3})
    dqn, mbcal = (agent_config(name, changed, (), 0)[1] for name in ("dqn", "mbcal"))
    assert isinstance(dqn, agents.DQN.Config)
    assert isinstance(mbcal, agents.MBCAL.Config)
    assert (dqn.copy_every, dqn.gamma) == (7, 0.9)
    assert (mbcal.gamma, mbcal.mask_rate) == (0.9, 0.3)
    paper = agent_config("dqn", experiment_config({}, "paper"), (), 0)[1]
    assert isinstance(paper, agents.DQN.Config)
    assert (paper.copy_every, paper.gamma, paper.net.hidden) == (20, 0.95, 32)


def test_networks_stop_on_held_out_users_if_set() -> None:
    for share, wanted in ((0.0, {"loss"}), (0.2, {"loss", "held_out"})):
        played = batch_rl(context(epochs=2, validation=share), "gru4rec", 0)
        assert played.agent is not None
        assert set(played.agent.records["behaviour"].curve[0]) == wanted
    with pytest.raises(OptionError, match="validation"):
        ExperimentConfig(training=TrainingConfig(validation=1.0))


def test_who_explores_collects_with_epsilon() -> None:
    shared = context(epsilon=0.3, round_sessions=2000)
    for kind, share in ((GRU4Rec, 0.0), (agents.GRU4RecEpsilon, 0.3)):
        agent = shared.agent(kind.name, 0).fit(logged(300))
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
    """In a deterministic world the label of a (state, action) is the same however often its future is resampled."""
    shared = context(epochs=2)
    agent = shared.agent("mcpe", 0).fit(shared.train)
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
    for values, message in (
        ({"roundz": 3}, r"roundz: unknown; .*Did you mean 'rounds'\?"),
        ({"rounds": 0}, "rounds: must be at least 1, got 0"),
        ({"epsilon": 2.0}, r"epsilon: must be in \[0, 1\]"),
        ({"protocols": ["batches"]}, r"protocols: 'batches' is unknown; known are batch, growing\. Did you mean 'batch'\?"),
        ({"simulator": {"hiden": 3}}, r"simulator\.hiden: unknown"),
        ({"net": {"hidden": 0}}, "hidden: must be at least 1"),
    ):
        with pytest.raises(OptionError, match=message):
            experiment_config(values)
    with pytest.raises(OptionError, match="preset: 'quik' is unknown"):
        experiment_config({}, "quik")
    with pytest.raises(OptionError, match="'roundz' is unknown"):
        load_experiment_config(overrides=["roundz=3"])


def test_options_in_a_name_reach_the_network() -> None:
    shared = context(gamma=0.7, epochs=2)
    agent = shared.agent("mbcal+net.hidden=64+mask_rate=0.4+net.user=id", 3)
    config = agent.config
    assert (config.net.hidden, config.net.user, config.mask_rate) == (64, "id", 0.4)
    assert (config.gamma, config.net.embedding, config.seed, config.training.epochs) == (0.7, 8, 3, 2)
    assert agent.fit(shared.train).nets["environment"].cell.hidden_size == 64
    assert shared.agent("mbcal", 0).config.net.hidden == 8
    assert shared.agent("dqn+copy_every=50+gamma=1", 0).config.copy_every == 50
    assert shared.agent("mbcal+net.features=[]", 0).config.net.features == ()


def test_the_x_ray_adds_up_to_the_label() -> None:
    """The discounted sum of the changes shown for an item is the counterfactual advantage itself."""
    shared = context(epochs=3)
    played = batch_rl(shared, "mbcal", 0)
    seen = played.record["xray"]
    agent, gamma = played.agent, played.record["gamma"]
    assert agent is not None
    served = evaluate(agent, DelayedPrize(), shared.test, seed=TEST_SEED).served[:2]
    label = agent.label(served.tensors())  # type: ignore[attr-defined]
    scorer, batch = agent.fitted_scorer, served.tensors()
    state = scorer.begin(*batch.history)
    assert len(seen) == 2
    for step in range(6):
        parts = scorer.score_parts(state, batch.items[:, step : step + 1])
        for row, session in enumerate(seen):
            shown = session["steps"][step]
            assert shown["item"] == served.catalog.title_of(int(served.items[row, step]))
            assert shown["reward"] == served.rewards[row, step]
            assert shown["instant"] == pytest.approx(float(parts["instant"][row, 0]), abs=1e-4)
            assert shown["future"] == pytest.approx(float(parts["future"][row, 0]), abs=1e-4)
            assert len(shown["changed"]) == 5 - step
            total = sum(value * gamma ** (k + 1) for k, value in enumerate(shown["changed"]))
            assert total == pytest.approx(float(label[row, step]), abs=2e-3)
            gone = {one["item"] for one in session["steps"][:step]} | {shown["item"]}
            assert not gone & {rival["item"] for rival in shown["rivals"]}
        state = scorer.observe(state, batch.items[:, step], batch.behaviours[:, step])


def test_an_agent_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from mbcal.agents import GRU4Rec\nclass Mine(GRU4Rec):\n    name = 'mine'\nclass Other:\n    pass\n"
    )
    kind = agents.agent_class(f"{tmp_path}/mine.py:Mine")
    assert kind.name == "mine"
    for name, message in (
        (f"{tmp_path}/mine.py:Mein", "has no 'Mein'"),
        (f"{tmp_path}/mine.py:Other", "is not a subclass of mbcal.Agent; see docs/new-method.md"),
        (f"{tmp_path}/none.py:Mine", "cannot be read"),
    ):
        with pytest.raises(OptionError, match=message):
            agents.agent_class(name)
    shared = context(rounds=1)
    record, _, _ = growing_batch(shared, f"{tmp_path}/mine.py:Mine", 0)
    assert record["rounds"][0]["mean"] > 0
