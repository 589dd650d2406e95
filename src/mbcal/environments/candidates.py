"""Candidates of sessions: those that were logged, or sampled ones.

A session has one set of candidates for all its steps, (B, C), of which an item is gone once it was shown; or, in a decision
log, one set per step, (B, T, C), as the service was asked to rank them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mbcal.distributed.group import SINGLE_WORKER
from mbcal.distributed.worker_slice import WorkerSlice, all_reduce_count, distributed_gather
from mbcal.training.random import derive_seed, random_integers
from mbcal.types import MASK_ROW, Sessions, SessionTensors

SessionsT = TypeVar("SessionsT", Sessions, SessionTensors)

SAMPLING_ROUNDS = 64
"""How often repeated items are sampled again before a session is left with fewer candidates."""
PADDING = np.iinfo(np.int32).max
"""Padding while candidates are sampled: sorts after every item."""


def session_candidates(
    sessions: SessionsT, seed: int, sample_from: SessionsT | None = None, worker_slice: WorkerSlice | None = None
) -> Any:
    """Return the logged candidates of N sessions, or sampled ones if none were logged.

    Args:
        sessions: The sessions.
        seed: Names the sample.
        sample_from: Sessions whose items are sampled; by default `sessions`.
        worker_slice: Which of all workers' sessions these are. Samples are the same however sessions are spread over
            workers.

    Returns:
        Catalogue rows, (N, C) or (N, T, C), padded with `MASK_ROW`: an array or a tensor, like the sessions.
    """
    if sessions.candidates is not None:
        return sessions.candidates
    return sample_candidates(sessions, seed, sample_from, worker_slice)


def sample_candidates(
    sessions: SessionsT, seed: int, sample_from: SessionsT | None = None, worker_slice: WorkerSlice | None = None
) -> Any:
    """Sample candidates: each session's own items, and as many of other sessions by how often they occur there.

    Arguments are those of `session_candidates`.

    Returns:
        (N, 2T) distinct catalogue rows in rising order, padded with `MASK_ROW` at the end. The order does not reveal which
        items were the session's own.
    """
    if isinstance(sessions, Sessions):
        others = None if sample_from is None else sample_from.tensors()
        return sample_candidates(sessions.tensors(), seed, others, worker_slice).numpy()
    source = sessions if sample_from is None else sample_from
    pool, mask = source.items[source.mask], sessions.mask
    first_session, group = (worker_slice.begin, worker_slice.group) if worker_slice else (0, SINGLE_WORKER)
    pool_size = all_reduce_count(len(pool), group)
    sample_seed = derive_seed(seed, "candidates")
    positions = torch.arange(mask.numel(), device=mask.device) + first_session * mask.shape[1]
    sampled = distributed_gather(pool, random_integers(sample_seed, positions, pool_size), group).view(mask.shape)
    candidates = torch.cat([torch.where(mask, part, PADDING) for part in (sessions.items, sampled)], 1)
    for attempt in range(SAMPLING_ROUNDS):
        candidates = _sort_rows(candidates)
        repeated = torch.zeros_like(candidates, dtype=torch.bool)
        repeated[:, 1:] = (candidates[:, 1:] == candidates[:, :-1]) & (candidates[:, 1:] != PADDING)
        positions = repeated.flatten().nonzero().squeeze(1)
        if not all_reduce_count(len(positions), group):
            break
        indices = random_integers(
            derive_seed(sample_seed, attempt), positions + first_session * candidates.shape[1], pool_size
        )
        is_last = attempt == SAMPLING_ROUNDS - 1
        candidates.view(-1)[positions] = PADDING if is_last else distributed_gather(pool, indices, group)
    candidates = _sort_rows(candidates)
    return torch.where(candidates == PADDING, MASK_ROW, candidates)


def available_candidates(batch: SessionTensors) -> Tensor:
    """Return which candidates could be shown at every logged step.

    Args:
        batch: B sessions with candidates.

    Returns:
        (B, T, C) bool. With one set per session, items shown before a step are gone; with one set per step, all are
        available. If none is left, all are available again. In the padding, where a step may have no candidates, everything
        is true.

    Raises:
        InputError: If the sessions have no candidates.
    """
    candidates, items = batch.require_candidates(), batch.items
    is_item = candidates != MASK_ROW
    if candidates.dim() == 3:
        available = is_item
    else:
        horizon = items.shape[1]
        shown = (candidates.unsqueeze(2) == items.unsqueeze(1)) & batch.mask.unsqueeze(1)  # (B, C, T)
        first_shown = torch.where(shown.any(2), shown.int().argmax(2), horizon)
        step = torch.arange(horizon, device=items.device)
        is_item = is_item.unsqueeze(1)
        available = (first_shown.unsqueeze(1) >= step.unsqueeze(1)) & is_item
    everything = is_item | ~is_item.any(2, keepdim=True)
    return torch.where(available.any(2, keepdim=True), available, everything)


def _sort_rows(rows: Tensor) -> Tensor:
    """Sort along the second axis. On a CPU, numpy sorts short rows several times faster than torch."""
    return torch.from_numpy(np.sort(rows.numpy(), 1)) if rows.device.type == "cpu" else rows.sort(1).values
