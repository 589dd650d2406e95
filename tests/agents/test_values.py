"""DQN, DDQN, DDPG, MCPE, Dyna-Q and LinUCB against hand-worked arrays and reference implementations."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mbcal import Behaviours, NetConfig, Sessions, TrainingConfig
from mbcal.agents import DDPG, DDQN, DQN, MCPE, DynaQ, GRU4Rec, GRU4RecEpsilon, LinUCB
from mbcal.agents.dqn import DQNConfig, candidate_values
from mbcal.agents.linucb import LinUCBConfig, item_vectors
from mbcal.agents.values import TargetCopy, ValueConfig, largest_loss, renewal_interval, value_term
from mbcal.environments.candidates import available_candidates, sample_candidates
from mbcal.errors import OptionError, TrainingError
from mbcal.nn.label_scaler import LabelScaler
from mbcal.training.labels import temporal_difference_targets
from mbcal.training.loop import train
from mbcal.types import MASK_ROW
from tests.support.batches import CATALOG, LABELS, sessions
from tests.support.toys import logged

QUICK = TrainingConfig(epochs=2, batch=32, validation=0.0)
SMALL = NetConfig(hidden=8, embedding=8)


def offered(count: int = 20, seed: int = 0) -> Sessions:
    known = sessions(count=count, horizon=5, seed=seed)
    return dataclasses.replace(known, candidates=sample_candidates(known, seed))


def fitted(kind: Any) -> Any:
    return kind(DQNConfig(net=SMALL, training=QUICK, gamma=0.9), "cpu").fit(offered(120, seed=3))


def bounded(value: float, known: Sessions, step: int) -> float:
    """A value clamped to what can be earned from a step on, with gamma 0.9."""
    steps_left = sum(0.9**k for k in range(known.horizon - step))
    rewards = known.behaviour_set.rewards
    return min(max(value, min(0.0, *rewards) * steps_left), max(0.0, *rewards) * steps_left)


def test_targets_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 99.0]])
    values = torch.tensor([[7.0, 10.0, 20.0], [7.0, 30.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    targets = temporal_difference_targets(rewards, values, mask, 0.5)
    assert targets.tolist() == [[1 + 0.5 * 10, 2 + 0.5 * 20, 3], [4 + 0.5 * 30, 5, 0]]


def test_returns_are_the_labels_of_mcpe() -> None:
    known = sessions(count=20)
    agent = MCPE(ValueConfig(net=SMALL, training=QUICK, gamma=0.9), "cpu").fit(known)
    label = agent.label(known.tensors())
    for row in range(20):
        length = int(known.length[row])
        for step in range(known.horizon):
            rest = known.rewards[row, step:length]
            assert float(label[row, step]) == pytest.approx(sum(0.9**k * r for k, r in enumerate(rest)), abs=1e-4)


def test_what_is_available_candidates_by_brute_force() -> None:
    known = offered()
    available = available_candidates(known.tensors())
    for row in range(len(known)):
        for step in range(known.horizon):
            gone = set(known.items[row, : min(step, known.length[row])].tolist())
            for place, item in enumerate(known.candidates[row]):  # type: ignore[index]
                assert bool(available[row, step, place]) == (item != MASK_ROW and item not in gone)


@torch.no_grad()
def test_values_of_candidates_equal_one_pass_each() -> None:
    agent, batch = fitted(DQN), offered(8).tensors()
    net = agent.nets["value"].online
    fast = candidate_values(net, value_term(net), batch)
    assert batch.candidates is not None
    for step in range(batch.items.shape[1]):
        for place in range(batch.candidates.shape[1]):
            items = batch.items.clone()
            items[:, step] = batch.candidates[:, place]
            slow = net.values(dataclasses.replace(batch, items=items))[:, step]
            assert torch.allclose(fast[:, step, place], slow, atol=1e-4)


@pytest.mark.parametrize("kind", [DQN, DDQN])
@torch.no_grad()
def test_targets_bootstrap_over_the_remaining_candidates(kind: Any) -> None:
    """Written out: for each step the best candidate not yet shown at the next, by Q' (DQN) or chosen by Q (DDQN)."""
    agent, known = fitted(kind), offered(10)
    batch = known.tensors()
    net = agent.nets["value"]
    for parameter in net.target.parameters():  # far enough apart that choosing by one or the other differs
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    net.set_extra_state(net.get_extra_state())  # as after loading: what was derived from the old weights is dropped
    label = agent.label(batch)
    slow = candidate_values(net.target, value_term(net.target), batch)
    chooses = candidate_values(net.online, value_term(net.online), batch) if kind is DDQN else slow
    available = available_candidates(batch)
    for row in range(len(known)):
        for step in range(int(known.length[row])):
            target = float(known.rewards[row, step])
            if step + 1 < known.length[row]:
                left = [place for place in range(slow.shape[2]) if available[row, step + 1, place]]
                if left:
                    best = max(left, key=lambda place: float(chooses[row, step + 1, place]))
                    target += 0.9 * bounded(float(slow[row, step + 1, best]), known, step + 1)
            assert float(label[row, step]) == pytest.approx(target, abs=1e-3)


def test_double_dqn_differs_in_the_target_alone() -> None:
    batch = offered(30).tensors()
    plain, double = fitted(DQN), DDQN(DQNConfig(net=SMALL, training=QUICK, gamma=0.9), "cpu").fit(offered(120, seed=3))
    plain_net, double_net = plain.nets["value"], double.nets["value"]
    double_net.load_state_dict(plain_net.state_dict())
    with torch.no_grad():
        for parameter in double_net.target.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    plain_net.load_state_dict(double_net.state_dict())
    assert bool((double.label(batch) <= plain.label(batch) + 1e-5).all())  # the maximum is never below another choice
    assert not torch.allclose(double.label(batch), plain.label(batch))


def test_renewals_of_the_target_network_fit_the_number_of_updates() -> None:
    assert renewal_interval(8_000) == 200  # 40 renewals
    assert renewal_interval(1_000) == 25
    assert renewal_interval(100) == 20  # never less
    for every, interval in ((None, 100), (20, 20)):
        net = TargetCopy(nn.Linear(1, 1), nn.Linear(1, 1), every)
        renewed = []
        for update in range(250):
            with torch.no_grad():
                net.online.weight.fill_(update)
            net.begin_update(planned_updates=4_000)
            renewed.append(int(net.target.weight))
        assert renewed == [update // interval * interval for update in range(250)]


def test_the_largest_loss_is_that_of_an_error_as_wide_as_the_bounds() -> None:
    scaler = LabelScaler(3)
    scaler.scale.fill_(0.5)
    clicks = Behaviours(("skip", "click"), (0.0, 1.0))
    assert largest_loss(clicks, 3, 0.5, scaler) == 2 * 3.5 - 1  # the bounds are 1.75 apart: 3.5 standard deviations


def test_the_target_network_is_copied_as_the_config_says() -> None:
    agent = DQN(DQNConfig(net=SMALL, training=QUICK, copy_every=20), "cpu").fit(offered(120, seed=3))
    net = agent.nets["value"]
    assert net.updates == 2 * -(-120 // 32)
    weight = net.target.head[2].weight.clone()
    while net.updates % 20:
        net.begin_update(8)
    assert torch.equal(net.target.head[2].weight, weight)
    with torch.no_grad():
        net.online.head[2].weight.add_(1)
    net.begin_update(8)
    assert torch.equal(net.target.head[2].weight, net.online.head[2].weight)
    with pytest.raises(OptionError, match="copy_every: must be at least 1, got 0"):
        DQNConfig(copy_every=0)


@pytest.mark.parametrize("kind", [DQN, DDPG])
def test_a_value_network_that_diverges_at_once_leaves_the_agent_as_it_was(kind: Any) -> None:
    agent = kind(kind.Config(net=SMALL, training=QUICK), "cpu").fit(offered(120, seed=3))
    before = {name: value.clone() for name, value in agent.nets["value"].state_dict().items()}
    wild = TrainingConfig(epochs=3, batch=8, learning_rate=50.0, warmup=0, validation=0.0)
    with pytest.raises(TrainingError, match=r"value: diverged in epoch 1"):
        agent.fit(offered(120, seed=3), training=wild)
    assert all(torch.equal(value, before[name]) for name, value in agent.nets["value"].state_dict().items())


def test_dyna_q_learns_from_as_many_imagined_as_real_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: dict[str, int] = {}

    def spy(job: Any, config: Any, **others: Any) -> Any:
        taught[job.name] = len(job.train_rows)
        return train(job, config, **others)

    monkeypatch.setattr("mbcal.agents.fit_context.train", spy)
    fitted(DynaQ)
    assert taught == {"environment": 120, "value": 240}


def test_ddpg_shows_the_candidate_nearest_to_its_point() -> None:
    agent = DDPG(DDPG.Config(net=SMALL, training=QUICK), "cpu").fit(sessions(count=100, seed=2))
    batch = sessions(count=10).tensors()
    pair = agent.nets["value"].online
    state = agent.begin(*batch.history)
    candidates = torch.arange(2, CATALOG.n_rows).expand(10, -1)
    scores = agent.score(state, candidates)
    with torch.no_grad():
        point = pair.actions(batch)[:, 0]  # at the first step nothing has been shown
        far = (pair.points(candidates) - point.unsqueeze(1)).square().sum(-1)
    assert torch.allclose(scores, -far, atol=1e-5)
    assert torch.equal(scores.argmax(1), far.argmin(1))
    groups = agent.optimisers["value"].param_groups
    assert [group["lr"] / groups[0]["lr"] for group in groups] == pytest.approx([1, 0.1])  # critic, actor


@torch.no_grad()
def test_ddpgs_targets_judge_the_next_point_of_the_slower_actor() -> None:
    known = sessions(count=10)
    agent = DDPG(DDPG.Config(net=SMALL, training=QUICK, gamma=0.9), "cpu").fit(sessions(count=100, seed=2))
    net, batch = agent.nets["value"], known.tensors()
    for parameter in net.target.parameters():
        parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    label = agent.label(batch)
    points = net.target.actions(batch)
    for row in range(len(known)):
        length = int(known.length[row])
        one = known[row : row + 1].tensors()
        for step in range(length):
            target = float(known.rewards[row, step])
            if step + 1 < length:  # a session whose next item is the point itself, run from its start
                inside = torch.cat([net.target.behaviours(net.target.actor.previous(one.behaviours).int()),
                                    net.target.points(one.items)], -1)  # fmt: skip
                inside[0, step + 1, -4:] = points[row, step + 1]
                hidden = net.target.cell(inside[:, : step + 2], net.target.encode_history(one).unsqueeze(0))[0][:, -1]
                value = float(net.target.head(hidden) * net.label_scaler.scale + net.label_scaler.shift[step + 1])
                target += 0.9 * bounded(value, known, step + 1)
            assert float(label[row, step]) == pytest.approx(target, abs=1e-3)


def test_ddpgs_actor_does_not_move_its_critic() -> None:
    agent = DDPG(DDPG.Config(net=SMALL, training=QUICK), "cpu").fit(sessions(count=100, seed=2))
    net, batch = agent.nets["value"], sessions(count=10).tensors()
    still = {name: parameter.detach() for name, parameter in net.online.named_parameters()}
    still |= {name: parameter for name, parameter in net.online.named_parameters() if name.startswith("actor.")}
    net.zero_grad()
    torch.func.functional_call(net.online, still, (batch,)).sum().backward()
    moved = {name for name, parameter in net.online.named_parameters() if parameter.grad is not None}
    assert moved
    assert all(name.startswith("actor.") for name in moved)


def test_linucb_is_ridge_regression_with_a_bonus() -> None:
    known = logged(200)
    agent = LinUCB(LinUCBConfig(net=SMALL, training=QUICK, alpha=0.7, size=16), "cpu").fit(known)
    vectors, rewards = item_vectors(known.catalog, (), 16), np.asarray(known.behaviour_set.rewards)
    inputs, targets = [], []
    for row in range(len(known)):
        past: list[float] = []
        for step in range(known.horizon):
            context = [1.0, float(np.mean(past)) if past else 0.0, past[-1] if past else 0.0]
            inputs.append([*vectors[known.items[row, step]], *context])
            past.append(float(rewards[known.behaviours[row, step]]))
            targets.append(past[-1])
    x, y = np.asarray(inputs), np.asarray(targets)
    inverse = np.linalg.inv(np.eye(19) + x.T @ x)
    batch = known[:3].tensors()
    state = agent.begin(*batch.history)
    candidates = torch.arange(2, known.catalog.n_rows).expand(3, -1)
    asked = np.concatenate([vectors[2:], np.tile([1.0, 0.0, 0.0], (len(vectors) - 2, 1))], 1)
    wanted = asked @ inverse @ x.T @ y + 0.7 * np.sqrt(((asked @ inverse) * asked).sum(1))
    assert np.allclose(agent.score(state, candidates)[0].numpy(), wanted, atol=1e-4)


def test_who_explores_when_collecting() -> None:
    assert not GRU4Rec.explores
    assert GRU4RecEpsilon.explores
    assert DQN.explores
    assert LABELS.names[0] == "skip"
