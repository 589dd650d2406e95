"""Objectives of the training loop: likelihood of behaviours, squared error of values. Both sum over the steps that count."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mbcal.distributed.group import SINGLE_WORKER, Group
from mbcal.nn.base import SessionNet
from mbcal.nn.recurrent import ValueNet
from mbcal.training.device_data import DeviceSessions
from mbcal.training.loop import Objective
from mbcal.training.random import Noise
from mbcal.types import MASK_ROW, SessionTensors


def behaviour_nll(net: SessionNet, data: DeviceSessions, mask_rate: float = 0.0, keep: Tensor | None = None) -> Objective:
    """-log f_phi(b_t | o_[1:t-1], a_t), each a_t replaced by a_M with probability `mask_rate`  # Eq. environment_loss.

    Behaviours are never masked, so the network also learns to predict steps whose item is masked.

    Args:
        net: A network of behaviours.
        data: The sessions that rows are taken from.
        mask_rate: Probability that a step's item is masked.
        keep: (N, T) on the device, probability that a step is kept (`propensities.keep_probabilities`). The items of other
            steps are masked, and these steps do not count.

    Returns:
        The objective: rows (B,) and noise -> summed loss () and number of steps ().
    """

    def objective(rows: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        batch = data[rows]
        items, mask = batch.items, batch.mask
        if keep is not None:
            uniform, other_uniform = noise.uniform((*items.shape, 2)).unbind(-1)
            items, mask = keep_items(batch, keep[rows], other_uniform)
        elif mask_rate:
            uniform = noise.uniform(items.shape)
        if mask_rate:
            items = items.masked_fill(uniform < mask_rate, MASK_ROW)
        logits = net(net.begin(*batch.history), items, batch.behaviours)
        nll = nn.functional.cross_entropy(logits.flatten(0, 1), batch.behaviours.flatten().long(), reduction="none")
        return (nll * mask.flatten()).sum(), mask.sum()

    return objective


def keep_items(batch: SessionTensors, keep: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Keep every item with its own probability and mask the others.

    Args:
        batch: B sessions.
        keep: (B, T) probabilities.
        uniform: (B, T) uniform numbers in [0, 1).

    Returns:
        Items (B, T) with `MASK_ROW` where none is kept, and (B, T) bool: steps that count and were kept.
    """
    kept = uniform < keep
    return batch.items.masked_fill(~kept, MASK_ROW), batch.mask & kept


def value_mse(
    net: ValueNet, data: DeviceSessions, labels: Tensor, mask_item: bool = False, keep: Tensor | None = None
) -> Objective:
    """(g_eta(o_[1:t-1], a_t) - label_t)², in the network's normalised units  # Eq. CFAApproximator.

    Args:
        net: The value network.
        data: The N sessions that rows are taken from.
        labels: (N, T) in reward units, one per step of `data`.
        mask_item: Mask each step's own item, so that the network learns the mean label of a state.
        keep: See `behaviour_nll`.

    Returns:
        The objective: rows (B,) and noise -> summed loss () and number of steps ().
    """

    def objective(rows: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        batch = data[rows]
        mask = batch.mask
        if keep is not None:
            items, mask = keep_items(batch, keep[rows], noise.uniform(mask.shape))
            batch = replace(batch, items=items)
        outputs = net.forward_masked(batch) if mask_item else net.forward_batch(batch)
        error = outputs.squeeze(-1) - net.label_scaler.normalize(labels[rows])
        return (error.square() * mask).sum(), mask.sum()

    return objective


def base_nll(data: DeviceSessions, rows: Tensor, keep: Tensor | None = None, group: Group = SINGLE_WORKER) -> float:
    """Negative log likelihood per step of sessions under their own behaviour frequencies.

    Args:
        data: The sessions of this worker.
        rows: (B,) its rows that count.
        keep: See `behaviour_nll`; steps count by it.
        group: Workers that hold the other rows.
    """
    batch = data[rows]
    weights = torch.ones_like(batch.rewards) if keep is None else keep[rows.to(keep.device)]
    counts = torch.zeros(len(batch.behaviour_set), dtype=torch.float64, device=data.device)
    counts.index_add_(0, batch.behaviours[batch.mask].long(), weights[batch.mask].double())
    group.all_reduce_sum(counts)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())
