"""Losses of the training loop: likelihood of behaviours, squared error of values, Huber loss of temporal differences.

All of them sum over the steps that count.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mbcal.distributed.worker_slice import WorkerSlice
from mbcal.nn.base import SessionNet
from mbcal.nn.recurrent import ValueNet
from mbcal.training.branches import Branches, masked_mean
from mbcal.training.device_data import DeviceSessions
from mbcal.training.loop import Objective
from mbcal.training.random import Noise
from mbcal.types import MASK_ROW

BASE_BLOCK = 16_384
"""Sessions counted at a time."""
HUBER_DELTA = 1.0
"""Errors beyond this many standard deviations of a session's return count linearly."""


def huber(errors: Tensor, delta: float = HUBER_DELTA) -> Tensor:
    """Square of small errors, linear in large ones: e² if |e| <= delta, else delta (2 |e| - delta).

    Twice the usual Huber loss, so that it equals the squared error where errors are small. The gradient of one step is at
    most 2 delta, however far a bootstrapped target is off.

    Args:
        errors: (…) in normalised units.
        delta: Where the loss becomes linear.

    Returns:
        (…) one loss per error.
    """
    return 2 * nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=delta)


def behaviour_nll(net: SessionNet, data: DeviceSessions, mask_rate: float = 0.0, weights: Tensor | None = None) -> Objective:
    """-log f_phi(b_t | o_[1:t-1], a_t), each a_t replaced by a_M with probability `mask_rate`  # Eq. environment_loss.

    Behaviours are never masked, so the network also learns to predict steps whose item is masked.

    Args:
        net: A network of behaviours.
        data: The sessions that rows are taken from.
        mask_rate: Probability that a step's item is masked.
        weights: (N, T) on the device, how much each step counts (`propensities.step_weights`); by default all alike.

    Returns:
        The objective: rows (B,) and noise -> summed loss () and number of steps ().
    """

    def objective(rows: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        batch = data[rows]
        items, weight = batch.items, batch.mask if weights is None else weights[rows]
        if mask_rate:
            items = items.masked_fill(noise.uniform(items.shape) < mask_rate, MASK_ROW)
        logits = net(net.begin_batch(batch), items, batch.behaviours, batch.context)
        nll = nn.functional.cross_entropy(logits.flatten(0, 1), batch.behaviours.flatten().long(), reduction="none")
        return (nll * weight.flatten()).sum(), weight.sum()

    return objective


def value_mse(
    net: ValueNet, data: DeviceSessions, labels: Tensor, mask_item: bool = False, weights: Tensor | None = None
) -> Objective:
    """(g_eta(o_[1:t-1], a_t) - label_t)², in the network's normalised units  # Eq. CFAApproximator.

    Args:
        net: The value network.
        data: The N sessions that rows are taken from.
        labels: (N, T) in reward units, one per step of `data`.
        mask_item: Mask each step's own item, so that the network learns the mean label of a state.
        weights: See `behaviour_nll`.

    Returns:
        The objective: rows (B,) and noise -> summed loss () and number of steps ().
    """

    def objective(rows: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
        batch = data[rows]
        weight = batch.mask if weights is None else weights[rows]
        outputs = net.forward_masked(batch) if mask_item else net.forward_batch(batch)
        error = outputs.squeeze(-1) - net.label_scaler.normalize(labels[rows])
        return (error.square() * weight).sum(), weight.sum()

    return objective


LEVEL_WEIGHT = 0.01
"""Weight of a state's mean prediction in `branch_mse`: branches tell differences alone, and this fixes the level."""


def branch_mse(net: ValueNet, branches: Branches) -> Objective:
    """((g_j - mean g) - (Y_j - mean Y))², over the branches j of a state, in the network's normalised units.

    Items are compared within a state alone, so that what all branches of a state share costs nothing.

    Args:
        net: The value network.
        branches: N states with M items each, on the network's device.

    Returns:
        The objective: rows (B,) and noise -> summed loss () and number of branches ().
    """
    advantages = branches.advantages() / net.label_scaler.scale

    def objective(rows: Tensor, _: Noise) -> tuple[Tensor, Tensor]:
        is_item = branches.is_item[rows]
        values = net.outputs_at(branches.sessions[rows], branches.step[rows], branches.items[rows]).squeeze(-1)
        level = masked_mean(values, is_item)
        loss = (values - level - advantages[rows]).square() + LEVEL_WEIGHT * level.square()
        return (loss * is_item).sum(), is_item.sum()

    return objective


def base_nll(data: DeviceSessions, weights: Tensor, rows: NDArray[np.int64], worker_slice: WorkerSlice) -> float | None:
    """Return the loss of the best constant prediction of behaviours: their frequencies.

    Args:
        data: This worker's sessions.
        weights: (N, T) how much each of their steps counts.
        rows: The sessions that count, by number over all workers.
        worker_slice: Which of all workers' sessions `data` holds.

    Returns:
        Negative log likelihood per step; None without rows.
    """
    if not len(rows):
        return None
    counts = torch.zeros(256, dtype=torch.float64, device=data.device)
    for block in torch.split(worker_slice.local_rows(torch.from_numpy(rows)).to(data.device), BASE_BLOCK):
        behaviours = data[block].behaviours.flatten().long()
        counts += behaviours.bincount(weights[block].flatten().double(), minlength=256)
    worker_slice.group.all_reduce_sum(counts)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())


def base_mse(labels: Tensor, weights: Tensor, rows: NDArray[np.int64], worker_slice: WorkerSlice) -> float | None:
    """Return the loss of the best constant prediction of labels: their mean.

    Args:
        labels: (N, T), those of this worker.
        weights: (N, T) how much each step counts.
        rows: The sessions that count, by number over all workers.
        worker_slice: Which of all workers' sessions this worker holds.

    Returns:
        Squared error per step; None without rows.
    """
    if not len(rows):
        return None
    local = worker_slice.local_rows(torch.from_numpy(rows)).to(labels.device)
    weight, label = weights[local].double(), labels[local].double()
    sums = torch.stack([weight.sum(), (weight * label).sum(), (weight * label.square()).sum()])
    worker_slice.group.all_reduce_sum(sums)
    mean, mean_square = sums[1:] / sums[0].clamp(min=1e-9)
    return float(mean_square - mean.square())


def base_branch_mse(net: ValueNet, branches: Branches, rows: NDArray[np.int64], worker_slice: WorkerSlice) -> float | None:
    """Return the loss of a prediction that tells no items apart.

    Args:
        net: The value network, for its scale.
        branches: Those of this worker.
        rows: The sessions that count, by number over all workers.
        worker_slice: Which of all workers' sessions this worker holds.

    Returns:
        Squared error per branch, in normalised units; None without rows.
    """
    if not len(rows):
        return None
    part = branches[worker_slice.local_rows(torch.from_numpy(rows)).to(branches.step.device)]
    sums = torch.stack([part.advantages().double().square().sum(), part.is_item.double().sum()])
    worker_slice.group.all_reduce_sum(sums)
    return float(sums[0] / sums[1].clamp(min=1)) / float(net.label_scaler.scale) ** 2
