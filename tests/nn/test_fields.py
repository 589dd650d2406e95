"""User features and context in networks: whole sequences, single steps, tables, labels and what missing values mean."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mbcal.environments.model import ModelEnvironment
from mbcal.nn.base import SessionNet, expected_reward
from mbcal.nn.config import NetConfig
from mbcal.nn.fields import centre_fields
from mbcal.nn.recurrent import RecurrentNet
from mbcal.nn.transformer import TransformerNet
from mbcal.scoring.backend import to_numpy
from mbcal.scoring.fields import FieldReader
from mbcal.scoring.scorers import NetScorer, ScoreTerm
from mbcal.training.labels import counterfactual_future_advantage, simulated_future_reward
from mbcal.types import MASK_ROW, SessionTensors
from tests.support.batches import CATALOG, LABELS, REWARDS
from tests.support.fields import FIELDS, with_fields

CELLS = ("gru", "lstm", "transformer")


def build(cell: str = "gru", **config: object) -> SessionNet:
    """A random network that reads user features and context."""
    settings = NetConfig(**{"cell": cell, "hidden": 8, "embedding": 6, **config})  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = (CATALOG, LABELS, settings, len(LABELS))
        model = TransformerNet(*shape, FIELDS) if cell == "transformer" else RecurrentNet(*shape, 9, FIELDS)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.6)
        for name, buffer in model.named_buffers():
            if name.endswith(".bias"):
                torch.nn.init.normal_(buffer, std=0.6)
    return model


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_single_steps_equal_whole_sessions(cell: str) -> None:
    model, batch = build(cell), with_fields().tensors()
    outputs = model.forward_batch(batch)
    environment = ModelEnvironment(model, CATALOG, LABELS)
    reader = FieldReader(environment, batch)
    state = reader.begin()
    for step in range(batch.horizon):
        state = reader.at(state, step)
        probabilities = environment.probabilities(state, batch.items[:, step : step + 1])[:, 0]
        now = step < batch.length
        assert torch.allclose(probabilities[now], outputs[:, step].softmax(-1)[now], atol=1e-5)
        state = environment.observe(state, batch.items[:, step], batch.behaviours[:, step])


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_every_field_matters_and_only_from_its_step_on(cell: str) -> None:
    model, batch = build(cell), with_fields().tensors()
    outputs = model.forward_batch(batch)
    for column in range(FIELDS.context.width):
        changed = batch.context.clone()
        changed[:, 2, column] = 1 - changed[:, 2, column].clamp(0, 1)
        others = model.forward_batch(dataclasses.replace(batch, context=changed))
        assert torch.equal(others[:, :2], outputs[:, :2])
        assert not torch.allclose(others[:, 2], outputs[:, 2], atol=1e-4)
    for column in range(FIELDS.user.width):
        changed = batch.user_features.clone()
        changed[:, column] = 1 - changed[:, column].clamp(0, 1)
        others = model.forward_batch(dataclasses.replace(batch, user_features=changed))
        assert not torch.allclose(others[:, 0], outputs[:, 0], atol=1e-4)


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_what_is_not_given_is_missing(cell: str) -> None:
    model, batch = build(cell), with_fields().tensors()
    zeros = dataclasses.replace(
        batch, context=torch.zeros_like(batch.context), user_features=torch.zeros_like(batch.user_features)
    )
    absent = model(model.begin(*batch.history), batch.items, batch.behaviours)
    assert torch.allclose(model.forward_batch(zeros), absent, atol=1e-6)
    assert not torch.allclose(model.forward_batch(batch), absent, atol=1e-2)


@pytest.mark.parametrize("user", ["history", "id", "none"])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
@torch.no_grad()
def test_tables_score_as_the_network_does(user: str, kind: str) -> None:
    model, sessions = build(user=user), with_fields(count=20)
    batch = sessions.tensors()
    assert isinstance(model, RecurrentNet)
    scorer = NetScorer({"instant": ScoreTerm(model.scoring_tables(), REWARDS)}, LABELS.start, FIELDS)
    logged: object = batch
    if kind == "numpy":
        scorer, logged = to_numpy(scorer), sessions
    reader = FieldReader(scorer, logged)  # type: ignore[arg-type]
    expected, state = expected_reward(model.forward_batch(batch), REWARDS), reader.begin()
    for step in range(batch.horizon):
        state = reader.at(state, step)
        items = logged.items[:, step]  # type: ignore[attr-defined]
        scores = torch.as_tensor(
            scorer.score(state, np.repeat(items[:, None], 20, 1) if kind == "numpy" else items[:, None])
        )
        now = step < batch.length
        assert torch.allclose(scores[now][:, 0], expected[:, step][now], atol=1e-5)
        state = scorer.observe(state, items, logged.behaviours[:, step])  # type: ignore[attr-defined]


@torch.no_grad()
def test_labels_equal_masked_copies_that_run_from_the_start() -> None:
    model, batch = build(), with_fields().tensors()
    assert isinstance(model, RecurrentNet)
    labels = counterfactual_future_advantage(model, REWARDS, batch, 0.9)
    future = simulated_future_reward(expected_reward(model.forward_batch(batch), REWARDS), batch.mask, 0.9)
    for step in range(batch.horizon):
        items = batch.items.clone()
        items[:, step] = MASK_ROW
        predicted = expected_reward(model.forward_batch(dataclasses.replace(batch, items=items)), REWARDS)
        masked = simulated_future_reward(predicted, batch.mask, 0.9)
        assert torch.allclose(labels[:, step], (future - masked)[:, step] * batch.mask[:, step], atol=1e-5)
    without = counterfactual_future_advantage(model, REWARDS, batch.without("context"), 0.9)
    assert not torch.allclose(without, labels, atol=1e-2)


@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_centred_fields_predict_the_same_and_missing_values_count_as_average_ones(cell: str) -> None:
    model, batch = build(cell), _without_missing(with_fields(count=30).tensors())
    before = model.forward_batch(batch)[batch.mask]
    centre_fields(model, batch)
    assert torch.allclose(model.forward_batch(batch)[batch.mask], before, atol=1e-4)
    for encoder, rows in ((model.context, batch.context[batch.mask]), (model.user_features, batch.user_features)):
        assert torch.allclose(encoder(rows).mean(0), encoder.bias, atol=1e-5)
        assert not encoder.has_missing.any()


@torch.no_grad()
def test_a_field_with_missing_values_has_learned_what_they_mean() -> None:
    model, batch = build(), with_fields(count=30).tensors()
    unknown = model.context.unknown(1).clone()
    centre_fields(model, batch)
    assert model.context.has_missing.all()
    assert torch.equal(model.context.unknown(1), unknown)


def _without_missing(batch: SessionTensors) -> SessionTensors:
    """The sessions with every value present; the padding stays as it is."""
    context, user = batch.context.clone(), batch.user_features.clone()
    for rows, fields in ((context, FIELDS.context), (user, FIELDS.user)):
        for one in fields:
            columns = fields.columns[one.name]
            last = rows[..., columns.stop - 1]
            last[last == 0] = 1
    return dataclasses.replace(batch, context=context * batch.mask.unsqueeze(2), user_features=user)
