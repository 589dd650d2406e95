"""Candidates of sessions: logged, or sampled."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mbcal.distributed.group import SINGLE_WORKER
from mbcal.distributed.worker_slice import WorkerSlice, all_reduce_count, distributed_gather
from mbcal.training.random import derive_seed, random_integers
from mbcal.types import MASK_ROW, Sessions, SessionTensors

Rows = TypeVar("Rows", Sessions, SessionTensors)


DRAWS = 64
"""Rounds of drawing other items before a session makes do with fewer."""


PADDING = np.iinfo(np.int32).max
"""While candidates are drawn: comes after every item."""


def session_candidates(
    sessions: Rows, seed: int, others_from: Rows | None = None, worker_slice: WorkerSlice | None = None
) -> Any:
    """Those logged with the sessions where each session had one set, else drawn; an array or a tensor, as the sessions."""
    logged = sessions.candidates
    return (
        logged if logged is not None and logged.ndim == 2 else sample_candidates(sessions, seed, others_from, worker_slice)
    )


def sample_candidates(
    sessions: Rows, seed: int, others_from: Rows | None = None, worker_slice: WorkerSlice | None = None
) -> Any:
    """A session's own items and as many from other sessions: (N, 2T) distinct rows, rising, padded with 0 at the end.

    Others are drawn by how often they occur in `others_from` (these sessions themselves unless given). The order carries no
    hint of which were the session's own. Where they are a `worker_slice` of many, draws are from all of them.
    """
    if isinstance(sessions, Sessions):
        others = None if others_from is None else others_from.tensors()
        return sample_candidates(sessions.tensors(), seed, others, worker_slice).numpy()
    source = sessions if others_from is None else others_from
    pool, mask = source.items[source.mask], sessions.mask
    begin, group = (worker_slice.begin, worker_slice.group) if worker_slice else (0, SINGLE_WORKER)
    size = all_reduce_count(len(pool), group)
    draw = derive_seed(seed, "candidates")
    places = torch.arange(mask.numel(), device=mask.device) + begin * mask.shape[1]
    drawn = distributed_gather(pool, random_integers(draw, places, size), group).view(mask.shape)
    candidates = torch.cat([torch.where(mask, part, PADDING) for part in (sessions.items, drawn)], 1)
    for attempt in range(DRAWS):
        candidates = _sorted_rows(candidates)
        twice = torch.zeros_like(candidates, dtype=torch.bool)
        twice[:, 1:] = (candidates[:, 1:] == candidates[:, :-1]) & (candidates[:, 1:] != PADDING)
        again = twice.flatten().nonzero().squeeze(1)
        if not all_reduce_count(len(again), group):
            break
        wanted = random_integers(derive_seed(draw, attempt), again + begin * candidates.shape[1], size)
        candidates.view(-1)[again] = distributed_gather(pool, wanted, group) if attempt < DRAWS - 1 else PADDING
    candidates = _sorted_rows(candidates)
    return torch.where(candidates == PADDING, MASK_ROW, candidates)


def _sorted_rows(rows: Tensor) -> Tensor:
    """Each row rising; numpy sorts small rows on a CPU several times faster than torch."""
    return torch.from_numpy(np.sort(rows.numpy(), 1)) if rows.device.type == "cpu" else rows.sort(1).values
