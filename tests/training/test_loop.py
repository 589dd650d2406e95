"""The training loop: it learns, stops early, ends when it diverges, and reports where a loss became NaN."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mbcal.errors import DivergenceWarning, OptionError, TrainingError
from mbcal.nn.config import NetConfig
from mbcal.nn.label_scaler import LabelScaler
from mbcal.nn.recurrent import ValueNet
from mbcal.storage.checkpoints import Checkpoints
from mbcal.training.config import TrainingConfig
from mbcal.training.device_data import DeviceSessions
from mbcal.training.losses import behaviour_nll, huber, value_mse
from mbcal.training.random import Noise
from mbcal.types import MASK_ROW
from tests.support.batches import CATALOG, LABELS, net, sessions
from tests.support.lines import fit, line


def test_it_learns() -> None:
    model, objective = line()
    record = fit(model, objective, TrainingConfig(epochs=60, batch=8, learning_rate=0.05, warmup=0))
    assert (len(record.curve), record.updates, record.batch) == (60, 300, 8)
    assert record.curve[-1]["loss"] < 1e-3 < record.curve[0]["loss"]
    assert record.stopped == "stopped after the 60 epochs of the settings"
    assert record.learning_rate == pytest.approx(0.05 * (1 - 0.7 * 299 / 300))  # falls linearly to 0.3 of the rate
    assert float(model.weight.detach()) == pytest.approx(2, abs=0.02)


def test_it_stops_at_the_best_epoch_and_keeps_it() -> None:
    model, _ = line()
    held = np.arange(40, 42)

    def objective(batch: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
        aim = (
            1.0 if int(batch.min()) >= 40 else 3.0
        )  # the optimum of the training sessions lies beyond that of the held-out ones
        return (model.weight - aim).square().sum() * len(batch), torch.tensor(len(batch))

    config = TrainingConfig(epochs=50, batch=40, learning_rate=0.1, warmup=0, patience=3, reductions=0)
    record = fit(model, objective, config, held=held)
    losses = [epoch["held_out"] for epoch in record.curve]
    assert len(losses) == record.best_epoch + 3 < 50
    assert record.stopped == "stopped because the held-out loss no longer fell"
    assert record.held_out_loss == min(losses)
    assert float((model.weight.detach() - 1).square()) == pytest.approx(min(losses), rel=1e-5)


def test_huber_is_the_square_of_small_errors_and_linear_in_large_ones() -> None:
    errors = torch.tensor([0.0, 0.5, -1.0, 3.0, -100.0], requires_grad=True)
    losses = huber(errors, delta=1.0)
    assert losses.tolist() == [0, 0.25, 1, 5, 199]
    losses.sum().backward()
    assert errors.grad is not None
    assert errors.grad.tolist() == [0, 1, -2, 2, -2]


def runaway(good_epochs: int) -> tuple[nn.Linear, Any]:
    """A network that is moved far away after some epochs of one batch; its weight is then the number of the epoch."""
    model, epoch = nn.Linear(1, 1), itertools.count(1)

    def objective(batch: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
        number = next(epoch)
        with torch.no_grad():
            model.weight.fill_(number)
        size = 1e3 if number > good_epochs else 1.0
        return (0 * model.weight + size).sum() * len(batch), torch.tensor(len(batch))

    return model, objective


FROZEN = TrainingConfig(epochs=6, batch=40, learning_rate=1e-30)


def test_a_network_that_diverges_keeps_the_weights_of_the_last_good_epoch(tmp_path: Path) -> None:
    model, objective = runaway(good_epochs=3)
    checkpoints = Checkpoints(tmp_path / "kept", {})
    with pytest.warns(DivergenceWarning, match=r"line: stopped because the network diverged in epoch 4"):
        record = fit(model, objective, FROZEN, max_loss=50.0, checkpoints=checkpoints)
    assert record.curve == [{"loss": 1.0}] * 3
    assert record.best_epoch == 3
    assert record.stopped == "stopped because the network diverged in epoch 4 (loss 1e+03, at most 50 is possible)"
    assert float(model.weight.detach()) == 3
    with torch.no_grad():
        model.weight.fill_(7)
    assert fit(model, objective, FROZEN, max_loss=50.0, checkpoints=checkpoints) == record  # resumed: nothing is left to do
    assert float(model.weight.detach()) == 3


def test_a_network_that_diverges_at_once_raises() -> None:
    model, objective = runaway(good_epochs=0)
    with pytest.raises(TrainingError, match=r"line: diverged in epoch 1 .*; try a smaller learning rate"):
        fit(model, objective, FROZEN, max_loss=50.0)


def test_a_loss_within_the_limit_runs_every_epoch() -> None:
    model, objective = runaway(good_epochs=3)
    assert len(fit(model, objective, FROZEN, max_loss=1e3).curve) == 6
    assert float(model.weight.detach()) == 6


def test_before_every_update_the_planned_number_is_given() -> None:
    model, objective = line()
    planned: list[int] = []
    fit(model, objective, TrainingConfig(epochs=3, batch=16), before_update=planned.append)
    assert planned == [9] * 9  # 3 epochs of 3 batches


def test_a_reduced_rate_starts_from_the_best_weights() -> None:
    """A step of 1 jumps over the optimum at 0.5; after a reduction to 0.3 it lands closer."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)

    def objective(batch: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
        return (model.weight - 0.5).abs().sum() * len(batch), torch.tensor(len(batch))

    config = TrainingConfig(epochs=20, batch=40, learning_rate=1.0, warmup=0, decay=0.3, reductions=4, patience=1)
    record = fit(model, objective, config, held=np.arange(40, 42))
    assert abs(float(model.weight.detach()) - 0.5) == pytest.approx(record.held_out_loss, abs=1e-6)
    assert record.held_out_loss < 0.1
    assert record.learning_rate == pytest.approx(0.3**4)


def test_gradients_are_clipped() -> None:
    model, objective = line()
    steps = []
    for clip in (None, 1e-6):
        model, objective = line()
        config = TrainingConfig(epochs=1, batch=40, learning_rate=0.1, warmup=0, clip=clip, eps=1e-3)
        before = float(model.weight.detach())
        fit(model, objective, config)
        steps.append(abs(float(model.weight.detach()) - before))
    assert steps[1] < 0.01 * steps[0]


def test_curves_are_means_over_steps_without_padding() -> None:
    model, data = net(), DeviceSessions(sessions(count=50), torch.device("cpu"))
    frozen = TrainingConfig(epochs=1, batch=7, learning_rate=1e-30)
    curve = fit(model, behaviour_nll(model, data), frozen, rows=50).curve
    batch = data[slice(None)]
    log_probabilities = torch.log_softmax(model.forward_batch(batch).detach(), -1)
    logged = log_probabilities.gather(2, batch.behaviours.long().unsqueeze(2)).squeeze(2)[batch.mask]
    assert curve[0]["loss"] == pytest.approx(-float(logged.mean()), rel=1e-5)


def test_the_mask_rate_is_the_share_of_masked_items() -> None:
    model, inputs = net(), []
    data = DeviceSessions(sessions(count=400), torch.device("cpu"))
    forward = model.forward
    model.forward = lambda state, items, *others: (inputs.append(items), forward(state, items, *others))[1]  # type: ignore[method-assign]
    objective, noise = behaviour_nll(model, data, 0.2), Noise(torch.tensor(0))
    objective(torch.arange(400), noise)
    steps = data[slice(None)].mask
    items, logged = inputs[0][steps], data[slice(None)].items[steps]
    masked = items == MASK_ROW
    assert float(masked.float().mean()) == pytest.approx(0.2, abs=4 * (0.16 / len(masked)) ** 0.5)
    assert torch.equal(items[~masked], logged[~masked])


def test_padding_never_enters_a_loss() -> None:
    known = sessions(count=30)
    model, values = net(), ValueNet(CATALOG, LABELS, NetConfig(hidden=8, embedding=5))
    data = DeviceSessions(known, torch.device("cpu"))
    labels = torch.where(data[slice(None)].mask, 1.0, torch.nan)
    total, count = value_mse(values, data, torch.nan_to_num(labels, nan=1e9))(torch.arange(30), Noise(torch.tensor(0)))
    assert float(count) == known.length.sum()
    assert float(total.detach()) < 1e3
    total, count = behaviour_nll(model, data)(torch.arange(30), Noise(torch.tensor(0)))
    assert float(count) == known.length.sum()


def test_labels_are_standardised_in_training_and_restored_in_values() -> None:
    data = DeviceSessions(sessions(count=60), torch.device("cpu"))
    mask = data[slice(None)].mask
    labels = torch.where(mask, 1000 + 50 * torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)), 0)
    model = ValueNet(CATALOG, LABELS, NetConfig(hidden=8, embedding=5))
    model.label_scaler.fit(labels, mask)
    assert float(model.label_scaler.shift) == pytest.approx(float(labels[mask].mean()), rel=1e-6)
    assert float(model.label_scaler.scale) == pytest.approx(float(labels[mask].std(correction=0)), rel=1e-5)
    fit(model, value_mse(model, data, labels), TrainingConfig(epochs=200, batch=20, learning_rate=1e-2), rows=60)
    error = (model.values(data[slice(None)]).detach() - labels)[mask]
    assert float(error.square().mean()) < 0.5 * 50**2
    constant = torch.full_like(labels, 7.0)
    model.label_scaler.fit(constant, mask)
    assert float(model.label_scaler.scale) == 1.0


def test_labels_are_standardised_step_by_step() -> None:
    unit = LabelScaler(3)
    labels = torch.tensor([[10.0, 5.0, 77.0], [14.0, 77.0, 77.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    unit.fit(labels, mask)
    assert unit.shift.tolist() == pytest.approx([12, 5, 29 / 3])  # no session reaches the third step
    assert float(unit.scale) == pytest.approx((8 / 3) ** 0.5)
    assert torch.allclose(unit.normalize(labels)[mask], torch.tensor([-2.0, 0.0, 2.0]) / (8 / 3) ** 0.5)
    assert torch.allclose(unit.denormalize(unit.normalize(labels)), labels)
    longer = unit.denormalize(torch.zeros(1, 5))  # later steps have the shift of the last
    assert longer.tolist()[0] == pytest.approx([12, 5, 29 / 3, 29 / 3, 29 / 3])


def test_a_nan_loss_is_reported_with_step_and_batch() -> None:
    model, objective = line()

    def poisoned(batch: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        total, count = objective(batch, noise)
        return total + (torch.nan if 17 in batch.tolist() else 0.0), count

    with pytest.raises(
        TrainingError, match=r"line: the loss became nan at epoch 1, step (\d+), batch of sessions ([\d, ]+), …"
    ):
        fit(model, poisoned, TrainingConfig(epochs=3, batch=8))


def test_an_infinite_loss_is_reported_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    model, objective = line()
    calls = []

    def late(batch: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        calls.append(batch)
        total, count = objective(batch, noise)
        return total * (torch.inf if len(calls) > 12 else 1.0), count

    kept = Checkpoints(tmp_path / "kept", {})
    with pytest.raises(TrainingError, match=r"became inf at epoch 3, step 3.*the last good checkpoint is .*000001"):
        fit(model, late, TrainingConfig(epochs=4, batch=8), checkpoints=kept)
    assert Checkpoints(tmp_path / "kept", {}).latest == kept.latest


def test_settings_are_checked() -> None:
    invalid = [
        {"epochs": 0},
        {"batch": 0},
        {"patience": 0},
        {"validation": 1.0},
        {"learning_rate": 0.0},
        {"decay": 0.0},
        {"clip": 0.0},
    ]
    for wrong in invalid:
        with pytest.raises(OptionError, match=next(iter(wrong))):
            TrainingConfig(**wrong)  # type: ignore[arg-type]
    model, objective = line()
    with pytest.raises(TrainingError, match="no sessions to learn from"):
        fit(model, objective, TrainingConfig(), rows=0)
