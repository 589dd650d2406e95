"""The propensities of logged items under a policy: logged sessions are replayed through begin, score and observe."""

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
from mbcal.scoring.fields import FieldReader
from mbcal.types import Sessions, SessionTensors


@dataclass(frozen=True, eq=False)
class PolicyChoices:
    """A policy's greedy choice at every logged step, beside the logged one."""

    best: NDArray[np.int64]
    """(N, T) index of the policy's best available candidate."""
    logged: NDArray[np.int64]
    """(N, T) index of the logged item among the candidates."""
    count: NDArray[np.int64]
    """(N, T) number of available candidates."""

    def propensities(self, epsilon: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the propensity of each logged item under the epsilon-greedy policy, (N, T); see `epsilon_greedy`.

        It is epsilon / count, and 1 - epsilon more where the logged item is the best. Epsilon is one number, or one per
        step (N, T). Raises OptionError if it is outside [0, 1].
        """
        if not np.all((np.asarray(epsilon) >= 0) & (np.asarray(epsilon) <= 1)):
            raise OptionError(f"epsilon: must be in [0, 1], got {epsilon}")
        propensities: NDArray[np.float64] = epsilon / self.count + (1 - epsilon) * (self.best == self.logged)
        return propensities


def policy_choices(
    policy: Policy,
    sessions: Sessions | SessionTensors,
    *,
    in_numpy: bool = False,
    block: int = CPU_BLOCK,
    first: int = 0,
    progress: Progress = SILENT,
) -> PolicyChoices:
    """Find what a policy would have chosen at every step of logged sessions.

    Args:
        policy: Anything with begin, score and observe.
        sessions: N logged sessions with candidates.
        in_numpy: For scorers that hold arrays instead of tensors.
        block: Sessions at a time.
        first: Number of the first of these sessions, for error messages.
        progress: Notified of sessions.

    Returns:
        The choices, (N, T).

    Raises:
        InputError: If sessions have no candidates, or show an item that was not available.
        OptionError: If `in_numpy` is given with tensors.
    """
    if sessions.candidates is None:
        raise InputError(
            "sessions: these have no candidates, so a policy's choices are unknown; log what it could choose from"
        )
    if in_numpy and isinstance(sessions, SessionTensors):
        raise OptionError("in_numpy: these sessions are tensors; give arrays")
    progress.phase("choices along the log", len(sessions))
    parts = []
    for begin in range(0, len(sessions), block):
        logged = sessions[begin : begin + block]
        batch = logged if in_numpy or isinstance(logged, SessionTensors) else logged.tensors()
        if isinstance(batch, SessionTensors):
            batch = batch.to(getattr(policy, "device", batch.device))
        parts.append(_replay(policy, batch, first + begin))
        progress.advance(len(logged))
    return PolicyChoices(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


@torch.no_grad()
def _replay(policy: Policy, batch: Sessions | SessionTensors, first: int) -> tuple[NDArray[np.int64], ...]:
    """Best, logged and count of one block, (B, T) each."""
    reader = FieldReader(policy, batch)
    state, mask = reader.begin(), batch.mask
    steps = []
    for step, available in enumerate(available_by_step(batch.candidates, batch.items)):
        item, candidates = batch.items[:, step], candidates_at(batch.candidates, step)
        is_logged = (candidates == item[:, None]) & available
        missing = to_numpy(mask[:, step] & ~is_logged.any(1))
        if missing.any():
            problem = f"session {first + int(missing.argmax())} shows an item at step {step + 1} that was not available"
            raise InputError(f"sessions: {problem}; its candidates must be those the logging policy chose from")
        state = reader.at(state, step)
        best = greedy(policy.score(state, candidates), available)
        indices = (best, as_float(is_logged).argmax(1), available.sum(1))
        steps.append(tuple(to_numpy(as_index(index)) for index in indices))
        state = policy.observe(state, item, batch.behaviours[:, step])
    return tuple(np.stack(arrays, 1) for arrays in zip(*steps, strict=True))
