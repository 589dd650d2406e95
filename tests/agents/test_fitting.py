"""What a fit does whatever the method: sizes by data, shrunk weights, a word about small logs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mbcal import DQN, MCPE, GRU4Rec, NetConfig, Popular, TrainingConfig
from mbcal.agents.fitting import FEW_STEPS
from mbcal.errors import OptionError
from mbcal.training.labels import discounted_returns
from mbcal.training.random import seeded_weights
from mbcal.training.replay import round_shrink
from tests.support import batches

SMALL = {"hidden": 8, "embedding": 4, "epochs": 1, "device": "cpu"}


def test_the_hidden_state_is_wider_for_two_million_steps() -> None:
    assert NetConfig().sized(1_999_999).hidden == 64
    assert NetConfig().sized(2_000_000).hidden == 128
    assert NetConfig(hidden=16).sized(2_000_000).hidden == 16
    agent = GRU4Rec(embedding=4, epochs=1, device="cpu").fit(batches.sessions(count=8))
    assert agent.config.net.hidden == agent.nets["behaviour"].cell.hidden_size == 64


def test_shrunk_weights_are_half_old_and_half_fresh() -> None:
    log = batches.sessions(count=8)
    agent = GRU4Rec(**SMALL).fit(log)
    old = {name: value.clone() for name, value in agent.nets["behaviour"].named_parameters()}
    with seeded_weights(agent.config.seed, agent.name, "weights", 1):
        fresh = dict(agent.build_networks(agent.domain)["behaviour"].named_parameters())
    still = replace(agent.config.training, shrink=0.5, learning_rate=1e-12)
    agent.fit(log, training=still)
    for name, value in agent.nets["behaviour"].named_parameters():
        if not name.startswith("items."):  # rows of unseen items are filled with the mean of the others
            torch.testing.assert_close(value.detach(), 0.5 * (old[name] + fresh[name]).detach())


def test_shrunk_value_networks_get_a_new_scale_of_labels() -> None:
    log = batches.sessions(count=32)
    agent = MCPE(**SMALL).fit(replace(log, behaviours=np.zeros_like(log.behaviours)))  # nothing is earned: labels are 0
    scaler = agent.nets["value"].label_scaler
    first = float(scaler.scale)
    agent.fit(log)
    assert float(scaler.scale) == first
    agent.fit(log, training=replace(agent.config.training, shrink=0.5))
    returns = discounted_returns(log.tensors().rewards, log.tensors().mask, agent.config.gamma)
    assert float(scaler.scale) > first
    assert float(scaler.shift[0]) == pytest.approx(float(returns[:, 0].mean()), rel=1e-4)


def test_a_warm_start_goes_on_from_the_old_weights() -> None:
    log = batches.sessions(count=8)
    agent = GRU4Rec(**SMALL).fit(log)
    old = agent.nets["behaviour"].head[0].weight.clone()
    agent.fit(log, training=replace(agent.config.training, learning_rate=1e-12))
    torch.testing.assert_close(agent.nets["behaviour"].head[0].weight, old)
    with pytest.raises(OptionError, match="shrink: must be above 0 and at most 1, got 0"):
        TrainingConfig(shrink=0)


def test_rounds_are_shrunk_where_all_of_them_are_replayed() -> None:
    assert [round_shrink(replayed, 4, None) for replayed in (4, 3, 1)] == [0.5, 1.0, 1.0]
    assert round_shrink(4, 4, 0.8) == 0.8


def test_networks_that_cannot_stop_make_ten_passes_or_a_thousand_updates() -> None:
    config = TrainingConfig(epochs=40, batch=10)
    assert config.epochs_without_stopping(sessions=5_000, steps=1e5) == 10
    assert config.epochs_without_stopping(sessions=500, steps=1e4) == 20
    assert config.epochs_without_stopping(sessions=10, steps=200) == 40
    assert replace(config, validation=0).epochs_without_stopping(sessions=5_000, steps=1e5) == 40


def test_dqn_makes_ten_passes_though_more_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mbcal.training.config.UPDATES_WITHOUT_STOPPING", 50)  # as many as ten passes make here, or fewer
    settings = {**SMALL, "epochs": 12, "batch": 8}
    log = batches.sessions(count=80)
    assert len(DQN(**settings).fit(log).records["value"].curve) == 10
    assert len(DQN(**settings, validation=0).fit(log).records["value"].curve) == 12


def test_a_log_that_is_too_small_is_named_with_what_would_be_enough() -> None:
    log = batches.sessions(count=8)
    assert int(log.mask.sum()) < FEW_STEPS
    warnings = GRU4Rec(**SMALL).fit(log).warnings
    assert "too small to learn from" in warnings[0]
    assert "30,000 steps" in warnings[0]
    assert Popular(device="cpu").fit(log).warnings == ()
