"""MBCAL itself: which labels, how much masking, and what a warm start keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mbcal import MBCAL, AgentConfig, GRU4Rec, MBCALConfig, NetConfig, TrainingConfig, load
from mbcal.agents import MBCALPlan, MBCALWithoutVarianceReduction
from mbcal.agents.domain import Domain
from mbcal.environments.rollout import rollout
from mbcal.errors import OptionError, TrainingError
from mbcal.evaluation.evaluator import evaluate
from mbcal.nn.base import expected_reward
from mbcal.training.holdout import split_held_out_users
from mbcal.training.labels import counterfactual_future_advantage, simulated_future_reward
from mbcal.types import MASK_ROW, UNKNOWN_ROW, SessionTensors
from tests.support.batches import CATALOG, LABELS, REWARDS, sessions
from tests.support.toys import DelayedPrize, logged, starts

QUICK = TrainingConfig(epochs=2, batch=64, validation=0.2)
SMALL = NetConfig(hidden=8, embedding=8)


def config(**more: Any) -> MBCALConfig:
    return MBCALConfig(**{"net": SMALL, "training": QUICK, "gamma": 0.95, **more})


def test_rewards_count_in_full_unless_a_discount_is_given() -> None:
    kinds = (MBCAL, MBCALWithoutVarianceReduction, MBCALPlan)
    assert [kind().config.gamma for kind in kinds] == [1.0, 1.0, 1.0]
    for wrong in (-0.1, 1.5):
        with pytest.raises(OptionError, match=r"gamma: must be in \[0, 1\]"):
            MBCALConfig(gamma=wrong)


@pytest.mark.parametrize("gamma", [0.5, 0.95])
def test_the_labels_are_those_of_the_equations(gamma: float) -> None:
    batch = sessions(count=30).tensors()
    for kind in (MBCAL, MBCALWithoutVarianceReduction):
        agent = kind(config(gamma=gamma), "cpu").fit(sessions(count=100, seed=2))
        environment = agent.nets["environment"]
        with torch.no_grad():
            if kind is MBCAL:
                wanted = counterfactual_future_advantage(environment, REWARDS, batch, gamma)
            else:
                wanted = simulated_future_reward(
                    expected_reward(environment.forward_batch(batch), REWARDS), batch.mask, gamma
                )
        assert torch.equal(agent.label(batch), wanted)
        found = agent.value_regression(batch)
        assert torch.equal(found[0], wanted)
        assert torch.allclose(found[1], agent.nets["advantage"].values(batch).detach())


def test_only_the_environment_model_is_fitted_on_masked_items(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[float]] = {"environment": [], "advantage": []}
    agent = MBCAL(config(mask_rate=0.3), "cpu")
    known = logged(400)
    agent.reset(Domain.from_sessions(known))
    for name, net in agent.nets.items():

        def spy(state, items, behaviours, *context, name=name, forward=net.forward):  # type: ignore[no-untyped-def]
            if torch.is_grad_enabled():
                seen[name].append(float((items == MASK_ROW).float().mean()))
            return forward(state, items, behaviours, *context)

        monkeypatch.setattr(net, "forward", spy)
    agent.fit(known)
    assert np.mean(seen["environment"]) == pytest.approx(0.3, abs=0.03)
    assert set(seen["advantage"]) == {0.0}


def test_a_warm_start_keeps_the_scale_of_its_labels() -> None:
    agent = MBCAL(config(), "cpu").fit(sessions(count=100, seed=2))
    before = [*agent.nets["advantage"].label_scaler.shift.tolist(), float(agent.nets["advantage"].label_scaler.scale)]
    agent.fit(sessions(count=100, seed=3))
    assert [
        *agent.nets["advantage"].label_scaler.shift.tolist(),
        float(agent.nets["advantage"].label_scaler.scale),
    ] == before


def test_a_fit_can_be_told_another_learning_rate() -> None:
    agent = GRU4Rec(AgentConfig(net=SMALL, training=QUICK), "cpu").fit(sessions(count=100, seed=2))
    before = {name: value.clone() for name, value in agent.nets["behaviour"].state_dict().items() if "cell" in name}
    agent.fit(sessions(count=100, seed=2), training=dataclasses.replace(QUICK, learning_rate=1e-30))
    after = agent.nets["behaviour"].state_dict()
    assert all(torch.allclose(before[name], after[name], atol=1e-12) for name in before)


def test_a_failed_fit_leaves_the_agent_as_it_was() -> None:
    known, state = sessions(count=100, seed=2), sessions(count=5).tensors()
    agent = GRU4Rec(AgentConfig(net=SMALL, training=QUICK), "cpu").fit(known)
    before = agent.nets["behaviour"].forward_batch(state).detach()
    with pytest.raises(TrainingError, match="loss became"):
        agent.fit(known, training=dataclasses.replace(QUICK, learning_rate=1e30))
    assert torch.equal(agent.nets["behaviour"].forward_batch(state).detach(), before)
    fresh = GRU4Rec(AgentConfig(net=SMALL, training=dataclasses.replace(QUICK, learning_rate=1e30)), "cpu")
    with pytest.raises(TrainingError):
        fresh.fit(known)
    assert torch.isfinite(fresh.fit(known, training=QUICK).nets["behaviour"].forward_batch(state)).all()


def test_who_is_held_out_once_is_held_out_again() -> None:
    known = sessions(count=200, seed=2)
    first = set(known.user[split_held_out_users(known.user, 0.1, seed=0)[1]].tolist())
    half = known[known.user % 2 == 0]
    again = set(half.user[split_held_out_users(half.user, 0.1, seed=0)[1]].tolist())
    assert len(first) == pytest.approx(20, abs=12)
    assert len(again & first) >= 6  # of 10: the same order of users, another number of them


def test_agents_do_not_learn_in_evaluation() -> None:
    agent = MBCAL(config(), "cpu").fit(logged(200))
    before = {f"{net}/{name}": v.clone() for net, one in agent.nets.items() for name, v in one.state_dict().items()}
    evaluate(agent, DelayedPrize(), starts(50))
    rollout(agent, agent.environment(), starts(50))  # nor do their environment models when asked for imagined sessions
    after = {f"{net}/{name}": v for net, one in agent.nets.items() for name, v in one.state_dict().items()}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_item_no_session_has_shown_is_the_average_item() -> None:
    known = sessions(count=300, seed=2)
    kept = ~((known.items == 7).any(1) | (known.history_items == 7).any(1) | (known.items == UNKNOWN_ROW).any(1))
    kept &= ~(known.history_items == UNKNOWN_ROW).any(1)
    agent = GRU4Rec(AgentConfig(net=SMALL, training=QUICK), "cpu").fit(known[kept])
    ranked = {entry.item: entry for entry in agent.rank([], ["item 5", "item 4", "never heard of"])}
    assert (ranked["item 5"].known, ranked["item 4"].known, ranked["never heard of"].known) == (False, True, False)
    assert ranked["item 5"].score == ranked["never heard of"].score  # row 7 is item 5
    items = agent.nets["behaviour"].items
    seen = [row for row in range(2, CATALOG.n_rows) if row != 7]
    assert torch.allclose(items.id.weight[UNKNOWN_ROW], items.id.weight[seen].mean(0), atol=1e-6)
    agent.fit(known)
    assert agent.rank([], ["item 5"])[0].known


def test_strangers_have_a_row_that_was_learned() -> None:
    known = sessions(count=400, seed=2)
    by_id = AgentConfig(net=dataclasses.replace(SMALL, user="id"), training=QUICK)
    agent = GRU4Rec(by_id, "cpu")
    agent.reset(Domain.from_sessions(known))
    before = agent.nets["behaviour"].user.weight.detach().clone()
    agent.fit(known)
    moved = (agent.nets["behaviour"].user.weight.detach() - before).abs().sum(1) > 0
    held = set(known.user[split_held_out_users(known.user, 0.2, 0)[1]].tolist())
    assert bool(moved[-1])
    assert not any(bool(moved[user]) for user in held)  # held-out users are served as unknown users


def test_agents_take_their_own_settings_alone() -> None:
    with pytest.raises(OptionError, match="takes a MBCALConfig, got AgentConfig"):
        MBCAL(AgentConfig())
    with pytest.raises(OptionError, match="agents rank by tables, which only a gru has; got 'lstm'"):
        MBCALConfig(net=NetConfig(cell="lstm"))
    assert LABELS.rewards == (0.0, 1.0, 5.0)


@torch.no_grad()
def test_what_the_state_alone_says_does_not_know_the_item() -> None:
    """Reference implementation: the session run with the step's own item masked, one step at a time."""
    agent, batch = MBCAL(config(mix=0.5), "cpu").fit(sessions(count=100, seed=2)), sessions(count=12).tensors()
    net = agent.nets["baseline"]
    fast = net.values(batch, mask_item=True)
    for step in range(batch.horizon):
        items = batch.items.clone()
        items[:, step] = MASK_ROW
        assert torch.allclose(fast[:, step], net.values(dataclasses.replace(batch, items=items))[:, step], atol=1e-5)


@torch.no_grad()
def test_the_family_of_labels_has_both_ends() -> None:
    known, batch = sessions(count=100, seed=2), sessions(count=30).tensors()
    for mix in (0.25, 1.0):
        agent = MBCAL(config(mix=mix), "cpu").fit(known)
        environment, usual = agent.nets["environment"], agent.nets["baseline"].values(batch, mask_item=True)
        advantage = counterfactual_future_advantage(environment, REWARDS, batch, 0.95)
        future = simulated_future_reward(expected_reward(environment.forward_batch(batch), REWARDS), batch.mask, 0.95)
        wanted = torch.where(batch.mask, advantage + mix * (future - advantage - usual), 0)
        label, predicted = agent.value_regression(batch)
        assert torch.allclose(label, wanted, atol=1e-5)
        if mix == 1:
            assert torch.allclose(label, torch.where(batch.mask, future - usual, 0), atol=1e-5)
        nets = agent.nets
        assert torch.allclose(predicted, nets["advantage"].values(batch) + mix * nets["residual"].values(batch), atol=1e-5)
    assert "residual" not in MBCAL(config(), "cpu").fit(known).nets


@pytest.mark.parametrize("mix", [0.0, 0.5, "auto"])
def test_the_advantage_of_a_session_is_computed_once_per_fit(mix: Any) -> None:
    """It is by far the most expensive label; all networks of a mix share it."""
    labelled: list[int] = []

    class Counting(MBCAL):
        def advantage(self, batch: SessionTensors) -> torch.Tensor:
            labelled.append(len(batch))
            return super().advantage(batch)

    agent = Counting(config(mix=mix), "cpu").fit(sessions(count=100, seed=2))
    assert sum(labelled) == 100
    labelled.clear()
    agent.value_regression(sessions(count=7).tensors())
    assert sum(labelled) == 7


def test_the_score_contains_the_residual_times_mix() -> None:
    agent, with_all = (MBCAL(config(mix=mix), "cpu").fit(sessions(count=100, seed=2)) for mix in (0.25, 1.0))
    batch = sessions(count=5).tensors()
    state, candidates = agent.begin(*batch.history), torch.arange(2, CATALOG.n_rows).expand(5, -1)
    parts = agent.fitted_scorer.score_parts(state, candidates)
    residual = with_all.fitted_scorer.score_parts(state, candidates)["residual"]
    assert set(parts) == {"instant", "future", "residual"}
    assert torch.allclose(parts["residual"], 0.25 * residual, atol=1e-5)
    assert torch.allclose(agent.score(state, candidates), sum(parts.values()), atol=1e-5)


def test_a_mix_is_chosen_where_the_advantage_fades(tmp_path: Path) -> None:
    """Sessions of a policy that nearly always shows a key first: behaviours give the item away and CFA sees nothing."""
    kept = {"counterfactual": "behaviours"}
    plain, auto = (MBCAL(toy_config(**kept, **more), "cpu").fit(logged(1200)) for more in ({}, {"mix": "auto"}))
    served = rollout(plain, DelayedPrize(), starts(1200), epsilon=0.1, seed=3)
    plain.fit(served)
    auto.fit(served)
    test = starts(200, seed=5)
    assert float(auto.nets["mix"].value) > 0
    assert evaluate(auto, DelayedPrize(), test).reward.mean > evaluate(plain, DelayedPrize(), test).reward.mean + 3
    auto.save(tmp_path / "model")
    again = load(tmp_path / "model", "cpu")
    assert float(again.nets["mix"].value) == float(auto.nets["mix"].value)
    assert np.array_equal(rollout(again, DelayedPrize(), test).items, rollout(auto, DelayedPrize(), test).items)


def toy_config(**more: Any) -> MBCALConfig:
    how = TrainingConfig(epochs=15, batch=64, learning_rate=3e-3, validation=0.0)
    return MBCALConfig(net=NetConfig(hidden=8, embedding=8), training=how, gamma=0.95, **more)


@pytest.mark.parametrize("mix", [-0.1, 1.5, "sometimes"])
def test_mixes_that_mean_nothing_are_refused(mix: Any) -> None:
    with pytest.raises(OptionError, match=r"mix: must be in \[0, 1\], or auto"):
        config(mix=mix)
