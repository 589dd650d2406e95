from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mbcal.errors import OptionError
from mbcal.nn.base import expected_reward
from mbcal.nn.config import NetConfig
from mbcal.nn.recurrent import RecurrentNet
from mbcal.types import MASK_ROW
from tests.support.batches import CATALOG, LABELS, REWARDS, net, sessions

CONFIGS = [
    {"cell": cell, "user": user, "features": features}
    for cell in ("gru", "lstm")
    for user in ("history", "id", "none")
    for features in ((), ("kind", "tags"))
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@torch.no_grad()
def test_steps_equal_the_fused_sequence(config: dict[str, object]) -> None:
    model, batch = net(**config), sessions().tensors()
    outputs = model.forward_batch(batch)
    state = model.begin(batch.user, batch.history_items, batch.history_behaviours, batch.history_length)
    previous = model.previous(batch.behaviours)
    for step in range(batch.items.shape[1]):
        state = model.cell_step(model.gates(batch.items[:, step], previous[:, step]), state)
        assert torch.allclose(model.head(state[0]), outputs[:, step], atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@torch.no_grad()
def test_the_future_never_changes_the_past(config: dict[str, object]) -> None:
    model, batch = net(**config), sessions(count=5).tensors()
    outputs = model.forward_batch(batch)
    for step in range(batch.items.shape[1]):
        items, behaviours = batch.items.clone(), batch.behaviours.clone()
        items[:, step] = 7
        behaviours[:, step] = 2
        changed = model.forward_batch(dataclasses.replace(batch, items=items, behaviours=batch.behaviours))
        assert torch.equal(changed[:, :step], outputs[:, :step])
        assert not torch.equal(changed[:, step], outputs[:, step])
        reacted = model.forward_batch(dataclasses.replace(batch, behaviours=behaviours))
        assert torch.equal(reacted[:, : step + 1], outputs[:, : step + 1])  # b_t is an input from step t + 1 on


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@torch.no_grad()
def test_a_batch_equals_sessions_one_by_one_without_padding(config: dict[str, object]) -> None:
    model, known = net(**config), sessions()
    whole = model.forward_batch(known.tensors())
    for n in range(len(known)):
        alone = known[n : n + 1].tensors()
        length, past = int(alone.length), int(alone.history_length)
        short = dataclasses.replace(
            alone,
            items=alone.items[:, :length],
            behaviours=alone.behaviours[:, :length],
            history_items=alone.history_items[:, :past],
            history_behaviours=alone.history_behaviours[:, :past],
        )
        assert torch.allclose(model.forward_batch(short)[0], whole[n, :length], atol=1e-5)


@torch.no_grad()
def test_features_are_embedded_side_by_side_and_averaged() -> None:
    model = net(features=("kind", "tags"))
    embedded = model.items(torch.arange(CATALOG.n_rows))
    assert embedded.shape == (14, 15)
    kind, tags = CATALOG.features["kind"], CATALOG.features["tags"]
    for row in range(CATALOG.n_rows):
        assert torch.equal(embedded[row, :5], model.items.id.weight[row])
        assert torch.allclose(embedded[row, 5:10], model.items.features[0].embedding.weight[kind.codes[row]])
        assert tags.offsets is not None
        codes = tags.codes[tags.offsets[row] : tags.offsets[row + 1]]
        mean = model.items.features[1].embedding.weight[codes].mean(0) if len(codes) else torch.zeros(5)
        assert torch.allclose(embedded[row, 10:], mean, atol=1e-6)


@torch.no_grad()
def test_users_without_history_begin_at_zero_and_others_do_not() -> None:
    model = net()
    known = sessions(count=40)
    begin = model.begin(
        *(
            torch.from_numpy(array)
            for array in (known.user, known.history_items, known.history_behaviours, known.history_length)
        )
    )[0]
    fresh = known.history_length == 0
    assert fresh.any()
    assert bool((begin[fresh] == 0).all())
    assert bool((begin[~fresh].abs().sum(1) > 0).all())


@torch.no_grad()
def test_users_and_items_not_seen_have_finite_outputs() -> None:
    for user in ("history", "id", "none"):
        model, batch = net(user=user), sessions(count=3).tensors()
        unseen = dataclasses.replace(batch, user=torch.full_like(batch.user, 10**6), items=batch.items.clamp(max=1))
        assert bool(torch.isfinite(model.forward_batch(unseen)).all())


@torch.no_grad()
def test_a_session_starts_with_the_start_symbol() -> None:
    model = net()
    assert model.previous(torch.tensor([[1, 2, 0], [0, 1, 2]])).tolist() == [[3, 1, 2], [3, 0, 1]]
    batch = sessions().tensors()
    before = model.forward_batch(batch)
    model.behaviours.weight[3] += 1.0  # b_s
    assert bool((model.forward_batch(batch)[:, 0] != before[:, 0]).any(1).all())


def test_expected_reward_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [1.0, 1e-9, 1e-9]]))
    assert expected_reward(logits, REWARDS).tolist() == pytest.approx([0.25 + 1.25, 0.0], abs=1e-6)


def test_masking_item_has_a_row_of_its_own_that_learns() -> None:
    model, batch = net(), sessions().tensors()
    masked = dataclasses.replace(batch, items=torch.full_like(batch.items, MASK_ROW))
    model.forward_batch(masked).sum().backward()
    gradient = model.items.id.weight.grad
    assert gradient is not None
    assert float(gradient[MASK_ROW].abs().sum()) > 0


def test_wrong_networks_are_refused() -> None:
    with pytest.raises(OptionError, match="Did you mean 'gru'"):
        NetConfig(cell="gruu")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="hidden: must be at least 1"):
        NetConfig(hidden=0)
    with pytest.raises(OptionError, match=r"no 'kinds'; the catalogue has kind, tags\. Did you mean 'kind'"):
        RecurrentNet(CATALOG, LABELS, NetConfig(features=("kinds",)), 1)
    with pytest.raises(OptionError, match="how many users"):
        RecurrentNet(CATALOG, LABELS, NetConfig(user="id"), 1)


def test_the_catalogue_is_not_in_the_state_dict() -> None:
    assert not [name for name in net(features=("tags",)).state_dict() if "codes" in name or name.endswith("weights")]
    assert np.asarray(REWARDS).tolist() == [0, 1, 5]
