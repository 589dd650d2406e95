"""Candidates of sessions: those that were logged, or sampled ones.

A session has one set of candidates for all its steps, (B, C), of which an item is gone once it was shown; or, in a decision
log, one set per step, (B, T, C), as the service was asked to rank them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mbcal.distributed.group import SINGLE_WORKER, Group
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
        seed: Seed of the sample.
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
        items were the session's own. If the catalogue says when items can be shown and the sessions have times, the others
        are items alive when the session began, all equally likely: how often they occur is known only later.
    """
    if isinstance(sessions, Sessions):
        others = None if sample_from is None else sample_from.tensors()
        return sample_candidates(sessions.tensors(), seed, others, worker_slice).numpy()
    mask = sessions.mask
    first_session, group = (worker_slice.begin, worker_slice.group) if worker_slice else (0, SINGLE_WORKER)
    sample = _sampler(sessions, sessions if sample_from is None else sample_from, group)
    sample_seed = derive_seed(seed, "candidates")
    positions = torch.arange(mask.numel(), device=mask.device)
    sampled = sample(sample_seed, positions, first_session * mask.shape[1], mask.shape[1]).view(mask.shape)
    candidates = torch.cat([torch.where(mask, part, PADDING) for part in (sessions.items, sampled)], 1)
    candidates, width = _sort_rows(candidates), 2 * mask.shape[1]
    rows = torch.arange(len(candidates), device=mask.device)  # sessions that may hold an item twice
    for attempt in range(SAMPLING_ROUNDS):
        unsure = candidates[rows]
        repeated = torch.zeros_like(unsure, dtype=torch.bool)
        repeated[:, 1:] = (unsure[:, 1:] == unsure[:, :-1]) & (unsure[:, 1:] != PADDING)
        session, column = repeated.nonzero(as_tuple=True)
        positions = rows[session] * width + column
        if not all_reduce_count(len(positions), group):
            break
        is_last, attempt_seed = attempt == SAMPLING_ROUNDS - 1, derive_seed(sample_seed, attempt)
        candidates.view(-1)[positions] = (
            PADDING if is_last else sample(attempt_seed, positions, first_session * width, width)
        )
        rows = rows[repeated.any(1)]
        candidates[rows] = _sort_rows(candidates[rows])
    return torch.where(candidates == PADDING, MASK_ROW, candidates)


def _sampler(sessions: SessionTensors, source: SessionTensors, group: Group) -> Callable[[int, Tensor, int, int], Tensor]:
    """Return a function that samples items.

    It takes a seed, positions (P,) in an array with a row per session, the position of its first entry among those of all
    workers, and its width; and returns items (P,), `PADDING` where there are none.
    """
    life = sessions.catalog.life
    if life is not None and sessions.timestamps is not None:
        rows, first, end = life.tensors(sessions.timestamps[:, 0])

        def sample_alive(seed: int, positions: Tensor, before: int, width: int) -> Tensor:
            session = positions // width
            count = (end - first)[session]
            chosen = first[session] + random_integers(seed, positions + before, count.clamp(min=1))
            return torch.where(count > 0, rows[chosen.clamp(max=len(rows) - 1)], PADDING)

        return sample_alive
    pool = source.items[source.mask]
    pool_size = all_reduce_count(len(pool), group)

    def sample_shown(seed: int, positions: Tensor, before: int, width: int) -> Tensor:  # noqa: ARG001 - as above
        return distributed_gather(pool, random_integers(seed, positions + before, pool_size), group)

    return sample_shown


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
