"""The library as its users call it: keyword settings, short reprs, one loader per class, clear refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mbcal
from mbcal.config import with_settings
from mbcal.errors import InputError, ModelError, OptionError
from tests.support import batches


def test_settings_are_found_wherever_they_sit() -> None:
    agent = mbcal.MBCAL(gamma=0.9, epochs=5, hidden=64, features=["kind"], device="cpu")
    assert agent.config.gamma == 0.9
    assert agent.config.training.epochs == 5
    assert agent.config.net.hidden == 64
    assert agent.config.net.features == ("kind",)
    training = mbcal.TrainingConfig(batch=32)
    both = mbcal.MBCAL(mbcal.MBCALConfig(gamma=0.5, training=training), "cpu", epochs=2)
    assert (both.config.gamma, both.config.training.batch, both.config.training.epochs) == (0.5, 32, 2)
    assert mbcal.Simulator(family="transformer", epochs=3, device="cpu").config.training.epochs == 3
    assert with_settings(training, {}) is training


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gama": 0.9}, "mbcal: gama: unknown; known are .* Did you mean 'gamma'?"),
        ({"gamma": "high"}, "mbcal: gamma: must be a number, got 'high'"),
        ({"gamma": 2.0}, r"gamma: must be in \[0, 1\], got 2.0"),
        ({"epochs": 0}, "epochs: must be a whole number from 1"),
        ({"epochs": 1.5}, "mbcal: epochs: must be a whole number, got 1.5"),
        ({"cell": "lstm"}, "net.cell: agents rank by tables"),
        ({"device": "gpu"}, "device: 'gpu' is unknown"),
    ],
    ids=str,
)
def test_wrong_settings_are_one_sentence(settings: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        mbcal.MBCAL(**{"device": "cpu", **settings})


def test_reprs_are_short() -> None:
    known = batches.sessions(count=40)
    agent = mbcal.GRU4Rec(hidden=8, embedding=8, epochs=1, device="cpu")
    assert repr(agent) == "<GRU4Rec: not fitted>"
    agent.fit(known)
    simulator = mbcal.Simulator(hidden=8, embedding=8, epochs=1, device="cpu")
    assert repr(simulator) == "<Simulator: lstm, not fitted>"
    simulator.fit(known[:20])
    outcome = replace(mbcal.evaluate(agent, simulator, known[20:]), warning=None)
    assert repr(agent) == "<GRU4Rec: 12 items, 3 behaviours, fitted 1 time, on cpu>"
    assert repr(agent.fitted_scorer) == "<NetScorer: instant>"
    assert repr(agent.begin(*known[:3].tensors().history)) == "<ScorerState: 3 sessions>"
    assert repr(known) == "<Sessions: 40 of up to 6 steps, 12 items, 3 behaviours>"
    assert repr(known.tensors()) == "<SessionTensors: 40 of up to 6 steps, 12 items, 3 behaviours>"
    assert repr(known.catalog) == "<Catalog: 12 items, features kind, tags>"
    assert repr(known.catalog.features["tags"]) == "<Feature 'tags': multi-valued, 3 values>"
    assert repr(known.behaviour_set) == "<Behaviours: skip=0, click=1, like=5>"
    assert (
        repr(outcome)
        == str(outcome)
        == f"{outcome.reward.mean:.2f} [{outcome.reward.low:.2f}, {outcome.reward.high:.2f}] per session, 20 sessions"
    )
    assert repr(agent.recommend([[]] * 2, k=3)) == "<Recommendations: 3 items for each of 2 users>"
    for value in (agent, known, known.catalog, known.behaviour_set, simulator, outcome):
        assert len(repr(value)) < 200


def test_each_class_loads_its_own_models(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = (
        mbcal.GRU4Rec(hidden=8, embedding=8, epochs=1, device="cpu").fit(batches.sessions(count=40)).save(tmp_path / "model")
    )
    assert type(mbcal.load(path, "cpu")) is type(mbcal.Agent.load(path, "cpu")) is mbcal.GRU4Rec
    assert type(mbcal.GRU4Rec.load(path, "cpu")) is mbcal.GRU4Rec
    with pytest.raises(ModelError, match="holds a gru4rec agent, not a mbcal one"):
        mbcal.MBCAL.load(path, "cpu")
    with pytest.raises(ModelError, match="a model, not a simulator"):
        mbcal.Simulator.load(path, "cpu")


def test_fit_takes_a_store(tmp_path) -> None:  # type: ignore[no-untyped-def]
    store = mbcal.prepare_newsfeed(tmp_path / "feed", mbcal.NewsfeedConfig(sessions=200, items=100))
    agent = mbcal.MBCAL(hidden=8, embedding=8, epochs=1, device="cpu").fit(store)
    assert agent.config.net.features == store.agent_features
    assert agent.origins == (store.manifest["content_hash"],)
    simulator = mbcal.Simulator(hidden=8, embedding=8, epochs=1, device="cpu").fit(store)
    assert set(simulator.fitted_users) == set(np.unique(store.sessions("simulator").user))
    assert mbcal.evaluate(agent, simulator, store.sessions("test")).reward.mean > 0
    assert repr(store).startswith("<Store ")
    with pytest.raises(InputError, match="fit: takes a store or sessions, got str"):
        mbcal.MBCAL(device="cpu").fit("feed")  # type: ignore[arg-type]


def test_an_agent_of_another_store_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Users are split by store: an agent of another one may have learned from the users it would be tested on."""
    first, second = (
        mbcal.prepare_newsfeed(
            tmp_path / str(seed), mbcal.NewsfeedConfig(sessions=200, items=100), mbcal.SessionConfig(seed=seed)
        )
        for seed in (0, 1)
    )
    agent = mbcal.GRU4Rec(hidden=8, embedding=8, epochs=1, features=(), device="cpu").fit(first)
    test = second.sessions("test")
    same_items = mbcal.Sessions(agent.domain.catalog, test.behaviour_set, **dict(test.arrays()), origin=test.origin)
    world = mbcal.Newsfeed.from_options(dict(second.manifest["options"]))
    with pytest.raises(ModelError, match="the gru4rec agent was fitted on another store"):
        mbcal.evaluate(agent, world, same_items)
    reloaded = mbcal.load(agent.save(tmp_path / "model"), "cpu")
    with pytest.raises(ModelError, match="the gru4rec agent was fitted on another store"):
        mbcal.evaluate(reloaded, world, same_items)
