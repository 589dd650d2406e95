"""Policy x users -> Sessions.

::

    users, candidates, luck ──▶ policy scores ──▶ scoring chooses ──▶ environment answers ──▶ policy observes ──▶ …

Candidates and every uniform number depend on the seed and the session's place alone, never on the policy: two policies
rolled out with one seed meet the same users, the same candidates and the same luck (common random numbers), and the
size of blocks changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mbcal.environments.base import Environment
from mbcal.environments.candidates import Rows, session_candidates
from mbcal.errors import InputError, OptionError
from mbcal.progress import SILENT, Progress
from mbcal.scoring.choice import epsilon_greedy, softmax
from mbcal.training.random import derive_seed, uniform
from mbcal.types import MASK_ROW, Sessions, SessionTensors

CPU_BLOCK, GPU_BLOCK = 1024, 262_144
"""Sessions at a time: on a CPU what stays in its cache, on a GPU what keeps it busy."""


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
    sessions: Rows,
    *,
    epsilon: float = 0.0,
    temperature: float = 0.0,
    seed: int = 0,
    candidates: NDArray[np.int32] | Tensor | None = None,
    fixed: NDArray[np.int64] | None = None,
    block: int | None = None,
    first: int = 0,
    title: str = "roll-outs",
    progress: Progress = SILENT,
) -> Rows:
    """Serve the users of `sessions` anew: same users, histories and lengths, items chosen by the policy.

    Greedy by default; with `epsilon` now and then any candidate, with `temperature` by chances exp(score / temperature).
    Candidates are those given, those logged with the sessions, or `sample_candidates`. An item shown is not shown again
    before every candidate has been.
    With `fixed` (N,) a session keeps its logged past before that step, and the item at it; only what follows is new.
    Luck goes by a session's place: these are the `first` and following of however many there are.
    Sessions come back as they were given: in arrays, or in tensors on the device where they lie.
    """
    if not 0 <= epsilon <= 1:
        raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
    if not temperature >= 0 or (temperature and epsilon):
        raise OptionError("temperature: must be 0 or more, and not together with epsilon")
    if block is not None and block < 1:
        raise OptionError(f"block: must be at least 1, got {block}")
    device = environment.device
    mine = getattr(policy, "device", device)
    if mine.type != device.type or (None not in (mine.index, device.index) and mine.index != device.index):
        raise OptionError(f"device: the policy is on {mine}, its users on {device}; make both on one device")
    given: SessionTensors = sessions.tensors() if isinstance(sessions, Sessions) else sessions
    if candidates is None:
        candidates = session_candidates(given, seed)
    offered = torch.from_numpy(candidates) if isinstance(candidates, np.ndarray) else candidates
    _require_candidates(given, offered)
    size = block or (CPU_BLOCK if device.type == "cpu" else GPU_BLOCK)
    luck, horizon, served = derive_seed(seed, "roll-out"), given.horizon, []
    progress.phase(title, len(given))
    for begin in range(0, len(given), size):
        rows = slice(begin, begin + size)
        part = replace(given[rows].without("propensities", "timestamps"), candidates=offered[rows]).to(device)
        # two numbers to choose by and one to answer by, a step
        uniforms = uniform(luck, (len(part), horizon, 3), device, (first + begin) * horizon * 3)
        kept = None if fixed is None else torch.from_numpy(fixed[rows]).to(device)
        served.append(_serve(policy, environment, part, uniforms, epsilon, temperature, kept).to(given.device))
        progress.advance(len(part))
    done = served[0] if len(served) == 1 else SessionTensors.concat(served)
    return done.sessions() if isinstance(sessions, Sessions) else done


@torch.no_grad()
def _serve(
    policy: Policy,
    environment: Environment,
    batch: SessionTensors,
    luck: Tensor,
    epsilon: float,
    temperature: float,
    fixed: Tensor | None,
) -> SessionTensors:
    """One block, on the device where its users are."""
    candidates = batch.require_candidates()
    standing, user = policy.begin(*batch.history), environment.begin(*batch.history)
    available = candidates != MASK_ROW
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    for step in range(batch.items.shape[1]):
        # where nothing is left (a session longer than its candidates, or one that has ended) everything is open again
        available = torch.where(available.any(1, keepdim=True), available, candidates != MASK_ROW)
        scores, uniform = policy.score(standing, candidates), luck[:, step]
        if temperature:
            chosen, propensity = softmax(scores, available, temperature, uniform[:, 0])
        else:
            chosen, propensity = epsilon_greedy(scores, available, epsilon, uniform[:, :2])
        item = candidates.gather(1, chosen.unsqueeze(1)).squeeze(1)
        if fixed is not None:
            item = torch.where(step <= fixed, batch.items[:, step], item)
        behaviour, after = environment.respond(user, item, uniform[:, 2])
        if fixed is not None:
            past, logged = step < fixed, batch.behaviours[:, step]
            behaviour = torch.where(past, logged, behaviour)
            after = environment.merge(past, environment.observe(user, item, logged), after)
        user, standing = after, policy.observe(standing, item, behaviour)
        available = available & (candidates != item.unsqueeze(1))
        steps.append((item, behaviour, propensity.float()))
    items, behaviours, propensities = (torch.stack(part, 1) * batch.mask for part in zip(*steps, strict=True))
    return replace(batch, items=items, behaviours=behaviours, propensities=propensities)


def _require_candidates(sessions: SessionTensors, candidates: Tensor) -> None:
    if candidates.ndim != 2 or len(candidates) != len(sessions):
        raise InputError(f"candidates: must be ({len(sessions)}, C), got {tuple(candidates.shape)}")
    if not len(sessions):
        raise InputError("roll-out: there are no sessions to serve")
    if not 0 <= int(candidates.min()) <= int(candidates.max()) < sessions.catalog.n_rows:
        raise InputError(f"candidates: must lie in 0..{sessions.catalog.n_rows - 1}")
    some = (candidates != MASK_ROW).any(1)
    if not bool(some.all()):
        raise InputError(f"candidates: session {int(some.int().argmin())} has none; give at least one")
