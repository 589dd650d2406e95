"""With which probability would a policy have shown what was shown? Logged sessions, walked by the policy's own verbs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mbcal.environments.rollout import CPU_BLOCK, Policy
from mbcal.errors import InputError, OptionError
from mbcal.progress import SILENT, Progress
from mbcal.scoring.backend import as_float, as_index, to_numpy
from mbcal.scoring.choice import available_by_step, candidates_at, greedy
from mbcal.types import Sessions, SessionTensors


@dataclass(frozen=True, eq=False)
class PolicyChoices:
    """Where the policy's best candidate stands at every logged step, where the logged one, and among how many."""

    best: NDArray[np.int64]  # (N, T)
    logged: NDArray[np.int64]  # (N, T)
    count: NDArray[np.int64]  # (N, T)

    def propensities(self, epsilon: float) -> NDArray[np.float64]:
        """epsilon / n, and 1 - epsilon more where the logged item is the best one  # as scoring.epsilon_greedy."""
        if not 0 <= epsilon <= 1:
            raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
        chance: NDArray[np.float64] = epsilon / self.count + (1 - epsilon) * (self.best == self.logged)
        return chance


def target_propensities(
    policy: Policy,
    sessions: Sessions | SessionTensors,
    epsilon: float,
    *,
    in_numpy: bool = False,
    block: int = CPU_BLOCK,
    progress: Progress = SILENT,
) -> NDArray[np.float64]:
    """(N, T): with which probability the epsilon-greedy policy shows the logged item in the logged state; 1 in the padding.

    `in_numpy` is for scorers that hold arrays instead of tensors.
    """
    choices = policy_choices(policy, sessions, in_numpy=in_numpy, block=block, progress=progress)
    return np.where(to_numpy(sessions.mask), choices.propensities(epsilon), 1.0)


def policy_choices(
    policy: Policy,
    sessions: Sessions | SessionTensors,
    *,
    in_numpy: bool = False,
    block: int = CPU_BLOCK,
    first: int = 0,
    progress: Progress = SILENT,
) -> PolicyChoices:
    """What the policy would have chosen at every step of sessions that went as they were logged, a block at a time.
    `first` is the number of the first of these sessions, for errors to name them by."""
    if sessions.candidates is None:
        raise InputError(
            "sessions: these have no candidates; a policy's choice cannot be told without what it could choose from"
        )
    if in_numpy and isinstance(sessions, SessionTensors):
        raise OptionError("in_numpy: these sessions are tensors; give arrays")
    progress.phase("choices along the log", len(sessions))
    parts = []
    for begin in range(0, len(sessions), block):
        rows = slice(begin, begin + block)
        taken = sessions[rows]
        batch = taken if in_numpy or isinstance(taken, SessionTensors) else taken.tensors()
        if isinstance(batch, SessionTensors):
            batch = batch.to(getattr(policy, "device", batch.device))
        parts.append(_walk(policy, batch, first + begin))
        progress.advance(len(taken))
    best, logged, count = (np.concatenate(found) for found in zip(*parts, strict=True))
    return PolicyChoices(best, logged, count)


@torch.no_grad()
def _walk(policy: Policy, batch: Sessions | SessionTensors, begin: int) -> tuple[NDArray[np.int64], ...]:
    """Of one block: best, logged, count, each (B, T)."""
    state, mask = policy.begin(*batch.history), batch.mask
    steps = []
    for step, available in enumerate(available_by_step(batch.candidates, batch.items)):
        item, candidates = batch.items[:, step], candidates_at(batch.candidates, step)
        here = (candidates == item[:, None]) & available
        missing = to_numpy(mask[:, step] & ~here.any(1))
        if missing.any():
            row = f"session {begin + int(missing.argmax())} shows an item at step {step + 1} that was not open to choose"
            raise InputError(f"sessions: {row}; its candidates must be those the logging policy chose from")
        best = greedy(policy.score(state, candidates), available)
        steps.append(tuple(to_numpy(as_index(found)) for found in (best, as_float(here).argmax(1), available.sum(1))))
        state = policy.observe(state, item, batch.behaviours[:, step])
    return tuple(np.stack(found, 1) for found in zip(*steps, strict=True))
