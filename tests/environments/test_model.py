"""Networks as users: they answer as often as they say, and never move."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from mbcal.environments.model import ModelEnvironment
from mbcal.nn.base import SessionNet
from mbcal.nn.config import NetConfig
from mbcal.nn.transformer import TransformerNet
from tests.support.batches import CATALOG, LABELS, net, sessions

FAMILIES = ["gru", "lstm", "transformer"]


def network(family: str, seed: int = 0) -> SessionNet:
    config: dict[str, Any] = {"features": ("kind", "tags")}
    if family != "transformer":
        return net(seed=seed, cell=family, **config)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = TransformerNet(CATALOG, LABELS, NetConfig("transformer", hidden=8, embedding=5, **config), 3)
        for parameter in made.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.6)
    return made


families = pytest.mark.parametrize("family", FAMILIES)


@families
@torch.no_grad()
def test_step_by_step_equals_all_at_once(family: str) -> None:
    model, batch = network(family), sessions(count=20).tensors()
    whole, state, previous = model.forward_batch(batch), model.begin(*batch.history), model.previous(batch.behaviours)
    for step in range(batch.items.shape[1]):
        outputs, state = model.forward_step(state, batch.items[:, step], previous[:, step])
        assert torch.allclose(outputs, whole[:, step], atol=1e-5)


@families
@torch.no_grad()
def test_nothing_before_a_step_depends_on_it_or_what_follows(family: str) -> None:
    known = sessions(count=20, seed=1).tensors()
    other = sessions(count=20, seed=2).tensors()
    model = network(family)
    before = model.forward_batch(known)
    for step in range(known.items.shape[1]):
        items, labels = known.items.clone(), known.behaviours.clone()
        items[:, step:], labels[:, step:] = other.items[:, step:], other.behaviours[:, step:]
        state = model.begin(*known.history)
        after = model(state, items, labels)
        assert torch.equal(before[:, :step], after[:, :step]) or torch.allclose(before[:, :step], after[:, :step], atol=1e-6)
        if step:
            masked = known.items.clone()
            masked[:, step] = 0
            alone = model(state, masked, known.behaviours)
            assert torch.allclose(before[:, :step], alone[:, :step], atol=1e-6)
            assert not torch.allclose(before[:, step], alone[:, step], atol=1e-3)


@families
@torch.no_grad()
def test_the_padding_of_a_history_is_not_read(family: str) -> None:
    known = sessions(count=20).tensors()
    model = network(family)
    wide = torch.nn.functional.pad
    padded = dataclasses.replace(
        known,
        history_items=wide(known.history_items, (0, 3)),
        history_behaviours=wide(known.history_behaviours, (0, 3)),
    )
    assert torch.allclose(model.forward_batch(known), model.forward_batch(padded), atol=1e-5)


@families
@torch.no_grad()
def test_histories_matter(family: str) -> None:
    known, other = sessions(count=20, seed=1).tensors(), sessions(count=20, seed=2).tensors()
    model = network(family)
    assert not torch.allclose(
        model(model.begin(*known.history), known.items, known.behaviours),
        model(model.begin(*other.history), known.items, known.behaviours),
        atol=1e-2,
    )


@families
@torch.no_grad()
def test_merged_states_go_on_as_if_alone(family: str) -> None:
    """Half the sessions start anew while the others are three steps in, and both answer as they would by themselves."""
    model, known = network(family), sessions(count=10, seed=1).tensors()
    fresh, previous = model.begin(*known.history), model.previous(known.behaviours)
    late = fresh
    for step in range(3):
        _, late = model.forward_step(late, known.items[:, step], previous[:, step])
    mask = torch.arange(10) % 2 == 0
    mixed = model.merge(mask, fresh, late)
    for step in range(3):
        begun, fresh = model.forward_step(fresh, known.items[:, step], previous[:, step])
        going, late = model.forward_step(late, known.items[:, 3 + step], previous[:, 3 + step])
        shown = torch.where(mask, known.items[:, step], known.items[:, 3 + step])
        before = torch.where(mask, previous[:, step], previous[:, 3 + step])
        both, mixed = model.forward_step(mixed, shown, before)
        assert torch.allclose(both, torch.where(mask.unsqueeze(1), begun, going), atol=1e-5)


@torch.no_grad()
def test_a_transformers_state_stays_bounded() -> None:
    model, known = network("transformer"), sessions(count=4, seed=1).tensors()
    fresh = state = model.begin(*known.history)
    for step in range(40):
        _, state = model.forward_step(state, known.items[:, step % 6], known.behaviours[:, step % 6])
        state = model.merge(torch.arange(4) == step % 4, fresh, state)  # one session after another starts anew
    assert state[1].shape[1] <= 4 + 4


@families
def test_answers_come_as_often_as_they_are_likely(family: str) -> None:
    one = sessions(count=3, seed=4)
    environment = ModelEnvironment(network(family), CATALOG, LABELS)
    known = one[np.repeat(np.arange(3), 30_000)].tensors()
    state = environment.begin(*known.history)
    item = known.items[:, 0]
    behaviour, _ = environment.respond(state, item, torch.rand(len(item), generator=torch.Generator().manual_seed(0)))
    first = torch.arange(3) * 30_000
    chances = environment.probabilities(state[first], item[first].unsqueeze(1)).squeeze(1)
    for row in range(3):
        counts = torch.bincount(behaviour[row * 30_000 : (row + 1) * 30_000].int(), minlength=3).double().numpy()
        said = chances[row].double().numpy()
        assert stats.chisquare(counts, said / said.sum() * counts.sum()).pvalue > 1e-4


@families
def test_probabilities_and_rewards_are_those_of_the_network(family: str) -> None:
    model = network(family)
    environment, batch = ModelEnvironment(model, CATALOG, LABELS), sessions(count=6).tensors()
    state = environment.begin(*batch.history)
    candidates = batch.items[:, :3].clamp(min=1)
    chances = environment.probabilities(state, candidates)
    for place in range(3):
        with torch.no_grad():
            logits, _ = model.forward_step(state.hidden, candidates[:, place], state.previous)
        assert torch.allclose(chances[:, place], torch.softmax(logits, -1), atol=1e-6)
    assert torch.allclose(environment.expected_reward(state, candidates), chances @ torch.tensor(LABELS.rewards))


def test_the_network_is_a_copy_that_learns_no_more() -> None:
    model = network("lstm")
    environment, batch = ModelEnvironment(model, CATALOG, LABELS), sessions(count=6).tensors()
    state, uniform = environment.begin(*batch.history), torch.rand(6, generator=torch.Generator().manual_seed(0))
    before = environment.probabilities(state, batch.items[:, :1].clamp(min=1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    assert torch.equal(before, environment.probabilities(state, batch.items[:, :1].clamp(min=1)))
    behaviour, after = environment.respond(state, batch.items[:, 0], uniform)
    assert not after.hidden[0].requires_grad
    assert behaviour.dtype == torch.uint8


def test_reprs_are_short() -> None:
    environment = ModelEnvironment(net(), CATALOG, LABELS)
    assert repr(environment) == "<ModelEnvironment: RecurrentNet, 12 items, 3 behaviours, on cpu>"
    assert repr(environment.begin(*sessions(count=5).tensors().history)) == "<ModelState: 5 sessions>"
