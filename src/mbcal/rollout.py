"""Policy x users -> Sessions.

::

    users, candidates, luck ──▶ policy scores ──▶ scoring chooses ──▶ environment answers ──▶ policy observes ──▶ …

Candidates and every uniform number depend on the seed and the session's place alone, never on the policy: two policies
rolled out with one seed meet the same users, the same candidates and the same luck (common random numbers), and the
size of blocks changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.environment import Environment
from mbcal.errors import InputError, OptionError
from mbcal.progress import SILENT, Progress
from mbcal.randomness import generator, seed_of
from mbcal.scoring import epsilon_greedy, softmax
from mbcal.types import MASK, Sessions

CPU_BLOCK, GPU_BLOCK = 1024, 32_768
"""Sessions at a time: on a CPU what stays in its cache, on a GPU what keeps it busy."""
DRAWS = 64
"""Rounds of drawing other items before a session makes do with fewer."""


class Policy(Protocol):
    """What can be rolled out: an agent, a scorer, anything of this shape."""

    def begin(self, user: Any, history_items: Any, history_behaviours: Any, history_length: Any) -> Any:
        """The state before the first step of users (B,) with histories (B, H)."""

    def score(self, state: Any, candidates: Any) -> Any:
        """(B, C) for candidates (B, C)."""

    def observe(self, state: Any, item: Any, behaviour: Any) -> Any:
        """The state after item (B,) was shown and behaviour (B,) came back."""


def rollout(
    policy: Policy,
    environment: Environment,
    sessions: Sessions,
    *,
    epsilon: float = 0.0,
    temperature: float = 0.0,
    seed: int = 0,
    candidates: NDArray[np.int32] | None = None,
    fixed: NDArray[np.int64] | None = None,
    block: int | None = None,
    title: str = "roll-outs",
    progress: Progress = SILENT,
) -> Sessions:
    """Serve the users of `sessions` anew: same users, histories and lengths, items chosen by the policy.

    Greedy by default; with `epsilon` now and then any candidate, with `temperature` by chances exp(score / temperature).
    Candidates are those given, those logged with the sessions, or `draw_candidates`. An item shown is not shown again
    before every candidate has been.
    With `fixed` (N,) a session keeps its logged past before that step, and the item at it; only what follows is new.
    """
    if not 0 <= epsilon <= 1:
        raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
    if not temperature >= 0 or (temperature and epsilon):
        raise OptionError("temperature: must be 0 or more, and not together with epsilon")
    if block is not None and block < 1:
        raise OptionError(f"block: must be at least 1, got {block}")
    if candidates is None:
        candidates = candidates_of(sessions, seed)
    _require_candidates(sessions, candidates)
    device = environment.device
    mine = getattr(policy, "device", device)
    if mine.type != device.type or (None not in (mine.index, device.index) and mine.index != device.index):
        raise OptionError(f"device: the policy is on {mine}, its users on {device}; make both on one device")
    size = block or (CPU_BLOCK if device.type == "cpu" else GPU_BLOCK)
    progress.phase(title, len(sessions))
    items, behaviours = np.zeros_like(sessions.items), np.zeros_like(sessions.behaviours)
    propensities = np.zeros(sessions.items.shape, np.float32)
    luck = _Luck(len(sessions), sessions.horizon, seed, device)
    for begin in range(0, len(sessions), size):
        rows = slice(begin, begin + size)
        part, offered = sessions[rows], torch.from_numpy(candidates[rows]).to(device)
        kept = None if fixed is None else torch.from_numpy(fixed[rows]).to(device)
        served = _serve(policy, environment, part, offered, luck.rows(rows), epsilon, temperature, kept)
        items[rows], behaviours[rows], propensities[rows] = (steps.cpu().numpy() for steps in served)
        progress.advance(len(part))
    return replace(
        sessions, items=items, behaviours=behaviours, candidates=candidates, propensities=propensities, timestamps=None
    )


class _Luck:
    """Every uniform number of a roll-out: two to choose by and one to answer by, a step."""

    def __init__(self, count: int, horizon: int, seed: int, device: torch.device) -> None:
        # drawn on the CPU, so that a GPU meets the same luck
        draw = generator("cpu", seed, "roll-out")
        self._all, self._device = torch.rand(count, horizon, 3, generator=draw), device

    def rows(self, rows: slice) -> Tensor:
        return self._all[rows].to(self._device)


@torch.no_grad()
def _serve(
    policy: Policy,
    environment: Environment,
    sessions: Sessions,
    candidates: Tensor,
    luck: Tensor,
    epsilon: float,
    temperature: float,
    fixed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One block: items, behaviours and propensities (B, T), zero after a session's end."""
    batch = sessions.tensors(environment.device, without=("candidates", "propensities", "timestamps"))
    standing, user = policy.begin(*batch.history), environment.begin(*batch.history)
    available = candidates != MASK
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    for step in range(batch.items.shape[1]):
        # where nothing is left (a session longer than its candidates, or one that has ended) everything is open again
        available = torch.where(available.any(1, keepdim=True), available, candidates != MASK)
        scores, uniform = policy.score(standing, candidates), luck[:, step]
        if temperature:
            chosen, propensity = softmax(scores, available, temperature, uniform[:, 0])
        else:
            chosen, propensity = epsilon_greedy(scores, available, epsilon, uniform[:, :2])
        item = candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)
        if fixed is not None:
            item = torch.where(step <= fixed, batch.items[:, step], item)
        behaviour, after = environment.answer(user, item, uniform[:, 2])
        if fixed is not None:
            past, logged = step < fixed, batch.behaviours[:, step]
            behaviour = torch.where(past, logged, behaviour)
            after = environment.merge(past, environment.advance(user, item, logged), after)
        user, standing = after, policy.observe(standing, item, behaviour)
        available = available & (candidates != item.unsqueeze(1))
        steps.append((item, behaviour, propensity.float()))
    items, behaviours, propensities = (torch.stack(part, 1) * batch.mask for part in zip(*steps, strict=True))
    return items, behaviours, propensities


def candidates_of(sessions: Sessions, seed: int, others_from: Sessions | None = None) -> NDArray[np.int32]:
    """Those logged with the sessions where each session had one set, else drawn."""
    logged = sessions.candidates
    return logged if logged is not None and logged.ndim == 2 else draw_candidates(sessions, seed, others_from)


def draw_candidates(sessions: Sessions, seed: int, others_from: Sessions | None = None) -> NDArray[np.int32]:
    """A session's own items and as many from other sessions: (N, 2T) distinct rows, rising, padded with 0 at the end.

    Others are drawn by how often they occur in `others_from` (these sessions themselves unless given). The order carries no
    hint of which were the session's own.
    """
    count, horizon = sessions.items.shape
    source = others_from or sessions
    draw, pool = np.random.default_rng(seed_of(seed, "candidates")), source.items[source.mask]
    others = np.arange(horizon) < sessions.length[:, None]
    drawn = np.where(others, pool[draw.integers(0, len(pool), (count, horizon))], MASK)
    candidates = np.concatenate([sessions.items, drawn.astype(np.int32)], 1)
    for twice in _repeats(candidates):
        candidates[twice] = pool[draw.integers(0, len(pool), int(twice.sum()))]
    candidates[candidates == MASK] = np.iinfo(np.int32).max  # padding last
    candidates.sort(1)
    candidates[candidates == np.iinfo(np.int32).max] = MASK
    return candidates


def _repeats(candidates: NDArray[np.int32]) -> Iterator[NDArray[np.bool_]]:
    """Where sorted rows hold an item again, as long as any does and patience lasts; what then remains is dropped."""
    for attempt in range(DRAWS):
        candidates.sort(1)
        twice = np.zeros(candidates.shape, bool)
        twice[:, 1:] = (candidates[:, 1:] == candidates[:, :-1]) & (candidates[:, 1:] != MASK)
        if not twice.any():
            return
        if attempt == DRAWS - 1:
            candidates[twice] = MASK
            return
        yield twice


def _require_candidates(sessions: Sessions, candidates: NDArray[np.int32]) -> None:
    if candidates.ndim != 2 or len(candidates) != len(sessions):
        raise InputError(f"candidates: must be ({len(sessions)}, C), got {candidates.shape}")
    if not len(sessions):
        raise InputError("roll-out: there are no sessions to serve")
    if not 0 <= int(candidates.min()) <= int(candidates.max()) < sessions.catalog.rows:
        raise InputError(f"candidates: must lie in 0..{sessions.catalog.rows - 1}")
    if not (candidates != MASK).any(1).all():
        raise InputError(f"candidates: session {int(np.argmin((candidates != MASK).any(1)))} has none; give at least one")
